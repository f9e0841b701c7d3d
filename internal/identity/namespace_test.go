// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/identity/identitytest"
)

const envDial = "XSCHED_TEST_DIAL"

// TestMain is also the program inside of the containers: it connects when told to, and stays until
// its input ends.
func TestMain(m *testing.M) {
	socket := os.Getenv(envDial)
	if socket == "" {
		os.Exit(m.Run())
	}
	line := make([]byte, 1)
	if _, err := os.Stdin.Read(line); err != nil {
		os.Exit(3)
	}
	network, address, _ := strings.Cut(socket, "=")
	c, err := net.Dial(network, address)
	if err != nil {
		fmt.Println(err)
		os.Exit(4)
	}
	fmt.Println("connected")
	_, _ = os.Stdin.Read(line)
	_ = c.Close()
}

// dial starts a child that connects to a listener. before runs when the child exists.
func dial(t *testing.T, address string, attr *syscall.SysProcAttr, before func(pid int)) *identitytest.Child {
	t.Helper()
	child := identitytest.Start(t, attr, []string{envDial + "=" + address})
	if before != nil {
		before(child.PID)
	}
	if _, err := child.In.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	if n, _ := child.Out.Read(answer); !strings.HasPrefix(string(answer[:n]), "connected") {
		t.Fatalf("the child says %q", answer[:n])
	}
	return child
}

func listenUnix(t *testing.T) *net.UnixListener {
	t.Helper()
	dir, err := os.MkdirTemp("", "xsched")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // other users connect
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.Chmod(l.Addr().String(), 0o666); err != nil { //nolint:gosec // other users connect
		t.Fatal(err)
	}
	return l
}

func accept(t *testing.T, l *net.UnixListener) (Peer, error) {
	t.Helper()
	_ = l.SetDeadline(time.Now().Add(10 * time.Second))
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p, err := OfConn(c)
	if p.PIDFD >= 0 {
		t.Cleanup(func() { _ = unix.Close(p.PIDFD) })
	}
	return p, err
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

// cgroupDir creates a cgroup for the test.
func cgroupDir(t *testing.T, owner int, elements ...string) string {
	t.Helper()
	dir := own().mountOf("")
	for _, e := range elements {
		dir = filepath.Join(dir, e)
		identitytest.Cgroup(t, dir)
	}
	if err := os.Chown(filepath.Dir(dir), owner, owner); err != nil && len(elements) > 1 {
		t.Fatal(err)
	}
	return dir
}

func into(t *testing.T, dir string) func(int) {
	return func(pid int) { t.Helper(); identitytest.Enter(t, dir, pid) }
}

func mapped(flags uintptr, outside ...int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: flags | syscall.CLONE_NEWUSER, Credential: &syscall.Credential{NoSetGroups: true}}
	for inside, uid := range outside {
		a.UidMappings = append(a.UidMappings, syscall.SysProcIDMap{ContainerID: inside, HostID: uid, Size: 1})
		a.GidMappings = append(a.GidMappings, syscall.SysProcIDMap{ContainerID: inside, HostID: uid, Size: 1})
	}
	return a
}

func TestPeerOnHost(t *testing.T) {
	l := listenUnix(t)
	child := dial(t, "unix="+l.Addr().String(), nil, nil)
	p, err := accept(t, l)
	if err != nil || p.User != OnHost(os.Getuid()) || p.PID != child.PID || p.PIDNamespace != 0 || p.Admin {
		t.Errorf("%+v, %v", p, err)
	}
	again, err := OfProcess(p.PIDFD)
	if err != nil || !reflect.DeepEqual(again, p) {
		t.Errorf("OfProcess: %+v, %v", again, err)
	}
	if Parent(p.PID) != os.Getpid() {
		t.Errorf("its parent is %d", Parent(p.PID))
	}
}

