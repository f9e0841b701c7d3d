// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

const head = "kind,name,count,arrive_s,duration_s,gpus,memory_gib,priority,request_ms,rate_hz,p99_ms,day,kernel_ms\n"

func TestTrace(t *testing.T) {
	pods, err := ParseTrace(strings.NewReader(head + "# a comment\nbatch,train,,60,3600,8,70,,,,,,1\nservice,chat,2,,,,60,1000,3,100,25,office,\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 3 || !pods[0].Service || pods[0].Rate != 100 || pods[0].P99 != 25*time.Millisecond || pods[0].hours[10] != 1 || pods[0].shape != 1 ||
		pods[2].GPUs != 8 || pods[2].Arrive != time.Minute || pods[2].Duration != time.Hour || pods[2].shape != 0 {
		t.Errorf("got %+v", pods)
	}
}

// TestTraceModels checks the youngest column, which a trace may lack.
func TestTraceModels(t *testing.T) {
	pods, err := ParseTrace(strings.NewReader(strings.TrimSpace(head) + ",models\nbatch,train,,60,3600,8,70,,,,,,1,A100|H100\n"))
	if err != nil || pods[0].Models != "A100|H100" || pods[0].GPUs != 8 {
		t.Errorf("%+v, %v", pods, err)
	}
}

func TestTraceErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "empty",
		"kind,name\n":                            "line 1: unknown columns",
		head:                                     "no pods",
		head + "pod,x,,,,,,,,,,,\n":              `line 2: unknown kind "pod"`,
		head + "batch,x,,,,1,1,,,,,,1\n":         "duration_s",
		head + "batch,x,,,0,1,1,,,,,,1\n":        "above 0",
		head + "batch,x,,,60,1,1,,,,,,50\n":      "kernel_ms is above 20ms",
		head + "batch,x,,,60,1.5,1,,,,,,1\n":     "not a whole number",
		head + "batch,x,,,NaN,1,1,,,,,,1\n":      `duration_s "NaN"`,
		head + "batch,x,2e6,,60,1,1,,,,,,1\n":    "count",
		head + "service,x,,,,1,1,,3,1000,9,,\n":  "use more replicas",
		head + "service,x,,,,2,1,,3,10,9,,\n":    "1 GPU",
		head + "service,x,,,,1,1,,30,1,9,,\n":    "request_ms is above 10ms",
		head + "service,x,,,,1,1,,3,1,9,noon,\n": `day "noon"`,
		head + "service,x,,,,1,1,,3,1,9," + strings.Repeat("2/", 23) + "1,\n": "hour 0",
		head + "batch,x\n": "wrong number of fields",
	} {
		_, err := ParseTrace(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestTraceRoundTrip writes the pods of every mix and reads them back.
func TestTraceRoundTrip(t *testing.T) {
	for _, m := range Mixes() {
		pods := m.Generate(40, 1)
		var b bytes.Buffer
		if err := WriteTrace(&b, pods); err != nil {
			t.Fatal(err)
		}
		again, err := ParseTrace(&b)
		if err != nil {
			t.Fatal(err)
		}
		same := func(a, b Pod) bool {
			a.hours, b.hours = nil, nil
			return a == b
		}
		if !slices.EqualFunc(pods, again, same) || len(pods) < 20 {
			t.Errorf("%s: %d pods, read %d; not equal", m.Name, len(pods), len(again))
		}
	}
}

// FuzzTrace checks that arbitrary traces fail only with an error, and that what is valid runs, keeps
// every pod and survives a round trip.
func FuzzTrace(f *testing.F) {
	f.Add(head + "batch,train,,60,3600,8,70,,,,,,1\nservice,chat,2,,,,60,1000,3,100,25,office,\n")
	f.Add(head + "service,x,3,10,3600,1,20,5,0.1,500,2," + strings.Repeat("0.5/", 23) + "1,\nbatch,y,4,0,60,2,100,-1,,,,,20\n")
	f.Fuzz(func(t *testing.T, text string) {
		pods, err := ParseTrace(strings.NewReader(text))
		if err != nil || len(pods) > 200 {
			return
		}
		var b bytes.Buffer
		if err := WriteTrace(&b, pods); err != nil {
			t.Fatal(err)
		}
		for _, how := range Sharings() {
			c := Config{Nodes: 2, GPUs: 4, Sharing: how, Rule: Rules(how)[0], Cost: 1, Length: 3 * time.Hour, Preempt: true}
			r, err := Run(t.Context(), pods, c)
			if err != nil {
				t.Fatal(err)
			}
			if r.Arrived != r.Finished+r.Running+r.Pending || r.Arrived+r.NotArrived != len(pods) || r.MostShare > 100 || r.MostMemory > DefaultMemory {
				t.Fatalf("%s: %+v", how, r)
			}
		}
	})
}
