// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"io/fs"
	"strings"
	"testing"
)

const (
	root = "23 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
	v1   = root + `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
`
	hybrid  = v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	unified = root + "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
	// covered is a unified tree with another mount on it.
	covered = unified + "42 30 0:26 /x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
)

// TestFind: v1, hybrid and unified hosts, and those that have neither tree complete.
func TestFind(t *testing.T) {
	const session = "/user.slice/user-0.slice/session-1.scope"
	ownV1 := "4:memory:" + session + "\n3:cpu,cpuacct:/\n1:name=systemd:" + session + "\n0::" + session + "\n"
	all := "cpuset cpu io memory hugetlb pids rdma misc\n"
	for name, c := range map[string]struct {
		mounts, own, controllers, enabled string
		groups                            string // of this process, by tree
		missing, err                      string
	}{
		"v1": {mounts: v1, own: ownV1, groups: "/sys/fs/cgroup/cpu,cpuacct/x /sys/fs/cgroup/memory" + session + "/x /sys/fs/cgroup/systemd" + session + "/x"},
		"hybrid": {
			mounts: hybrid, own: ownV1,
			groups: "/sys/fs/cgroup/cpu,cpuacct/x /sys/fs/cgroup/memory" + session + "/x /sys/fs/cgroup/systemd" + session + "/x /sys/fs/cgroup/unified" + session + "/x",
		},
		"unified":         {mounts: unified, own: "0::" + session + "\n", controllers: all, enabled: all, groups: "/sys/fs/cgroup/x"},
		"covered":         {mounts: covered, own: "0::/\n", controllers: all, enabled: all, groups: "/sys/fs/cgroup/x"},
		"not enabled":     {mounts: unified, own: "0::/\n", controllers: all, enabled: "memory pids\n", groups: "/sys/fs/cgroup/x", missing: "+cpu +cpuset"},
		"in a container":  {mounts: unified, own: "0::/\n", controllers: "memory pids\n", err: "no controllers cpu, cpuset here"},
		"only v2 of both": {mounts: root + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", own: "0::/\n", err: "no controllers cpu, cpuset, memory, pids here"},
		"none":            {mounts: root, own: "0::/\n", err: "no controllers of cgroup v1 and no unified tree"},
		"v1 incomplete":   {mounts: strings.Replace(hybrid, "rw,memory", "rw,freezer", 1), own: ownV1, err: "no controllers of cgroup v1 and no unified tree"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{
				"/proc/self/mountinfo": c.mounts, "/proc/self/cgroup": c.own, "/sys/fs/cgroup/unified/cgroup.controllers": "",
				"/sys/fs/cgroup/cgroup.controllers": c.controllers, "/sys/fs/cgroup/cgroup.subtree_control": c.enabled,
			}
			read := func(file string) ([]byte, error) {
				text, ok := files[file]
				if !ok {
					return nil, fs.ErrNotExist
				}
				return []byte(text), nil
			}
			trees, err := Find(read)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%+v, %v, want %q", trees, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var groups, missing []string
			for _, tree := range trees {
				more, err := tree.Missing(read)
				if err != nil {
					t.Error(err)
				}
				groups, missing = append(groups, tree.Group("x")), append(missing, more)
			}
			if got := strings.Join(groups, " "); got != c.groups {
				t.Errorf("groups %s, want %s", got, c.groups)
			}
			if got := strings.TrimSpace(strings.Join(missing, " ")); got != c.missing {
				t.Errorf("missing %q, want %q", got, c.missing)
			}
		})
	}
}
