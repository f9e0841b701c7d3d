// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"strings"
	"testing"
	"time"
)

// runMemory simulates two closed programs of 90 GiB, or others, on one GPU of 141 GiB under HPF.
func runMemory(t *testing.T, text string) map[string]*Class {
	t.Helper()
	s, err := Parse("test", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := Run(context.Background(), s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*Class{}
	for i := range res.Runs[0].Classes {
		out[res.Runs[0].Classes[i].Name] = &res.Runs[0].Classes[i]
	}
	return out
}

const twoJobs = `
duration: 2000s
gpu: {memory: 141GiB, move_rate: RATE}
tenants:
  - {name: a, memory: 90GiB, arrivals: {closed: {}}, kernel: 20ms}
  - {name: b, memory: 90GiB, arrivals: {closed: {}}, kernel: 20ms, start: 1s}
`

// Equal programs that do not fit together take turns. Where moving is slow turns are longer, so that moving costs
// a tenth of the time in each direction at most.
func TestMemoryTurns(t *testing.T) {
	for rate, least := range map[string]float64{"50000000000": 0.88, "10000000000": 0.85, "4000000000": 0.8} {
		c := runMemory(t, strings.ReplaceAll(twoJobs, "RATE", rate))
		a, b := c["a"], c["b"]
		if sum := a.Kept + b.Kept; sum < least || min(a.Kept, b.Kept) < 0.25 || a.Memory.Out < 1 || b.Memory.Back < 1 {
			t.Errorf("at %s bytes per second: %.2f + %.2f kept, %+v, %+v", rate, a.Kept, b.Kept, *a.Memory, *b.Memory)
		}
	}
}

// A more important program has its memory at once, for as long as it runs. Only what it needs leaves.
func TestMemoryPriority(t *testing.T) {
	c := runMemory(t, `
duration: 60s
gpu: {memory: 141GiB}
tenants:
  - {name: job, memory: 90GiB, arrivals: {closed: {}}, kernel: 20ms}
  - {name: service, memory: 60GiB, hint: {priority: 10}, arrivals: {rate: 20}, kernel: 1ms, start: 20s, stop: 40s}
`)
	job, service := c["job"], c["service"]
	if service.Memory.Out != 0 || service.Memory.WaitedS > 0.5 || job.Memory.Out != 1 || job.Memory.Back != 1 {
		t.Errorf("%+v, %+v", *service.Memory, *job.Memory)
	}
	if gib := job.Memory.GiB; gib < 17 || gib > 20 { // 9 GiB are short, out and back
		t.Errorf("%g GiB moved", gib)
	}
	if waited := time.Duration(job.Memory.WaitedS * float64(time.Second)); waited < 19*time.Second || waited > 23*time.Second {
		t.Errorf("the job waited %v", waited)
	}
}

// A program that fits stays, and one without memory of its own never waits for it.
func TestMemoryFits(t *testing.T) {
	c := runMemory(t, `
gpu: {memory: 141GiB}
tenants:
  - {name: a, memory: 90GiB, arrivals: {closed: {}}, kernel: 20ms}
  - {name: b, memory: 50GiB, arrivals: {closed: {}}, kernel: 20ms}
  - {name: c, arrivals: {rate: 10}, kernel: 1ms, hint: {priority: 5}}
`)
	if a := c["a"].Memory; *a != (Moves{}) || c["c"].Memory != nil || c["c"].Done == 0 {
		t.Errorf("%+v, %+v", *a, c["c"])
	}
}

func TestMemoryMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"tenants: [{name: a, memory: 90GiB, arrivals: {closed: {}}, kernel: 1ms}]":                   "does not fit into gpu.memory",
		"gpu: {memory: 90}\ntenants: [{name: a, memory: many, arrivals: {closed: {}}, kernel: 1ms}]": "is not a size",
		"gpu: {move_rate: -1}\ntenants: [{name: a, arrivals: {closed: {}}, kernel: 1ms}]":            "gpu.move_rate -1 is out of range",
	} {
		if _, err := Parse("test", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
