// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"xsched/internal/clock"
)

// now is CLOCK_MONOTONIC in ns, the clock of the victims.
func now() int64 { return int64(clock.Now()) }

// usage is what a process has used.
type usage struct {
	cpu     time.Duration
	rss     int64 // bytes
	threads int
	files   int
	written int64 // bytes in files. Replies on sockets are no writes: their users pay for them with CPU time
}

// ticks is USER_HZ, the unit of times in /proc, which is 100 on all our platforms.
const ticks = 100

// usageOf reads what a process has used.
func usageOf(pid int) (u usage, err error) {
	folder := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return u, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 22 {
		return u, fmt.Errorf("read %s/stat: %d fields", folder, len(f))
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	// Fields 14, 15, 16, 17, 20 and 24 of proc(5); f begins with the third.
	u.cpu = time.Duration(number(11)+number(12)+number(13)+number(14)) * time.Second / ticks
	u.threads, u.rss = int(number(17)), number(21)*int64(os.Getpagesize())
	if entries, err := os.ReadDir(folder + "/fd"); err == nil {
		u.files = len(entries)
	}
	if text, err := os.ReadFile(folder + "/io"); err == nil {
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "write_bytes: "); ok {
				u.written, _ = strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			}
		}
	}
	return u, nil
}

// treeCPU adds up the CPU time of a process and its descendants, with the children that ended. It
// reads no other process: a stranger's may block its reader.
func treeCPU(pid int) time.Duration {
	u, err := usageOf(pid)
	if err != nil {
		return 0
	}
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		for child := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				u.cpu += treeCPU(n)
			}
		}
	}
	return u.cpu
}

// ask bounds a request to the daemon.
func ask[T any](limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return f(ctx)
}

// askAbout is ask for a request with one argument.
func askAbout[A, T any](limit time.Duration, f func(context.Context, A) (T, error), a A) (T, error) {
	return ask(limit, func(ctx context.Context) (T, error) { return f(ctx, a) })
}
