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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"xsched/test/kube/cgroups"
)

const (
	groupsVariable = "XSCHED_KUBE_GROUPS" // the folders of this run's cgroups, with colons between them
	cgroupDir      = "/sys/fs/cgroup"
	temporaryDir   = "/run/tmp"
)

// ownGroups names one new cgroup in each tree, and enables the controllers there.
func ownGroups(trees []cgroups.Tree, name string) ([]string, error) {
	var groups []string
	for _, tree := range trees {
		missing, err := tree.Missing(os.ReadFile)
		if err == nil && missing != "" {
			err = os.WriteFile(filepath.Join(tree.Mount, "cgroup.subtree_control"), []byte(missing), 0)
		}
		if err != nil {
			return nil, fmt.Errorf("enable the controllers of cgroup v2: %w", err)
		}
		groups = append(groups, tree.Group(name))
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

// enterGroups moves this process into its groups and makes them the roots that it and its children see. In a
// unified tree the processes are in a leaf then: the kubelet makes other groups below the root.
func enterGroups(trees []cgroups.Tree, groups []string) error {
	for _, group := range groups {
		if err := enterGroup(group); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	for i, tree := range trees {
		if !tree.Unified {
			continue
		}
		leaf := filepath.Join(groups[i], cgroups.Leaf)
		if err := errors.Join(os.Mkdir(leaf, 0o755), enterGroup(leaf)); err != nil {
			return err
		}
	}
	return nil
}

func enterGroup(group string) error {
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("enter a cgroup: %w", err)
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
func mountAll(trees []cgroups.Tree) error {
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
func (m *mounter) cgroups(trees []cgroups.Tree) {
	m.tmpfs(cgroupDir)
	for _, tree := range trees {
		m.folder(tree.Mount)
		m.mount(tree.Kind, tree.Mount, tree.Kind, 0, tree.Options)
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
