// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"xsched/internal/control"
	"xsched/internal/doctor"
	"xsched/internal/embedded"
	"xsched/internal/top"
	vdevice "xsched/internal/virtual/device"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"xsched":  func() { os.Exit(Main(os.Args)) },
		"xcli":    func() { os.Exit(Main(os.Args)) },
		"xserver": func() { os.Exit(Main(os.Args)) },

		"queue_finder": func() { os.Exit(Main(os.Args)) },
		"x11_launcher": func() { os.Exit(Main(os.Args)) },
		"x11_monitor":  func() { os.Exit(Main(os.Args)) },
	})
}

func TestScripts(t *testing.T) {
	if embedded.Digest(embedded.Shim) == "" && os.Getenv("XSCHED_CI") == "1" {
		t.Fatal("the shim is not built; run `make build` first")
	}
	t.Setenv("XSCHED_CACHE", t.TempDir()) // the cache of this process
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("XSCHED_DIR", filepath.Join(env.WorkDir, "d"))
			env.Setenv("XSCHED_CACHE", filepath.Join(env.WorkDir, "cache"))
			env.Defer(func() { // a device survives its daemon, but must not survive a failed script
				if client, err := vdevice.Dial(filepath.Join(env.WorkDir, "d", "vgpu.sock")); err == nil {
					_ = client.Quit()
					_ = client.Close()
				}
			})
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "built": // the C artefacts are embedded
				return embedded.Digest(embedded.Shim) != "" && embedded.Digest(embedded.Tenant) != "", nil
			case "mounts": // a private mount is possible
				return exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt").Run() == nil, nil
			}
			return false, errors.New("unknown condition")
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"failure": failure,
			"await":   await,

			"enddevice": endDevice,
			"agrees":    agrees,

			"busyport": busyPort,
			"freeport": freePort,
			"tool":     tool,
			"tenant":   tenant,
			"pause":    pause,
			"shows":    shows,
		},
	})
}

// exits CODE CMD...: the command ends with exactly this code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		failed, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = failed.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// failure CODE TEXT CMD...: the command prints only one line "xsched: cause; remedy" that contains
// TEXT, and exits with this code.
func failure(ts *testscript.TestScript, _ bool, args []string) {
	exits(ts, false, append([]string{args[0]}, args[2:]...))
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "xsched: ") {
		ts.Fatalf("not one line of an error: %q", text)
	}
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%q is not in %q", args[1], text)
	}
	if !strings.Contains(text, "; ") && !strings.Contains(text, ": known are ") {
		ts.Fatalf("no remedy in %q", text)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("standard output is not empty: %q", out)
	}
}

// await CMD...: repeats the command for up to 10 s until it succeeds.
func await(ts *testscript.TestScript, _ bool, args []string) {
	limit := time.Now().Add(10 * time.Second)
	for {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			ts.Fatalf("%s: %v", strings.Join(args, " "), err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// agrees: status reports what the doctor calls missing, and nothing is well with it. It holds on any host.
func agrees(ts *testscript.TestScript, _ bool, _ []string) {
	var report doctor.Report
	_ = ts.Exec("xsched", "doctor", "--json") // fails where something is missing
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &report))
	err := ts.Exec("xsched", "status", "--json")
	var status top.Status
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &status))
	for _, c := range report.Checks {
		if c.Status == doctor.Missing && !slices.Contains(status.Problems, control.Problem{Cause: c.Name + ": " + c.Detail, Remedy: c.Remedy}) {
			ts.Fatalf("status lacks %+v: %+v", c, status.Problems)
		}
	}
	if report.OK != status.Healthy || report.OK != (err == nil) {
		ts.Fatalf("doctor %v, status %v (%v)", report.OK, status.Healthy, err)
	}
}

// endDevice SOCKET: ends the virtual GPU behind the socket and waits for it.
func endDevice(ts *testscript.TestScript, _ bool, args []string) {
	client, err := vdevice.Dial(args[0])
	ts.Check(err)
	defer client.Close()
	_ = client.Quit() // the device may exit before it replies
	for range 500 {
		if _, err := os.Stat(args[0]); os.IsNotExist(err) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	ts.Fatalf("the device at %s did not end", args[0])
}
