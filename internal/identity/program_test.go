// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

func TestProgramOfSelf(t *testing.T) {
	p := ProgramOf(os.Getpid())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start, err := Started(os.Getpid())
	if err != nil || p.Executable != self || p.Start != start || start == 0 || !slices.Contains(p.Groups, os.Getgid()) {
		t.Errorf("%+v, %v", p, err)
	}
	if p := ProgramOf(1 << 30); p.Start != 0 || p.Executable != "" || p.Groups != nil || p.CgroupByRoot {
		t.Errorf("no process: %+v", p)
	}
	if boot, err := BootID(); boot == "" || err != nil {
		t.Error("no boot id")
	}
}

// TestExecutableInANamespace: a user mounts a trusted program's path over its own, in a mount namespace.
// The path in /proc is that of the trusted program; the file is not.
func TestExecutableInANamespace(t *testing.T) {
	dir := t.TempDir()
	trusted := filepath.Join(dir, "trusted")
	for _, name := range []string{trusted, filepath.Join(dir, "mine")} {
		text, err := os.ReadFile("/bin/sleep")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	start := func(spoofed bool) int {
		script := `exec "$0/trusted" 60`
		cmd := exec.Command("/bin/sh", "-c", script, dir)
		if spoofed {
			cmd = exec.Command("/bin/sh", "-c", `mount --bind "$0/mine" "$0/trusted" && `+script, dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
			}
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		awaitLink(t, cmd.Process.Pid, trusted)
		return cmd.Process.Pid
	}
	if p := ProgramOf(start(false)); p.Executable != trusted {
		t.Errorf("on the host: %+v", p)
	}
	if p := ProgramOf(start(true)); p.Executable != "" {
		t.Errorf("another file at the path of a trusted one: %+v", p)
	}
}

func TestUnit(t *testing.T) {
	for cgroup, want := range map[string]string{
		"/system.slice/triton.service":                                    "triton.service",
		"/system.slice/triton.service/main":                               "triton.service",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope": "x.scope",
		"/user.slice": "", "/": "", "": "",
	} {
		if got := (&Program{Cgroup: cgroup}).Unit(); got != want {
			t.Errorf("%s: %q, want %q", cgroup, got, want)
		}
	}
}

func TestParseStart(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"
	for _, name := range []string{"(a)", "(a b)", "(a) S 1 1 (x)", "()"} {
		if start, err := parseStart("77 " + name + rest); err != nil || start != 4711 {
			t.Errorf("%s: %d, %v", name, start, err)
		}
	}
	for _, bad := range []string{"", "77", "77 (a) S", "77 (a" + rest} {
		if _, err := parseStart(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// awaitLink waits until a process runs a path.
func awaitLink(t *testing.T, pid int, path string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); name == path {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d does not run %s", pid, path)
		}
	}
}
