// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrEnded reports a process that ended before it was identified.
var ErrEnded = errors.New("the process has ended")

// unknownNamespace stands for a user namespace that the daemon may not read.
const unknownNamespace = ^uint64(0)

// maxNesting is the kernel's bound on nested user and PID namespaces.
const maxNesting = 32

// facts is what /proc says about a process, relative to this process. An inode of 0 stands for this
// process's own namespace.
type facts struct {
	uid int
	// user is the outermost user namespace below this process's one; creator made it. nested: the
	// process is in a namespace below that. root is the uid that is 0 inside; -1: none.
	user        uint64
	creator     int
	nested      bool
	root        int
	pid         uint64 // its PID namespace
	outerPID    uint64 // the outermost PID namespace below this process's one
	cgroup      uint64 // its cgroup namespace
	hierarchies []hierarchy
}

// observer reads facts. Tests replace its folders.
type observer struct {
	proc            string
	user, pid       uint64 // own namespaces
	cgroup          uint64
	container       string // own container
	inPod           bool   // see PodVariable
	mounts          []cgroupMount
	foreignProc     bool // /proc belongs to another PID namespace
	privilegedStats func(dir string) (uid int, mode uint32, err error)
}

type cgroupMount struct{ name, dir string }

// own returns the observer of this process. Its namespaces don't change.
var own = sync.OnceValue(func() *observer { return newObserver("/proc") })

func newObserver(proc string) *observer {
	o := &observer{proc: proc, privilegedStats: statDir, inPod: PodUID(os.Getenv(PodVariable)) != ""}
	if self, err := os.Readlink(proc + "/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		o.foreignProc = true
	}
	for kind, into := range map[string]*uint64{"user": &o.user, "pid": &o.pid, "cgroup": &o.cgroup} {
		var st unix.Stat_t
		if unix.Stat(proc+"/self/ns/"+kind, &st) == nil {
			*into = st.Ino
		}
	}
	text, _ := os.ReadFile(proc + "/self/mountinfo")
	o.mounts = parseMounts(string(text))
	text, _ = os.ReadFile(proc + "/self/cgroup")
	o.container, _ = o.findContainer(parseCgroups(string(text)))
	return o
}

func statDir(dir string) (int, uint32, error) {
	var st unix.Stat_t
	err := unix.Lstat(dir, &st)
	return int(st.Uid), st.Mode, err
}

// parseMounts finds the mounts of whole cgroup hierarchies in /proc/self/mountinfo.
func parseMounts(text string) []cgroupMount {
	var out []cgroupMount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 || l[3] != "/" {
			continue
		}
		switch r[0] {
		case "cgroup2":
			out = append(out, cgroupMount{"", l[4]})
		case "cgroup":
			out = append(out, cgroupMount{r[2], l[4]})
		}
	}
	return out
}

// mountOf returns the folder of a hierarchy; empty: unknown.
func (o *observer) mountOf(name string) string {
	for _, m := range o.mounts {
		if m.name == name {
			return m.dir
		}
		if m.name == "" || name == "" {
			continue
		}
		options := strings.Split(m.name, ",")
		if !slices.ContainsFunc(strings.Split(name, ","), func(c string) bool { return !slices.Contains(options, c) }) {
			return m.dir
		}
	}
	return ""
}

// findContainer returns the innermost container of a process. created: root, not a user, created the
// outermost one. A name in a cgroup that belongs to a user proves nothing, because that user chose it.
func (o *observer) findContainer(all []hierarchy) (name string, created bool) {
	for _, h := range all {
		outer, inner := containers(h.path)
		if outer == "" {
			continue
		}
		if o.createdByRoot(h, outer) {
			return h.label(inner), true
		}
		if name == "" {
			name = h.label(inner)
		}
	}
	return name, false
}

