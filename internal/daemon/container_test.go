// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/api"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/daemon"
	"xsched/internal/identity"
	"xsched/internal/identity/identitytest"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// insideProgram runs in a container of TestContainers, with the clients' folder alone. It executes
// one request per line of its input, and answers with one line.
func insideProgram(dir string) error {
	ctl := client.New(filepath.Join(dir, control.ControlSocket))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		f := strings.Fields(lines.Text())
		pid := 0
		if len(f) > 1 {
			pid, _ = strconv.Atoi(f[1])
		}
		if text, err := inside(dir, ctl, f[0], pid); err != nil {
			fmt.Println("refused:", err)
		} else {
			fmt.Println("ok", text)
		}
	}
	return nil
}

// joined keeps the sessions of the program in a container: an unreachable connection is closed.
var joined []*sessiontest.Client

func inside(dir string, ctl *client.Client, what string, pid int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	switch what {
	case "join":
		h := wire.Hello{PID: uint32(os.Getpid())}
		copy(h.Command[:], "program --password secret")
		c, err := sessiontest.Dial(filepath.Join(dir, control.ClientSocket), h)
		if err == nil {
			joined = append(joined, c)
			c.Queue(0)
		}
		if err == nil && pid == 2 { // also on the second GPU
			c.Page.CreateQueue(1, 0, 2<<8)
			c.Ring()
		}
		return strconv.Itoa(os.Getpid()), err
	case "map": // as a program on the first virtual GPU that does not connect
		socket := filepath.Join(dir, "..", "..", "none") // of startGrants: no other daemon of this machine sees the mapping
		fd, err := unix.MemfdCreate("vgpu:0:"+sessiontest.GPU.String()+":"+socket, 0)
		if err == nil {
			err = unix.Ftruncate(fd, 4096)
		}
		if err == nil {
			_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		}
		return "", err
	case "list":
		l, err := ctl.List(ctx)
		text := ""
		for _, p := range l.Processes {
			text += fmt.Sprintf("%d %q in %s;", p.PID, p.Command, filepath.Base(p.Container))
		}
		return text, err
	case "devices":
		l, err := ctl.Devices(ctx)
		text := ""
		for _, d := range l.Devices {
			text += fmt.Sprintf("%d processes, %d queues;", d.Processes, d.Queues)
		}
		return text, err
	case "hint":
		r, err := ctl.Hint(ctx, control.HintRequest{PID: pid, Priority: new(int32(-3))})
		return fmt.Sprint(r.PID, r.Priority), err
	case "raise":
		_, err := ctl.Hint(ctx, control.HintRequest{PID: pid, Priority: new(int32(5))})
		return "", err
	case "grants":
		_, err := ctl.SetGrants(ctx, control.GrantsRequest{Source: "dra"})
		return "", err
	case "read-grants":
		_, err := ctl.Grants(ctx)
		return "", err
	case "pods":
		l, err := ctl.List(ctx)
		text := ""
		for _, p := range l.Processes {
			text += fmt.Sprintf("%s %s;", control.PodName(p.Namespace, p.Pod, p.PodContainer), p.Class)
		}
		return text, err
	case "suspend":
		r, err := ctl.Suspend(ctx, pid)
		return r.Message, err
	case "resume":
		r, err := ctl.Resume(ctx, pid)
		return r.Message, err
	case "attach":
		r, err := ctl.Attach(ctx, pid)
		return r.Message, err
	case "queues":
		_, err := ctl.Queues(ctx, pid)
		return "", err
	case "policy":
		_, err := ctl.SetPolicy(ctx, control.PolicyRequest{Name: "RR"})
		return "", err
	case "stats":
		_, err := ctl.Stats(ctx)
		return "", err
	case "journal":
		j, err := ctl.Journal(ctx, control.JournalRequest{})
		text := ""
		for _, e := range j.Entries {
			text += fmt.Sprintf("%s %d %d %s;", e.Kind, e.PID, e.ByPID, e.Text)
		}
		return text, err
	case "history":
		h, err := ctl.History(ctx, control.HistoryRequest{})
		text := "" // without times, which may contain any digits
		for _, d := range h.Devices {
			for _, span := range d.Spans {
				text += fmt.Sprintf("%d %s;", span.PID, span.Name)
			}
			for _, series := range d.Series {
				text += fmt.Sprintf("%d %s;", series.PID, series.Name)
			}
		}
		return text, err
	case "child": // the same through a child, as a program calls `xsched hint self`
		out, err := exec.Command("/proc/self/exe", "inside-child", dir).Output()
		return strings.TrimSpace(string(out)), err
	}
	return "", errors.New("unknown request")
}