func TestPeerEnded(t *testing.T) {
	l := listenUnix(t)
	child := dial(t, "unix="+l.Addr().String(), nil, nil)
	child.End()
	if p, err := accept(t, l); !errors.Is(err, ErrEnded) || p.PIDFD >= 0 || p.User.Root() {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestPeerInNamespaces starts real containers: with each namespace, with and without a cgroup.
func TestPeerInNamespaces(t *testing.T) {
	needRoot(t)
	l := listenUnix(t)
	address := "unix=" + l.Addr().String()
	base := "xsched-test-" + strconv.Itoa(os.Getpid())
	scope := cgroupDir(t, 0, base, "docker-"+idA+".scope")
	container := "/" + base + "/docker-" + idA + ".scope"
	chosen := cgroupDir(t, 1000, base+"-user", "docker-"+idB+".scope")
	user := &syscall.Credential{Uid: 1000, Gid: 1000}
	for _, test := range []struct {
		name   string
		attr   *syscall.SysProcAttr
		before func(int)
		check  func(Peer) bool
	}{
		{"root in a container without namespaces", nil, into(t, scope), func(p Peer) bool {
			return p.User == User{Container: container} && !p.User.Root() && p.Admin
		}},
		{"a user of it in a PID namespace", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Credential: user}, into(t, scope), func(p Peer) bool {
			return p.User == User{UID: 1000, Container: container} && p.LocalPID == 1 && p.PIDNamespace != 0 && !p.Admin
		}},
		{"an unknown runtime", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, nil, func(p Peer) bool {
			return strings.HasPrefix(p.User.Container, "pid:[") && !p.User.Root() && p.Admin && p.LocalPID == 1
		}},
		{"its own cgroup namespace", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP}, nil, func(p Peer) bool {
			return strings.HasPrefix(p.User.Container, "cgroup:[") && !p.User.Root()
		}},
		{"root of a user namespace of root", mapped(syscall.CLONE_NEWPID, 165536), nil, func(p Peer) bool {
			return p.User.UID == 165536 && p.User.Namespace != 0 && p.User.Creator == 0 && p.Admin && !p.User.Root()
		}},
		{"uid 0 mapped to 0", mapped(0, 0), nil, func(p Peer) bool {
			return p.User.UID == 0 && p.User.Namespace != 0 && !p.User.Root()
		}},
		{"a user in a cgroup whose name he chose", &syscall.SysProcAttr{Credential: user}, into(t, chosen), func(p Peer) bool {
			return p.User == OnHost(1000)
		}},
		{"root with a mount namespace, as in a service", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}, nil, func(p Peer) bool {
			return p.User.Root()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			child := dial(t, address, test.attr, test.before)
			p, err := accept(t, l)
			if err != nil || p.PID != child.PID || !test.check(p) {
				t.Errorf("%+v, %v", p, err)
			}
			child.End()
		})
	}
}

// TestUnshare runs util-linux's unshare as another user: nothing that he makes of himself has rights
// of others, or its own limits.
func TestUnshare(t *testing.T) {
	needRoot(t)
	tool, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("needs unshare of util-linux")
	}
	l := listenUnix(t)
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(l.Addr().String()), "program")
	if err := os.WriteFile(program, exe, 0o755); err != nil { //nolint:gosec // another user runs it
		t.Fatal(err)
	}
	seen := map[User]bool{}
	for _, flags := range [][]string{{"-U"}, {"-Ur"}, {"-Urpf"}, {"-UrpfC", tool, "-Ur"}} {
		cmd := exec.Command(tool, append(flags, program)...)
		cmd.Env = []string{envDial + "=unix=" + l.Addr().String()}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		cmd.Dir = "/"
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = in.Write([]byte("\n"))
		p, err := accept(t, l)
		if err != nil || p.User.Creator != 1000 || p.User.UID != 1000 || p.User.Account() != OnHost(1000) ||
			!OnHost(1000).Owns(p.User) || p.Owns(OnHost(1000)) || p.Owns(User{}) || seen[p.User] {
			t.Errorf("%v: %+v, %v", flags, p, err)
		}
		seen[p.User] = true
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// TestOfSocket finds the process behind a TCP connection.
func TestOfSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	child := dial(t, "tcp="+l.Addr().String(), nil, nil)
	inode := socketOf(t, child.PID)
	p, err := OfSocket(inode, os.Getuid())
	if err != nil || p.User != OnHost(os.Getuid()) || p.PID != child.PID {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := OfSocket(inode, os.Getuid()+1); !errors.Is(err, ErrNoHolder) || p.User != Nobody {
		t.Errorf("as another user: %+v, %v", p, err)
	}
	child.End()
	if p, err := OfSocket(inode, os.Getuid()); !errors.Is(err, ErrNoHolder) {
		t.Errorf("after its end: %+v, %v", p, err)
	}
}

// TestOfSocketInContainer: root in a container that shares the host's network is not root.
func TestOfSocketInContainer(t *testing.T) {
	needRoot(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	child := dial(t, "tcp="+l.Addr().String(), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, nil)
	p, err := OfSocket(socketOf(t, child.PID), 0)
	if err != nil || p.User.Root() || !strings.HasPrefix(p.User.Container, "pid:[") {
		t.Errorf("%+v, %v", p, err)
	}
}

// socketOf returns the inode of a process's socket.
func socketOf(t *testing.T, pid int) uint64 {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		link, _ := os.Readlink(filepath.Join(dir, f.Name()))
		if n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]"), 10, 64); err == nil {
			return n
		}
	}
	t.Fatal("it has no socket")
	return 0
}

func BenchmarkOfConn(b *testing.B) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "")
	defer f.Close()
	defer unix.Close(fds[1])
	c, err := net.FileConn(f)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		p, err := OfConn(c.(*net.UnixConn))
		if err != nil {
			b.Fatal(err)
		}
		_ = unix.Close(p.PIDFD)
	}
}
