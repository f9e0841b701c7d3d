// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/sim/fleet"
)

// show prints what a trace says of a pod.
func show(p *fleet.Pod) string {
	if p.Service {
		return fmt.Sprintf("service %s at %v for %v, %d GiB, %g/s, %q", p.Name, p.Arrive, p.Duration, p.Memory, p.Rate, p.Models)
	}
	return fmt.Sprintf("job %s at %v for %v, %d GPUs, %d GiB, %q", p.Name, p.Arrive, p.Duration, p.GPUs, p.Memory, p.Models)
}

// TestFormats reads a small file in the columns of each public trace. Every kind of line is in it: parts of a
// GPU, several GPUs, several nodes, several attempts, no GPU, and what never ran.
func TestFormats(t *testing.T) {
	for _, test := range []struct {
		format, file, left string
		want               []string
	}{
		{"alibaba-2023", "alibaba-2023.csv", "left out: 1 arrived after, 1 never ran, 1 no GPU", []string{
			`service pod-a at 0s for 24h43m20s, 4 GiB, 46/s, ""`,
			`service pod-b at 1h0m0s for 23h42m50s, 8 GiB, 100/s, "V100M16|V100M32"`,
			`service pod-b at 1h0m0s for 23h42m50s, 8 GiB, 100/s, "V100M16|V100M32"`,
			`job pod-c at 2h0m0s for 13m12s, 1 GPUs, 2 GiB, ""`,
			`job pod-d at 2h13m20s for 2h0m0s, 8 GPUs, 8 GiB, ""`,
		}},
		{"alibaba-2020", "alibaba-2020.csv", "left out: 1 never ran, 1 no GPU", []string{
			`job aaaa/tensorflow at 0s for 30m0s, 1 GPUs, 4 GiB, ""`,
			`job aaab/worker at 16m40s for 1h0m0s, 4 GPUs, 8 GiB, "V100"`,
			`job aaac/worker at 33m20s for 10m0s, 4 GPUs, 8 GiB, "P100"`,
		}},
		{"philly", "philly.json", "left out: 2 never ran", []string{
			`job application_1 at 0s for 1h40m0s, 4 GPUs, 8 GiB, ""`,
			`job application_4 at 1h30m0s for 10m0s, 1 GPUs, 8 GiB, ""`,
		}},
		{"helios", "helios.csv", "left out: 1 never ran, 1 no GPU", []string{
			`job 1 at 0s for 10h14m8s, 1 GPUs, 8 GiB, ""`,
			`job 2 at 26s for 4m9s, 16 GPUs, 8 GiB, ""`,
		}},
	} {
		f, err := os.Open(filepath.Join("testdata", test.file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Read(test.format, f, Defaults())
		_ = f.Close()
		if err != nil {
			t.Errorf("%s: %v", test.format, err)
			continue
		}
		var pods []string
		for i := range got.Pods {
			pods = append(pods, show(&got.Pods[i]))
		}
		if !slices.Equal(pods, test.want) || !strings.HasSuffix(got.Summary(), test.left) {
			t.Errorf("%s: %s\n%s\nwant\n%s", test.format, got.Summary(), strings.Join(pods, "\n"), strings.Join(test.want, "\n"))
		}
	}
}

// TestPartOfATrace takes three hours from the middle: what runs then arrives at once, with what it has left.
func TestPartOfATrace(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "alibaba-2023.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	a := Defaults()
	a.Start, a.Length, a.Memory, a.Load = 150*time.Minute, 3*time.Hour, 16, 1
	got, err := Read("alibaba-2023", f, a)
	if err != nil {
		t.Fatal(err)
	}
	var pods []string
	for i := range got.Pods {
		pods = append(pods, show(&got.Pods[i]))
	}
	want := []string{
		`service pod-a at 0s for 22h13m20s, 8 GiB, 153.3/s, ""`,
		`service pod-b at 0s for 22h13m20s, 16 GiB, 233.3/s, "V100M16|V100M32"`,
		`service pod-b at 0s for 22h13m20s, 16 GiB, 233.3/s, "V100M16|V100M32"`,
		`job pod-c at 0s for 6m36s, 1 GPUs, 4 GiB, ""`,
		`job pod-d at 0s for 1h43m20s, 8 GPUs, 16 GiB, ""`,
	}
	if !slices.Equal(pods, want) {
		t.Errorf("%s\n%s\nwant\n%s", got.Summary(), strings.Join(pods, "\n"), strings.Join(want, "\n"))
	}
	if r, err := fleet.Run(t.Context(), got.Pods, fleet.Config{
		Nodes: 2, List: []fleet.Node{{GPUs: 8, Memory: 32, Model: "V100M32"}, {GPUs: 8, Memory: 16, Model: "T4"}},
		Sharing: fleet.XSched, Rule: fleet.Rules(fleet.XSched)[0], Cost: 1, Length: a.Length,
	}); err != nil || r.Pending != 0 || r.Arrived != len(want) || r.Finished != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNodes(t *testing.T) {
	for _, test := range []struct{ format, text, want string }{
		{"alibaba-2023", "sn,cpu_milli,memory_mib,gpu,model\na,1,1,2,P100\nb,1,1,0,\nc,1,1,8,V100M32\n", "[{2 16 P100} {8 32 V100M32}]"},
		{"alibaba-2020", "aa,T4,96,512,2\nbb,CPU,96,512,0\ncc,MISC,96,512,8\n", "[{8 12 MISC} {2 16 T4}]"},
		{"", "nodes,gpus,memory_gib,model\n2,8,80,A100\n1,4,141,H200\n", "[{8 80 A100} {4 141 H200} {8 80 A100}]"},
		{"alibaba-2023", "sn,cpu_milli,memory_mib,gpu,model\na,1,1,2,K1\n", `line 2: GPU model "K1" is unknown`},
		{"", "nodes,gpus,memory_gib,model\n1,0,80,\n", "node 1 has 0 GPUs"},
		{"", "nodes,gpus,memory_gib,model\n", "no nodes"},
		{"", "gpus\n1\n", "no column nodes"},
	} {
		got, err := ReadNodes(test.format, strings.NewReader(test.text))
		if text := fmt.Sprint(got, err); !strings.Contains(text, test.want) {
			t.Errorf("%s: %s, want %s", test.format, text, test.want)
		}
	}
}

func TestErrors(t *testing.T) {
	bad := Defaults()
	bad.Load = 2
	for _, test := range []struct {
		format, text, want string
		a                  Assumptions
	}{
		{"google", "", `unknown format "google"; use alibaba-2023`, Defaults()},
		{"helios", "", "the file is empty", Defaults()},
		{"helios", "a,b\n1,2\n", "no column job_id", Defaults()},
		{"helios", "job_id,gpu_num,state,submit_time,start_time,end_time\n1,x,,,,\n", `line 2: gpu_num "x"`, Defaults()},
		{"alibaba-2020", "a,b\n", "line 1 has 2 of 10 columns", Defaults()},
		{"helios", "user,job_id,gpu_num,state,submit_time,start_time,end_time\na,1,1,,,\n", "line 2 has 6 of 7 columns", Defaults()},
		{"philly", "{}", "no list of jobs", Defaults()},
		{"philly", `[{"jobid": 1}]`, "job 1", Defaults()},
		{"philly", `[]`, "no pod of the 0 lines", Defaults()},
		{"philly", `[]`, "load of 2", bad},
	} {
		if _, err := Read(test.format, strings.NewReader(test.text), test.a); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %q: %v, want %q", test.format, test.text, err, test.want)
		}
	}
}

// FuzzTraces checks that arbitrary files give an error or pods that the simulator takes.
func FuzzTraces(f *testing.F) {
	for i, one := range formats {
		files, err := filepath.Glob(filepath.Join("testdata", one.name+".*"))
		if err != nil || len(files) != 1 {
			f.Fatal(files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(i, string(text))
	}
	f.Fuzz(func(t *testing.T, i int, text string) {
		got, err := Read(formats[uint(i)%uint(len(formats))].name, strings.NewReader(text), Defaults())
		if err != nil || len(got.Pods) > 100 {
			return
		}
		if _, err := fleet.Run(t.Context(), got.Pods, fleet.Config{Nodes: 2, GPUs: 4, Sharing: fleet.XSched, Rule: fleet.Rules(fleet.XSched)[0], Cost: 1, Length: time.Hour}); err != nil {
			t.Fatal(err)
		}
	})
}