// container is a child in namespaces and a cgroup of its own.
type container struct {
	t   *testing.T
	pid int
	in  io.Writer
	out *bufio.Scanner
}

func (c *container) ask(format string, args ...any) string {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", args...); err != nil {
		c.t.Fatal(err)
	}
	if !c.out.Scan() {
		c.t.Fatalf("no answer to "+format, args...)
	}
	return c.out.Text()
}

func (c *container) want(answer, format string, args ...any) string {
	c.t.Helper()
	got := c.ask(format, args...)
	if !strings.Contains(got, answer) {
		c.t.Errorf(format+": %s, want %q", append(args, got, answer)...)
	}
	return got
}

// startContainer starts a child in new namespaces, and with an id in the cgroup of a container.
func startContainer(t *testing.T, dir, id string, uid int, flags uintptr) *container {
	t.Helper()
	if id == "" {
		return startIn(t, dir, uid, flags)
	}
	return startIn(t, dir, uid, flags, "docker-"+strings.Repeat(id, 64)[:64]+".scope")
}

// startIn starts a child in new namespaces and in nested cgroups.
func startIn(t *testing.T, dir string, uid int, flags uintptr, cgroups ...string) *container {
	t.Helper()
	cgroup := ""
	if len(cgroups) > 0 {
		cgroup = "/sys/fs/cgroup"
		if _, err := os.Stat(cgroup + "/unified/cgroup.procs"); err == nil {
			cgroup += "/unified"
		}
	}
	for _, name := range cgroups {
		cgroup = filepath.Join(cgroup, name)
		if _, err := os.Stat(cgroup); err != nil {
			identitytest.Cgroup(t, cgroup)
		}
	}
	attr := &syscall.SysProcAttr{Cloneflags: flags, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	child := identitytest.Start(t, attr, nil, "inside", dir)
	if cgroup != "" {
		identitytest.Enter(t, cgroup, child.PID)
	}
	return &container{t, child.PID, child.In, bufio.NewScanner(child.Out)}
}

// sharedDir makes a folder in which other users may connect to a daemon. It skips the test without root.
func sharedDir(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "xsched")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // other users connect
		t.Fatal(err)
	}
	return dir
}

