// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"xsched/internal/api"
)

const (
	hookLimitNS     = 20
	decisionLimitNS = 5000
	busyLimitUS     = 200

	turns = 5 // of the loop with and without the shim
)

// loopReply is what launchloop prints.
type loopReply struct {
	Launches       uint64  `json:"launches"`
	DriverLaunches uint64  `json:"driver_launches"`
	NSPerLaunch    float64 `json:"ns_per_launch"`
}

// hookCost runs the launch loop on the null driver with and without the shim,
// in turns, so that a change of the machine's speed meets both.
func hookCost(ctx context.Context, launches int) ([]budget, error) {
	var all []budget
	for _, stream := range []string{"created", "default"} {
		var plain, hooked []float64
		for range turns {
			for _, shim := range []string{"", "build/libxsched.so"} {
				reply, err := launchLoop(ctx, launches, stream, shim)
				if err != nil {
					return nil, err
				}
				if shim == "" {
					plain = append(plain, reply.NSPerLaunch)
				} else {
					hooked = append(hooked, reply.NSPerLaunch)
				}
			}
		}
		without, with := median(plain), median(hooked)
		all = append(all, budget{
			"hook, " + stream + " stream", with - without, hookLimitNS, "ns",
			fmt.Sprintf("%.2f ns with, %.2f ns without, medians of %d runs", with, without, turns),
		})
	}
	return all, nil
}

func launchLoop(ctx context.Context, launches int, stream, shim string) (loopReply, error) {
	var reply loopReply
	cmd := exec.CommandContext(ctx, "build/null/launchloop", strconv.Itoa(launches), stream)
	driver, err := filepath.Abs("build/null")
	if err != nil {
		return reply, fmt.Errorf("find null driver: %w", err)
	}
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+driver, "XSCHED_DIR=/nonexistent")
	if shim != "" {
		path, err := filepath.Abs(shim)
		if err != nil {
			return reply, fmt.Errorf("find shim: %w", err)
		}
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+path)
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return reply, fmt.Errorf("run launch loop: %w", err)
	}
	if err := json.Unmarshal(out, &reply); err != nil {
		return reply, fmt.Errorf("read launch loop: %w", err)
	}
	if reply.Launches != reply.DriverLaunches {
		return reply, fmt.Errorf("run launch loop: %d launches made, %d arrived at the driver", reply.Launches, reply.DriverLaunches)
	}
	return reply, nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

var nsPerOp = regexp.MustCompile(`(?m)^(Benchmark\S+)\s+\d+\s+([0-9.]+) ns/op`)

// decisionCost runs the engine's benchmark.
func decisionCost(ctx context.Context) ([]budget, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkDecide1000$", "-count", "3", "./internal/engine")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run engine benchmark: %w\n%s", err, out)
	}
	values := map[string][]float64{}
	for _, match := range nsPerOp.FindAllStringSubmatch(string(out), -1) {
		ns, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			return nil, fmt.Errorf("read engine benchmark: %w", err)
		}
		values[match[1]] = append(values[match[1]], ns)
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("read engine benchmark: no result in %q", out)
	}
	// With sub-benchmarks: the slowest of them.
	worst, name := 0.0, ""
	for n, v := range values {
		if m := median(v); m > worst {
			worst, name = m, n
		}
	}
	return []budget{{"decision, 1,000 queues", worst / 1000, decisionLimitNS / 1000, "us", name}}, nil
}

// busyToDecision reads the daemon's own histogram after a while of requests,
// beside a process that spins on one core.
func busyToDecision(ctx context.Context, seconds int) ([]budget, error) {
	dir, err := os.MkdirTemp("", "xsched-budgets-")
	if err != nil {
		return nil, fmt.Errorf("make a private folder: %w", err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(ctx)
	var children []*exec.Cmd
	defer func() {
		cancel()
		for _, c := range children {
			_ = c.Wait()
		}
	}()
	start := func(in io.Reader, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "XSCHED_DIR="+dir)
		cmd.Stdin = in
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 3 * time.Second
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		children = append(children, cmd)
		return nil
	}
	// Pdeathsig is of the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := start(nil, "bin/xsched", "serve", "--virtual", "--devices", "1", "--log-level", "error"); err != nil {
		return nil, err
	}
	client := api.NewClient(filepath.Join(dir, "control.sock"))
	defer client.Close()
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err = client.Version(ctx); err == nil {
			break
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			return nil, fmt.Errorf("wait for daemon: %w", err)
		}
	}
	if err := start(nil, "sh", "-c", "while :; do :; done"); err != nil {
		return nil, err
	}
	reader, writer := io.Pipe()
	defer writer.Close()
	if err := start(reader, "bin/xsched", "run", "--virtual", "--priority", "10", "--", "build/virtual/tenant", "--name", "high", "--kernel-us", "90"); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(writer, "rate 100\n"); err != nil {
		return nil, fmt.Errorf("drive tenant: %w", err)
	}
	select {
	case <-time.After(time.Duration(seconds) * time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	stats, err := client.Stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("read daemon's figures: %w", err)
	}
	_, _ = io.WriteString(writer, "quit\n")
	h := stats.BusyToDecision
	if h.Count < uint64(seconds)*30 {
		return nil, fmt.Errorf("measure busy to decision: only %d changes seen in %d s", h.Count, seconds)
	}
	note := fmt.Sprintf("P99 of %d, P50 %.1f us, max %.1f us, engine thread %s", h.Count, h.P50US, h.MaxUS, stats.Scheduling)
	return []budget{{"idle to busy, until decided", h.P99US, busyLimitUS, "us", note}}, nil
}