// createdByRoot reports whether only root could create a cgroup: root owns all folders above.
func (o *observer) createdByRoot(h hierarchy, cgroup string) bool {
	if !o.seesFolders(h, cgroup) {
		return !userManager.MatchString(cgroup) // there the name decides
	}
	mount := o.mountOf(h.name)
	for dir := path.Dir(cgroup); ; dir = path.Dir(dir) {
		uid, mode, err := o.privilegedStats(filepath.Join(mount, dir))
		if err != nil || uid != 0 || mode&0o022 != 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// seesFolders reports whether the daemon can read the owners of a cgroup. In a container it can't.
func (o *observer) seesFolders(h hierarchy, cgroup string) bool {
	return o.mountOf(h.name) != "" && !strings.HasPrefix(cgroup, "/..")
}

// identify derives the user of a process.
func (o *observer) identify(f facts) User {
	u := User{UID: f.uid, Namespace: f.user, Creator: f.creator}
	name, created := o.findContainer(f.hierarchies)
	if name != "" && f.outerPID == 0 && (name == o.container || sibling(o.container, name, o.inPod)) {
		return u // the daemon's own container, or its pod
	}
	switch {
	case name != "" && (created || u.Creator != 0 || u.Namespace == 0 && u.UID == 0):
		// A name that a user may have chosen counts where it only takes rights from him.
		u.Container = name
	// Without a cgroup, a namespace shows the container. In the daemon's user namespace only root
	// creates these. A user namespace that root created distinguishes its users by itself.
	case f.outerPID != 0 && (u.Namespace == 0 || u.Creator != 0):
		u.Container = fmt.Sprintf("pid:[%d]", f.outerPID)
	case f.cgroup != 0 && u.Namespace == 0 && !outside(f.hierarchies):
		u.Container = fmt.Sprintf("cgroup:[%d]", f.cgroup)
	}
	return u
}

// outside reports whether a process is outside of this process's cgroup namespace, as the host's
// processes are for a daemon in a container.
func outside(all []hierarchy) bool {
	return slices.ContainsFunc(all, func(h hierarchy) bool { return strings.HasPrefix(h.path, "/..") })
}

// OfProcess identifies the process of a pidfd. The PID can't change meaning meanwhile, because the
// pidfd shows at the end that the process was alive. The caller keeps the pidfd; Peer.PIDFD is the same.
func OfProcess(pidfd int) (Peer, error) {
	o := own()
	pid, err := o.pidOf(pidfd)
	if err != nil {
		return Peer{PIDFD: pidfd, User: Nobody}, err
	}
	return o.ofProcess(pid, pidfd, -1)
}

// pidOf returns the PID of a pidfd.
func (o *observer) pidOf(pidfd int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("%s/self/fdinfo/%d", o.proc, pidfd))
	if err != nil {
		return 0, fmt.Errorf("read pidfd: %w", err)
	}
	pid, err := strconv.Atoi(statusField(string(text), "Pid"))
	switch {
	case err != nil:
		return 0, errors.New("read pidfd: not a pidfd")
	case pid < 0:
		return 0, ErrEnded
	case pid == 0:
		return 0, errors.New("the process is in a PID namespace that the daemon can't see")
	}
	return pid, nil
}

// ofProcess identifies a process. uid is the one that the kernel supplied for it; below 0: none.
// Preconditions: pidfd belongs to pid.
func (o *observer) ofProcess(pid, pidfd, uid int) (Peer, error) {
	p := Peer{PID: pid, PIDFD: pidfd, User: Nobody}
	f, status, err := o.read(pid)
	if uid < 0 {
		uid = status.uid
	}
	f.uid = uid
	if !Alive(pidfd) {
		return p, ErrEnded
	}
	if err != nil {
		return p, fmt.Errorf("identify process %d: %w", pid, err)
	}
	p.User = o.identify(f)
	p.PIDNamespace, p.LocalPID = f.pid, pid
	if f.pid != 0 {
		p.LocalPID = status.localPID
	}
	p.Groups = status.groups
	p.Admin = !p.User.Host() && !f.nested && f.root == f.uid
	return p, nil
}

// read reads the facts about a process.
func (o *observer) read(pid int) (facts, status, error) {
	if o.foreignProc {
		return facts{}, status{uid: -1, effective: -1}, errors.New("/proc belongs to another PID namespace; mount the daemon's own")
	}
	dir := fmt.Sprintf("%s/%d", o.proc, pid)
	text, err := os.ReadFile(dir + "/status")
	if err != nil {
		return facts{}, status{uid: -1, effective: -1}, err
	}
	st, err := parseStatus(string(text))
	if err != nil {
		return facts{}, st, err
	}
	cgroups, err := os.ReadFile(dir + "/cgroup")
	if err != nil {
		return facts{}, st, err
	}
	f := facts{hierarchies: parseCgroups(string(cgroups))}
	if err := o.readNamespaces(dir, &f); err != nil {
		return facts{}, st, err
	}
	return f, st, nil
}

func (o *observer) readNamespaces(dir string, f *facts) error {
	user, err := openNamespace(dir + "/ns/user")
	if errors.Is(err, os.ErrPermission) {
		// A daemon without CAP_SYS_PTRACE, or one of a user whose process is protected.
		f.user, f.creator, f.root, f.nested = unknownNamespace, -1, -1, true
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(user.fd) }()
	if user.inode != o.user {
		f.creator, f.nested = -1, true
		f.user = user.inode
		if outer, depth, err := outermostBelow(user, o.user); err == nil {
			f.user, f.nested = outer.inode, depth > 0
			if uid, err := unix.IoctlGetUint32(outer.fd, unix.NS_GET_OWNER_UID); err == nil {
				f.creator = int(uid)
			}
			_ = unix.Close(outer.fd)
		}
		text, err := os.ReadFile(dir + "/uid_map")
		if err != nil {
			return err
		}
		f.root = rootOf(string(text))
	}
	pid, err := openNamespace(dir + "/ns/pid")
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pid.fd) }()
	if pid.inode != o.pid {
		f.pid, f.outerPID = pid.inode, pid.inode
		if outer, _, err := outermostBelow(pid, o.pid); err == nil {
			f.outerPID = outer.inode
			_ = unix.Close(outer.fd)
		}
	}
	var cg unix.Stat_t
	if unix.Stat(dir+"/ns/cgroup", &cg) == nil && cg.Ino != o.cgroup {
		f.cgroup = cg.Ino
	}
	return nil
}