// TestContainers runs tenants in real namespaces and cgroups, with the clients' folder only. Root of
// a container has no rights outside of it, and equal uids in two containers are different users.
func TestContainers(t *testing.T) {
	dir := sharedDir(t)
	// The GPU of the queues is listed, though its device does not run.
	if err := os.MkdirAll(filepath.Join(dir, "proc/driver/nvidia/gpus", sessiontest.GPU.String()), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Start(daemon.Options{Dir: filepath.Join(dir, "d"), Virtual: true, VGPUSocket: filepath.Join(dir, "none"), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	tenants, err := d.ListenTenants()
	if err != nil {
		t.Fatal(err)
	}
	host, err := d.ListenControl()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	go func() { _ = api.Serve(ctx, tenants, d.Control(), api.Options{Log: quiet}) }()
	go func() { _ = api.Serve(ctx, host, d.Control(), api.Options{Log: quiet}) }()
	ctl := client.New(filepath.Join(dir, "d", control.ControlSocket))
	clients := filepath.Join(dir, "d", control.ClientDir)

	const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWIPC
	a := startContainer(t, clients, "a", 0, namespaces)
	b := startContainer(t, clients, "b", 0, namespaces)
	bare := startContainer(t, clients, "c", 0, 0)    // as with --pid=host
	plain := startContainer(t, clients, "", 1000, 0) // no container
	user := startContainer(t, clients, "d", 1000, namespaces)
	for _, c := range []*container{a, b, user} {
		c.want("ok 1", "join") // PID 1 of its namespace
	}
	// A neighbor in the same PID namespace learns no PID of the host.
	var ns unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", a.pid), &ns); err != nil {
		t.Fatal(err)
	}
	neighbor := control.Caller{User: identity.User{UID: 5, Container: "/docker/x"}, PIDNamespace: ns.Ino}
	if _, err := d.Suspend(ctx, neighbor, control.ProcessRequest{PID: 1}); err == nil || !strings.HasPrefix(err.Error(), "process 1 does not belong") {
		t.Errorf("a neighbor's request: %v", err)
	}
	bare.want("ok", "join")
	plain.want("ok", "join")

	t.Run("nobody is root", func(t *testing.T) {
		for _, c := range []*container{a, b, bare, user, plain} {
			c.want("only root and the daemon's user", "policy")
			c.want("the limit of uid", "raise %d", control.Self)
		}
		for _, c := range []*container{a, b, bare, user} {
			c.want("refused: statistics are not available in a container", "stats")
		}
		plain.want("ok", "stats")
	})
	t.Run("self", func(t *testing.T) {
		for _, c := range []*container{a, b, user} {
			c.want("ok 1 -3", "hint %d", control.Self)
			c.want("ok suspended process 1", "suspend %d", control.Self)
			c.want("ok resumed process 1", "resume %d", 1) // translated
			c.want("ok ok 1 -3", "child")
		}
	})
	t.Run("no PID of another namespace", func(t *testing.T) {
		for _, what := range []string{"hint", "suspend", "resume", "attach", "queues"} {
			a.want("of this PID namespace is not managed", what+" %d", b.pid) // a number of the host
			a.want("of this PID namespace is not managed", what+" %d", os.Getpid())
			bare.want("does not belong to this container", what+" %d", b.pid)
			bare.want("refused", what+" %d", os.Getpid())
			user.want("refused", what+" %d", plain.pid) // the same uid
			plain.want("belongs to uid 1000 in container docker-d", what+" %d", user.pid)
			plain.want("belongs to uid 0 in container docker-a", what+" %d", a.pid)
		}
		l, err := ctl.List(ctx)
		if err != nil || len(l.Processes) != 5 {
			t.Fatalf("%+v, %v", l, err)
		}
		for _, p := range l.Processes {
			if p.Held || p.PID == b.pid && p.Priority != -3 || p.PID == bare.pid && p.Priority != 0 {
				t.Errorf("changed: %+v", p)
			}
		}
	})
	t.Run("command lines", func(t *testing.T) {
		for _, c := range []*container{a, b, user} {
			if got := c.want(`--password secret" in docker-`, "list"); strings.Count(got, ";") != 1 {
				t.Error(got)
			}
		}
		if got := plain.ask("list"); strings.Count(got, ";") != 5 || strings.Count(got, "secret") != 1 {
			t.Errorf("a user of the host sees %s", got)
		}
		l, _ := ctl.List(ctx)
		for _, p := range l.Processes {
			if p.Command == "" {
				t.Errorf("root does not see %+v", p)
			}
		}
	})
	t.Run("devices", func(t *testing.T) {
		const all = "ok 5 processes, 5 queues;"
		for end := time.Now().Add(5 * time.Second); plain.ask("devices") != all && time.Now().Before(end); { // the queues are new
			time.Sleep(10 * time.Millisecond)
		}
		plain.want(all, "devices")
		for _, c := range []*container{a, b, bare, user} {
			c.want("ok 1 processes, 1 queues;", "devices")
		}
	})
	t.Run("journal", func(t *testing.T) {
		for _, c := range []*container{a, b, user} {
			got := c.want("joined 1 0 testram joined;", "journal")
			got = strings.Join(slices.DeleteFunc(strings.Split(got, ";"), func(s string) bool {
				return strings.Contains(s, "was refused") // has the numbers that the program sent
			}), ";")
			for _, hidden := range []string{"secret", fmt.Sprint(a.pid), fmt.Sprint(b.pid), fmt.Sprint(plain.pid)} {
				word := regexp.MustCompile(`\b` + hidden + `\b`)
				if history := c.ask("history"); word.MatchString(got) || word.MatchString(history) {
					t.Errorf("%s in %s or in %s", hidden, got, history)
				}
			}
			if strings.Count(got, "joined 1 ") != 1 || strings.Contains(got, "another user") {
				t.Errorf("programs of others: %s", got)
			}
			c.want("suspended testram;", "journal")
		}
		got := plain.ask("journal")
		if strings.Count(got, "joined") != 2*5 || strings.Count(got, "testram joined") != 1 || strings.Contains(got, "secret") {
			t.Errorf("a user of the host sees %s", got)
		}
		if !strings.Contains(got, "was refused: only root and the daemon's user") {
			t.Errorf("refused changes are missing: %s", got)
		}
	})
	t.Run("host only", func(t *testing.T) {
		conn := nobodyInContainer(t, clients, "/metrics", "/api/v1/events")
		for path, answer := range conn {
			if !strings.Contains(answer, "403") {
				t.Errorf("%s: %s", path, answer)
			}
		}
	})
}

// nobodyInContainer requests paths as a process in a PID namespace of its own.
func nobodyInContainer(t *testing.T, dir string, paths ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, path := range paths {
		cmd := exec.Command("/proc/self/exe", "inside-get", dir, path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		answer, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		out[path] = string(answer)
	}
	return out
}

// insideGet prints the status of a GET request.
func insideGet(dir, path string) error {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://xsched"+path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := client.Transport(filepath.Join(dir, control.ControlSocket)).RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	fmt.Println(answer.Status)
	return nil
}
