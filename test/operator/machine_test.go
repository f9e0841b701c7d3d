// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inMachine names a test that runs inside the machine's namespaces.
const inMachine = "XSCHED_TEST_IN_MACHINE"

// machine is a minimal Debian system with mounts, processes and network of its own. Changes go to
// memory and end with the test.
type machine struct {
	t    *testing.T
	root string
}

// enterMachine returns the machine inside its namespaces. Outside, it runs the test again in them, calls
// prepare before and returns nil.
func enterMachine(t *testing.T, prepare func()) *machine {
	t.Helper()
	lower, err := filepath.Abs(filepath.Join(root, ".setup", "debian"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(inMachine) == t.Name() {
		return newMachine(t, lower)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	if _, err := os.Stat(lower + ".version"); err != nil {
		t.Skip("no Debian root: run make setup-root")
	}
	prepare()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v", "-test.count", "1")
	cmd.Env = append(os.Environ(), inMachine+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("in the machine: %v", err)
	}
	return nil
}

func newMachine(t *testing.T, lower string) *machine {
	t.Helper()
	m := &machine{t: t, root: "/mnt/root"}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mount := func(source, target, kind string, flags uintptr, data string) {
		t.Helper()
		check(os.MkdirAll(target, 0o755))
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			t.Fatalf("mount %s: %v", target, err)
		}
	}
	check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755")
	for _, folder := range []string{"upper", "work", "root"} {
		check(os.Mkdir("/mnt/"+folder, 0o755))
	}
	if err := unix.Mount("overlay", m.root, "overlay", 0, "lowerdir="+lower+",upperdir=/mnt/upper,workdir=/mnt/work"); err != nil {
		if out, err := exec.Command("cp", "-a", lower+"/.", m.root).CombinedOutput(); err != nil {
			t.Fatalf("copy the root: %v\n%s", err, out)
		}
	}
	mount("proc", m.path("proc"), "proc", 0, "")
	mount("tmpfs", m.path("run"), "tmpfs", 0, "mode=755")
	mount("tmpfs", m.path("tmp"), "tmpfs", 0, "mode=1777")
	mount("tmpfs", m.path("dev"), "tmpfs", 0, "mode=755")
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		check(os.WriteFile(m.path("dev", name), nil, 0o666))
		check(unix.Mount("/dev/"+name, m.path("dev", name), "", unix.MS_BIND, ""))
	}
	mount("tmpfs", m.path("dev/shm"), "tmpfs", 0, "mode=1777")
	check(os.Mkdir(m.path("tmp/home"), 0o755))
	check(os.Chown(m.path("tmp/home"), newcomer, newcomer))
	loopbackUp(t)
	return m
}

func loopbackUp(t *testing.T) {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.root}, parts...)...)
}

// command is a command inside, by a user, with a plain environment.
func (m *machine) command(uid int, argv ...string) *exec.Cmd {
	m.t.Helper()
	home := "/root"
	if uid != 0 {
		home = "/tmp/home"
	}
	cmd := exec.Command("/usr/bin/env", append([]string{"-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "DEBIAN_FRONTEND=noninteractive"}, argv...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	return cmd
}

// run runs a command to its end and returns what it printed.
func (m *machine) run(uid int, argv ...string) string {
	m.t.Helper()
	out, err := m.command(uid, argv...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// copyIn puts a file of this machine into the other one.
func (m *machine) copyIn(from, to string) {
	m.t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path(to), content, 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// files lists the paths of the disk; folders end with a slash. What dpkg keeps about packages, the logs
// of other programs, and what programs wrote to memory, does not count.
func (m *machine) files() []string {
	m.t.Helper()
	var all []string
	err := filepath.WalkDir(m.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path := strings.TrimPrefix(name, m.root)
		switch path {
		case "/proc", "/run", "/tmp", "/dev", "/sys", "/var/lib/dpkg":
			return fs.SkipDir
		}
		if log, found := strings.CutPrefix(path, "/var/log/"); found && log != "xsched" && !strings.HasPrefix(log, "xsched/") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			path += "/"
		}
		all = append(all, path)
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// added returns what now has and before has not, and the reverse.
func changed(before, now []string) (added, gone []string) {
	for _, path := range now {
		if _, found := slices.BinarySearch(before, path); !found {
			added = append(added, path)
		}
	}
	for _, path := range before {
		if _, found := slices.BinarySearch(now, path); !found {
			gone = append(gone, path)
		}
	}
	return added, gone
}

// unit is the [Service] section of an installed unit.
type unit struct {
	m        *machine
	name     string
	settings map[string]string
	socket   *net.UnixConn
	said     chan string // by the service
	cmd      *exec.Cmd
	log      lockedBuffer
}

func (m *machine) unit(name string) *unit {
	m.t.Helper()
	text, err := os.ReadFile(m.path("usr/lib/systemd/system", name))
	if err != nil {
		m.t.Fatal(err)
	}
	u := &unit{m: m, name: name, settings: map[string]string{}, said: make(chan string, 4096)}
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		if key, value, found := strings.Cut(line, "="); found && section == "[Service]" && !strings.HasPrefix(line, "#") {
			u.settings[key] = value
		}
	}
	// In the abstract namespace, which is that of the machine's network.
	u.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@" + name, Net: "unixgram"})
	if err != nil {
		m.t.Fatal(err)
	}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := u.socket.Read(buffer)
			if err != nil {
				return
			}
			u.said <- string(buffer[:n])
		}
	}()
	m.t.Cleanup(func() {
		_ = u.socket.Close()
		if m.t.Failed() {
			text := u.log.String()
			m.t.Logf("log of %s:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
	return u
}

// start starts the service as its unit says, with more arguments as a drop-in would add, and waits until
// it is ready. The watchdog's period is short, so that the test sees it fed.
func (u *unit) start(more ...string) {
	t := u.m.t
	t.Helper()
	for key, parent := range map[string]string{"RuntimeDirectory": "run", "StateDirectory": "var/lib", "CacheDirectory": "var/cache", "LogsDirectory": "var/log"} {
		if name := u.settings[key]; name != "" {
			if err := os.MkdirAll(u.m.path(parent, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if u.settings["Type"] != "notify" {
		t.Fatalf("%s: Type=%s", u.name, u.settings["Type"])
	}
	argv := append(strings.Fields(u.settings["ExecStart"]), more...)
	environment := []string{"NOTIFY_SOCKET=@" + u.name}
	if u.settings["WatchdogSec"] != "" {
		environment = append(environment, "WATCHDOG_USEC=200000")
	}
	u.cmd = u.m.command(0, append(environment, argv...)...)
	u.cmd.Stderr = &u.log
	start(t, u.cmd)
	u.await("READY=1")
}

// await waits for a message of the service.
func (u *unit) await(message string) {
	u.m.t.Helper()
	eventually(u.m.t, fmt.Sprintf("%s says %s", u.name, message), func() bool {
		select {
		case got := <-u.said:
			return got == message
		default:
			return false
		}
	})
}

// stop ends the service as `systemctl stop` does.
func (u *unit) stop() {
	u.m.t.Helper()
	_ = u.cmd.Process.Signal(syscall.SIGTERM)
	if err := u.cmd.Wait(); err != nil {
		u.m.t.Errorf("%s: %v", u.name, err)
	}
}