// namespace is an open namespace.
type namespace struct {
	fd    int
	inode uint64
}

func openNamespace(name string) (namespace, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return namespace{}, fmt.Errorf("open %s: %w", name, err)
	}
	return inodeOf(fd)
}

func inodeOf(fd int) (namespace, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return namespace{}, fmt.Errorf("stat namespace: %w", err)
	}
	return namespace{fd, st.Ino}, nil
}

// outermostBelow returns the ancestor of a namespace, or itself, that is a child of another one. The
// caller closes it.
func outermostBelow(n namespace, of uint64) (outer namespace, depth int, err error) {
	fd, err := unix.FcntlInt(uintptr(n.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return namespace{}, 0, fmt.Errorf("duplicate namespace: %w", err)
	}
	n.fd = fd
	for depth = range maxNesting + 1 {
		fd, err := unix.IoctlRetInt(n.fd, unix.NS_GET_PARENT)
		if err != nil {
			_ = unix.Close(n.fd)
			return namespace{}, 0, fmt.Errorf("find parent namespace: %w", err)
		}
		unix.CloseOnExec(fd)
		parent, err := inodeOf(fd)
		if err != nil {
			_ = unix.Close(n.fd)
			return namespace{}, 0, err
		}
		if parent.inode == of {
			_ = unix.Close(parent.fd)
			return n, depth, nil
		}
		_ = unix.Close(n.fd)
		n = parent
	}
	_ = unix.Close(n.fd)
	return namespace{}, 0, errors.New("find parent namespace: too many")
}

// MeansEnd reports that a failed look at a process means its end. Any other failure, such as a lack of
// descriptors or memory, says nothing about the process.
func MeansEnd(err error) bool {
	return errors.Is(err, ErrEnded) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// Alive reports whether the process of a pidfd is alive.
func Alive(pidfd int) bool {
	ended, err := hasEnded(pidfd)
	return err == nil && !ended
}

// Ended reports that the process of a pidfd has ended; false if this is not known.
func Ended(pidfd int) bool {
	ended, err := hasEnded(pidfd)
	return err == nil && ended
}

func hasEnded(pidfd int) (bool, error) {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		// Signals to this thread, such as those of the Go runtime, interrupt the call.
		if n, err := unix.Poll(p, 0); !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

// Parent returns the parent of a process; 0: none that the daemon can see.
func Parent(pid int) int { return own().status(pid).parent }

func (o *observer) status(pid int) status {
	text, err := os.ReadFile(fmt.Sprintf("%s/%d/status", o.proc, pid))
	if err != nil {
		return status{uid: -1, effective: -1}
	}
	st, _ := parseStatus(string(text))
	return st
}
