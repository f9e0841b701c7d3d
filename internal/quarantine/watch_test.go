// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ownProcess returns the newest quarantine process of this one.
func ownProcess(t *testing.T) (pid int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		name, _ := os.ReadFile(dir + "/cmdline")
		stat, _ := os.ReadFile(dir + "/stat")
		fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))
		if strings.TrimRight(string(name), "\x00") == processName && len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			n, _ := strconv.Atoi(filepath.Base(dir))
			pid = max(pid, n)
		}
	}
	if pid == 0 {
		t.Fatal("no quarantine process")
	}
	return pid
}

// A process that is stopped gives no sign of life, and goes on to give them when it continues.
func TestStoppedProcessLooksDead(t *testing.T) {
	inner, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(inner)
	defer func() { _ = l.Close() }()
	var last atomic.Int64
	began := time.Now()
	age := func() time.Duration { return time.Since(began) - time.Duration(last.Load()) }
	go Watch(t.Context(), func() { last.Store(int64(time.Since(began))) })
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the last beat was %v ago", what, age())
			}
		}
	}
	await("it works", func() bool { return last.Load() > 0 })
	pid := ownProcess(t)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	await("it is stopped", func() bool { return age() > 2*pingPeriod+answerTime })
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await("it works again", func() bool { return age() < pingPeriod/2 })
}
