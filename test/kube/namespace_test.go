// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	groupsVariable = "XSCHED_KUBE_GROUPS" // the folders of this run's cgroups, with colons between them
	cgroupDir      = "/sys/fs/cgroup"
	temporaryDir   = "/run/tmp"
)

// hierarchy is a mounted tree of cgroups.
type hierarchy struct {
	mount   string
	kind    string // cgroup or cgroup2
	options string // that mount it again
	own     string // the group of this process
}

// hierarchies returns the mounted cgroup trees. A node needs those of cgroup v1; one of v2 beside them is
// used too.
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for line := range strings.Lines(string(mounts)) {
		before, after, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		f, rest := strings.Fields(before), strings.Fields(after)
		covered := slices.ContainsFunc(found, func(h hierarchy) bool { return h.mount == f[4] })
		if rest[0] != "cgroup" && rest[0] != "cgroup2" || covered {
			continue
		}
		h := hierarchy{mount: f[4], kind: rest[0]}
		if h.kind == "cgroup" {
			h.options = strings.TrimPrefix(rest[2], "rw,")
		}
		for group := range strings.Lines(string(own)) { // number:controllers:path
			parts := strings.SplitN(strings.TrimSpace(group), ":", 3)
			if parts[1] == h.options {
				h.own = parts[2]
			}
		}
		if strings.HasPrefix(h.options, "name=") {
			h.options = "none," + h.options
		}
		found = append(found, h)
	}
	if !slices.ContainsFunc(found, func(h hierarchy) bool { return h.options == "memory" }) {
		return nil, errors.New("no cgroup v1 controllers in /sys/fs/cgroup; these tests support v1 and the hybrid layout only")
	}
	return found, nil
}

// ownGroups names one new cgroup in each tree, below the group of this process.
func ownGroups() ([]string, error) {
	trees, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var groups []string
	for _, h := range trees {
		groups = append(groups, filepath.Join(h.mount, h.own, "xsched-kube-"+strconv.Itoa(os.Getpid())))
	}
	return groups, nil
}

func makeGroups(groups []string) error {
	for _, group := range groups {
		if err := os.Mkdir(group, 0o755); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		// A new cpuset is empty, and a process in it could run nowhere.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(filepath.Dir(group), file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(group, file), text, 0)
			}
			if err != nil {
				return fmt.Errorf("make a cgroup: %w", err)
			}
		}
	}
	return nil
}

// removeAtEnd waits until the test has ended, and removes its cgroups with those of its pods.
func removeAtEnd() int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	var err error
	for range 100 { // processes in them are dying still
		err = nil
		for group := range strings.SplitSeq(os.Getenv(groupsVariable), ":") {
			err = errors.Join(err, removeGroup(group))
		}
		if err == nil {
			return 0
		}
		time.Sleep(100 * time.Millisecond)
	}
	return complain(fmt.Errorf("cgroups are left: %w", err))
}

func removeGroup(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			err = errors.Join(err, removeGroup(filepath.Join(group, entry.Name())))
		}
	}
	return errors.Join(err, os.Remove(group))
}

// enterGroups moves this process into its groups and makes them the roots that it and its children see.
func enterGroups(groups []string) error {
	for _, group := range groups {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("enter a cgroup: %w", err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	return nil
}

// tunables are the kernel settings that a kubelet changes, and the values that it wants. It gets files
// instead, because they hold for the whole machine.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// mountAll gives the node its own /proc, /sys, /run, /etc and /var. What it writes there is in memory, and
// gone with the mount namespace.
func mountAll() error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	m := &mounter{}
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	m.mount("proc", "/proc", "proc", 0, "")
	m.mount("sysfs", "/sys", "sysfs", 0, "")
	m.cgroups(trees)
	m.tmpfs("/run")
	for _, folder := range []string{"etc", "var"} {
		private := "/run/private/" + folder
		m.folder(private + "/upper")
		m.folder(private + "/work")
		m.mount("overlay", "/"+folder, "overlay", 0,
			fmt.Sprintf("lowerdir=/%s,upperdir=%s/upper,workdir=%s/work", folder, private, private))
	}
	// An overlay can't hold the layers of another one, which containerd makes.
	for _, folder := range []string{kubeletDir, containerdDir} {
		m.folder(folder)
		m.tmpfs(folder)
	}
	m.folder(temporaryDir)
	m.tunables()
	// Pods may ask for mounts that appear later, which needs a shared root.
	m.mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	return m.err
}

// mounter keeps the first error of a series of mounts.
type mounter struct{ err error }

func (m *mounter) mount(source, target, kind string, flags uintptr, data string) {
	if m.err != nil {
		return
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		m.err = fmt.Errorf("mount %s on %s: %w", kind, target, err)
	}
}

func (m *mounter) tmpfs(target string) { m.mount("tmpfs", target, "tmpfs", 0, "mode=755") }

func (m *mounter) folder(path string) {
	if m.err == nil {
		m.err = os.MkdirAll(path, 0o755)
	}
}

// cgroups mounts the trees as this cgroup namespace sees them.
func (m *mounter) cgroups(trees []hierarchy) {
	m.tmpfs(cgroupDir)
	for _, h := range trees {
		m.folder(h.mount)
		m.mount(h.kind, h.mount, h.kind, 0, h.options)
	}
}

// tunables hides the settings that a kubelet changes.
func (m *mounter) tunables() {
	for name, value := range tunables {
		m.hideTunable(name, value)
	}
}

// hideTunable mounts a file over a setting of the kernel, if there is one.
func (m *mounter) hideTunable(name, value string) {
	setting := "/proc/sys/" + name
	if _, err := os.Stat(setting); m.err != nil || err != nil {
		return
	}
	file := "/run/private/sys/" + name
	m.folder(filepath.Dir(file))
	if m.err == nil {
		m.err = os.WriteFile(file, []byte(value+"\n"), 0o644)
	}
	m.mount(file, setting, "", unix.MS_BIND, "")
}

// configureNetwork brings up the loopback device with the addresses of the node and of the API server's
// service. There is no service proxy: the API server itself listens on both.
func configureNetwork() error {
	if err := unix.Sethostname([]byte(NodeName)); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", nodeAddress + "/32", "dev", "lo"},
		{"addr", "add", serviceAddress + "/32", "dev", "lo"},
	} {
		cmd := exec.Command(program("busybox"), append([]string{"ip"}, args...)...)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, text)
		}
	}
	return nil
}
