// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	charts "xsched/internal/report"
)

// figures are what TestScale measures.
type figures struct {
	Nodes, GPUs, Claims       int
	AllocatedClaims, UsedGPUs int
	Seconds                   map[string]float64 // by step
	Placed                    [][2]float64       // seconds since the first pod, pods with a node
	Published, Allocated      sample
	Commands                  []command

	mu        sync.Mutex
	c         *Cluster
	processes map[string]int // that are no parts of the cluster
	scheduler *rest.RESTClient
}

// sample is the state of all processes after a step.
type sample struct {
	Processes map[string]cost
	Requests  map[string]int // of our plugins
}

// cost of a process since it started.
type cost struct {
	CPUSeconds float64
	PeakMiB    float64
}

// command is a run of one of our programs.
type command struct {
	Arguments string
	Seconds   float64
	cost
}

// time measures a step.
func (f *figures) time(t testing.TB, what string, do func()) {
	t.Helper()
	began := time.Now()
	do()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Seconds == nil {
		f.Seconds = map[string]float64{}
	}
	f.Seconds[what] = time.Since(began).Seconds()
	t.Logf("%s after %.1f s", what, f.Seconds[what])
}

// watch adds a process to the samples.
func (f *figures) watch(name string, pid int) {
	if f.processes == nil {
		f.processes = map[string]int{}
	}
	f.processes[name] = pid
}

func (f *figures) sample(plugins *fleet) sample {
	s := sample{map[string]cost{}, plugins.requests()}
	for name, pid := range f.processes {
		s.Processes[name] = costOf(pid)
	}
	for name, p := range f.c.parts {
		if p.ended() == nil {
			s.Processes[name] = costOf(p.cmd.Process.Pid)
		}
	}
	return s
}

// costOf reads what a process has used.
func costOf(pid int) (c cost) {
	// Fields after the name: state is the first, user and system time are the 12th and 13th.
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])); len(fields) > 12 {
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		c.CPUSeconds = (user + system) / 100 // USER_HZ
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "VmHWM:" {
			kib, _ := strconv.ParseFloat(f[1], 64)
			c.PeakMiB = kib / 1024
		}
	}
	return c
}

// scheduled returns the number of pods to which the scheduler has given a node, from its own metrics: to
// list ten thousand pods again and again would disturb what is measured.
func (f *figures) scheduled(t testing.TB) int {
	t.Helper()
	if f.scheduler == nil {
		config := rest.CopyConfig(f.c.Config)
		config.Host = "https://127.0.0.1:10259"
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		f.scheduler = client.Discovery().RESTClient().(*rest.RESTClient)
	}
	text, err := f.scheduler.Get().AbsPath("/metrics").DoRaw(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "scheduler_schedule_attempts_total") && strings.Contains(line, `result="scheduled"`) {
			n, _ := strconv.ParseFloat(strings.Fields(line)[1], 64)
			return int(n)
		}
	}
	return 0
}

// run runs one of our programs and measures it.
func (f *figures) run(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(environment(), "GOGC=100")
	var complaint strings.Builder
	cmd.Stderr = &complaint
	var text bytes.Buffer
	cmd.Stdout = &text
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return "", err
	}
	// The peak in the exit status would be that of this process, if it is higher.
	ended := make(chan struct{})
	peak := make(chan float64)
	go func() {
		most := 0.0
		for {
			most = max(most, costOf(cmd.Process.Pid).PeakMiB)
			select {
			case <-ended:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	err := cmd.Wait()
	close(ended)
	f.Commands = append(f.Commands, command{
		filepath.Base(program) + " " + strings.Join(args, " "), time.Since(began).Seconds(),
		cost{(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), <-peak},
	})
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, &complaint)
	}
	return text.String(), err
}

// report logs the figures and writes them to out/kube-scale.json, and their picture to out/kube-scale.svg.
func (f *figures) report(t testing.TB) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	seconds := f.Seconds["claims allocated"]
	t.Logf("%d nodes, %d GPUs: published in %.1f s; %d claims allocated in %.1f s, %.1f per second",
		f.Nodes, f.GPUs, f.Seconds["GPUs published"], f.AllocatedClaims, seconds, float64(f.AllocatedClaims)/seconds)
	for _, name := range slices.Sorted(maps.Keys(f.Allocated.Processes)) {
		before, after := f.Published.Processes[name], f.Allocated.Processes[name]
		t.Logf("%-24s CPU %6.1f s until published, %6.1f s more until allocated; peak %.0f MiB", name, before.CPUSeconds, after.CPUSeconds-before.CPUSeconds, after.PeakMiB)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Allocated.Requests)) {
		t.Logf("%-40s %6d until published, %6d more until allocated", name, f.Published.Requests[name], f.Allocated.Requests[name]-f.Published.Requests[name])
	}
	for _, c := range f.Commands {
		t.Logf("%s: %.1f s, CPU %.2f s, peak %.0f MiB", c.Arguments, c.Seconds, c.CPUSeconds, c.PeakMiB)
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Join(root, "out"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "out", "kube-scale.json"), append(text, '\n'), 0o644)
	}
	if err == nil {
		err = f.draw(filepath.Join(root, "out", "kube-scale.svg"))
	}
	if err != nil {
		t.Error(err)
	}
}

// draw writes the picture of the allocation over time.
func (f *figures) draw(file string) error {
	placed := charts.Series{Name: "claims with a GPU", Class: charts.ModeClass("xsched", 0)}
	for _, p := range f.Placed {
		placed.Points = append(placed.Points, charts.Point{X: math.Round(p[0]), Y: p[1]})
	}
	var b bytes.Buffer
	err := charts.WriteSVG(&b, fmt.Sprintf("Claims allocated by the scheduler: %d nodes, %d GPUs, %d claims", f.Nodes, f.GPUs, f.Claims), "",
		charts.Lines("", "seconds since the first claim", "claims", 0, charts.Plain, charts.Count, []charts.Series{placed}))
	if err == nil {
		err = os.WriteFile(file, b.Bytes(), 0o644)
	}
	return err
}

// overlay makes a folder writable for this test's namespace only.
func overlay(folder string) error {
	m := &mounter{}
	private := "/run/private" + folder
	m.folder(private + "/upper")
	m.folder(private + "/work")
	var stat unix.Statfs_t
	if err := unix.Statfs(folder, &stat); err == nil && stat.Type == unix.OVERLAYFS_SUPER_MAGIC && mounted(folder) {
		return nil
	}
	m.mount("overlay", folder, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", folder, private, private))
	return m.err
}

// mounted reports whether a folder is a mount point.
func mounted(folder string) bool {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 4 && f[4] == folder
	})
}
