// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

var (
	idA = strings.Repeat("4f", 32)
	idB = strings.Repeat("0b", 32)
)

func TestContainers(t *testing.T) {
	const pod = "3fd4bb8e-2a0c-4b47-9d0e-5e7a1c3f9b21"
	for _, test := range []struct{ path, outer, inner string }{
		{"/", "", ""},
		{"/user.slice/user-1000.slice/session-3.scope", "", ""},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/run-u3.scope", "", ""},
		{"/system.slice/docker.service", "", ""},
		{"/system.slice/containerd.service", "", ""},
		{"/machine.slice", "", ""},
		{"/system.slice/docker-" + idA + ".scope", "/system.slice/docker-" + idA + ".scope", "/system.slice/docker-" + idA + ".scope"},
		{"/docker/" + idA, "/docker/" + idA, "/docker/" + idA},
		{"/docker/" + idA + "/init.scope", "/docker/" + idA, "/docker/" + idA},
		{"/docker/" + idA[:63], "", ""},
		{"/docker/" + strings.ToUpper(idA), "", ""},
		{"/machine.slice/libpod-" + idA + ".scope/container", "/machine.slice/libpod-" + idA + ".scope", "/machine.slice/libpod-" + idA + ".scope"},
		{"/machine.slice/libpod-conmon-" + idA + ".scope", "", ""},
		{"/system.slice/crio-conmon-" + idA + ".scope", "", ""},
		{"/libpod_parent/libpod-" + idA, "/libpod_parent/libpod-" + idA, "/libpod_parent/libpod-" + idA},
		{"/machine.slice/machine-web.scope/payload", "/machine.slice/machine-web.scope", "/machine.slice/machine-web.scope"},
		{"/machine.slice/systemd-nspawn@web.service/payload/init.scope", "/machine.slice/systemd-nspawn@web.service", "/machine.slice/systemd-nspawn@web.service"},
		{"/lxc.payload.web/init.scope", "/lxc.payload.web", "/lxc.payload.web"},
		{"/lxc.payload/web/init.scope", "/lxc.payload/web", "/lxc.payload/web"},
		{
			"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice/cri-containerd-" + idA + ".scope",
			"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice",
			"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice/cri-containerd-" + idA + ".scope",
		},
		{"/kubepods/burstable/pod" + pod + "/" + idA, "/kubepods/burstable/pod" + pod, "/kubepods/burstable/pod" + pod + "/" + idA},
		{"/kubepods/besteffort", "", ""},
		{"/docker/" + idA + "/kubelet/kubepods/pod" + pod + "/" + idB, "/docker/" + idA, "/docker/" + idA + "/kubelet/kubepods/pod" + pod + "/" + idB},
		{"/../../docker-" + idA + ".scope", "/../../docker-" + idA + ".scope", "/../../docker-" + idA + ".scope"},
	} {
		if outer, inner := containers(test.path); outer != test.outer || inner != test.inner {
			t.Errorf("containers(%q) = %q, %q", test.path, outer, inner)
		}
	}
}

func TestParseCgroups(t *testing.T) {
	const text = "9:name=systemd:/a:b\n4:memory:/docker/x\n3:cpu,cpuacct:/\n0::/unified\nnonsense\n7:pids\n1::/\n0:x:/\n5:io:relative\n"
	want := []hierarchy{{"", "/unified"}, {"name=systemd", "/a:b"}, {"memory", "/docker/x"}, {"cpu,cpuacct", "/"}}
	if got := parseCgroups(text); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := len(parseCgroups(strings.Repeat("0::/\n", 1000))); n != maxHierarchies {
		t.Errorf("%d lines", n)
	}
}

func TestParseMounts(t *testing.T) {
	const text = `31 23 0:27 / /sys/fs/cgroup ro,nosuid shared:8 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
33 31 0:29 / /sys/fs/cgroup/systemd rw shared:10 - cgroup cgroup rw,xattr,name=systemd
34 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
35 31 0:31 /docker/x /elsewhere rw shared:11 - cgroup cgroup rw,pids
`
	o := &observer{mounts: parseMounts(text)}
	for name, want := range map[string]string{
		"": "/sys/fs/cgroup/unified", "name=systemd": "/sys/fs/cgroup/systemd", "cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct", "pids": "", "memory": "",
	} {
		if got := o.mountOf(name); got != want {
			t.Errorf("mountOf(%q) = %q, want %q", name, got, want)
		}
	}
}

// TestIdentify checks who a process is, from facts that a process may partly choose.
func TestIdentify(t *testing.T) {
	scope := "/system.slice/docker-" + idA + ".scope"
	chosen := "/user.slice/user-1000.slice/user@1000.service/docker-" + idA + ".scope"
	rootless := "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + idA + ".scope"
	o := &observer{
		mounts: []cgroupMount{{"", "/cg"}},
		privilegedStats: func(dir string) (int, uint32, error) {
			switch {
			case !strings.HasPrefix(dir, "/cg"):
				return 0, 0, errors.New("outside")
			case strings.Contains(dir, "user@1000.service"):
				return 1000, 0o755, nil
			}
			return 0, 0o755, nil
		},
	}
	v2 := func(p string) []hierarchy { return []hierarchy{{"", p}} }
	for _, test := range []struct {
		name string
		f    facts
		want User
	}{
		{"on the host", facts{uid: 1000, hierarchies: v2("/user.slice/user-1000.slice/session-3.scope")}, OnHost(1000)},
		{"root in a container without namespaces", facts{hierarchies: v2(scope)}, User{Container: scope}},
		{"a user there", facts{uid: 1000, outerPID: 7, pid: 7, hierarchies: v2(scope)}, User{UID: 1000, Container: scope}},
		{"a cgroup with a chosen name", facts{uid: 1000, hierarchies: v2(chosen)}, OnHost(1000)},
		{"the same in a sandbox", facts{uid: 1000, pid: 9, outerPID: 9, hierarchies: v2(chosen)}, User{UID: 1000, Container: "pid:[9]"}},
		{"root in such a cgroup", facts{hierarchies: v2(chosen)}, User{Container: chosen}},
		{"root in a user's cgroup", facts{hierarchies: v2("/user.slice/user-1000.slice/session-3.scope")}, User{}},
		{"unshared", facts{uid: 1000, user: 8, creator: 1000, hierarchies: v2("/user.slice")}, User{UID: 1000, Namespace: 8, Creator: 1000}},
		{"unshared with a PID namespace", facts{uid: 1000, user: 8, creator: 1000, pid: 9, outerPID: 9, hierarchies: v2("/user.slice")}, User{UID: 1000, Namespace: 8, Creator: 1000, Container: "pid:[9]"}},
		{"a rootless container", facts{uid: 100033, user: 8, creator: 1000, pid: 9, outerPID: 9, hierarchies: v2(rootless)}, User{UID: 100033, Namespace: 8, Creator: 1000, Container: rootless}},
		{"an unknown runtime", facts{pid: 10, outerPID: 9, hierarchies: v2("/default/web")}, User{Container: "pid:[9]"}},
		{"with its own cgroup namespace only", facts{cgroup: 11, hierarchies: v2("/default/web")}, User{Container: "cgroup:[11]"}},
		{"the host, seen from a container", facts{cgroup: 11, hierarchies: v2("/../../init.scope")}, User{}},
		{"a sibling, seen from a container", facts{cgroup: 11, hierarchies: v2("/../docker-" + idB + ".scope")}, User{Container: "/../docker-" + idB + ".scope"}},
		{"root's user namespace without a cgroup", facts{uid: 165536, user: 8, pid: 9, outerPID: 9}, User{UID: 165536, Namespace: 8}},
		{"unreadable", facts{uid: 0, user: unknownNamespace, creator: -1}, User{Namespace: unknownNamespace, Creator: -1}},
		{"a chosen name beside a real container", facts{uid: 5, hierarchies: []hierarchy{{"", chosen}, {"pids", "/docker/" + idB}}}, User{UID: 5, Container: "pids:/docker/" + idB}},
	} {
		if got := o.identify(test.f); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
	inside := *o
	inside.container = scope
	if u := inside.identify(facts{hierarchies: v2(scope)}); !u.Root() {
		t.Errorf("root in the daemon's own container is %+v", u)
	}
	if u := inside.identify(facts{pid: 3, outerPID: 3, hierarchies: v2(scope)}); u.Root() {
		t.Errorf("root in a container in the daemon's container is %+v", u)
	}
}

// TestAccountNested checks that containers inside of a container share its limits.
func TestAccountNested(t *testing.T) {
	outer := User{Container: "/docker/" + idA}
	for _, c := range []string{"/docker/" + idA, "/docker/" + idA + "/kubelet/" + idB} {
		for _, prefix := range []string{"", "pids:"} {
			want := User{Container: prefix + outer.Container}
			if got := (User{UID: 3, Container: prefix + c}).Account(); got != want {
				t.Errorf("%s%s: %+v", prefix, c, got)
			}
		}
	}
	if got := (User{Container: "pid:[9]"}).Account(); got != (User{Container: "pid:[9]"}) {
		t.Errorf("%+v", got)
	}
}

// FuzzProc feeds the parsers of /proc files. A process chooses its name, which is in status, and a
// user with a delegated cgroup chooses names of cgroups.
func FuzzProc(f *testing.F) {
	f.Add("0::/docker/"+idA+"\n", "Name:\tx\nPPid:\t1\nUid:\t0\t0\t0\t0\nNSpid:\t7\t1\n", "0 1000 1\n")
	f.Add("4:memory:/a:b\n", "Name:\tUid:\nUid:\t1\t2\t3\t4\nPPid:\t0\n", "")
	f.Fuzz(func(t *testing.T, cgroups, stat, uidMap string) {
		for _, h := range parseCgroups(cgroups) {
			outer, inner := containers(h.path)
			if !strings.HasPrefix(h.path, inner) || !strings.HasPrefix(inner, outer) || (inner == "") != (outer == "") {
				t.Fatalf("%q: %q, %q", h.path, outer, inner)
			}
			u := User{UID: 5, Container: h.label(inner)}
			if a := u.Account(); a.Account() != a || inner != "" && a.Container != h.label(outer) {
				t.Fatalf("%+v: account %+v, want %q", u, a, h.label(outer))
			}
		}
		if st, err := parseStatus(stat); err == nil && (st.uid < -1 || st.effective < 0 || st.parent < 0 || st.localPID < 0) {
			t.Fatalf("%+v", st)
		}
		if rootOf(uidMap) < -1 {
			t.Fatal(rootOf(uidMap))
		}
		parseMounts(cgroups)
	})
}

// TestStatus checks that a program's name can't stand for another line.
func TestStatus(t *testing.T) {
	st, err := parseStatus("Name:\tUid:\t0 0 0 0\nUmask:\t0022\nPPid:\t41\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t77\t5\n")
	if err != nil || st.uid != 1000 || st.effective != 1000 || st.parent != 41 || st.localPID != 5 {
		t.Errorf("%+v, %v", st, err)
	}
	st, err = parseStatus("PPid:\t41\nUid:\t1000\t0\t0\t0\n")
	if err != nil || st.uid != -1 || st.effective != 0 {
		t.Errorf("a set-user-ID program: %+v, %v", st, err)
	}
	for _, bad := range []string{"", "Uid:\t1\n", "Uid:\t1 1 1 1\n", "Uid:\t-1 -1 -1 -1\nPPid:\t1\n", "Uid:\t1 1 1 1\nPPid:\tx\n"} {
		if st, err := parseStatus(bad); err == nil {
			t.Errorf("%q: %+v", bad, st)
		}
	}
	for text, want := range map[string]int{"0 1000 1\n": 1000, "0 0 4294967295\n": 0, "1 100000 65536\n0 1000 1\n": 1000, "": -1, "5 1 1": -1, "0 x 1": -1} {
		if got := rootOf(text); got != want {
			t.Errorf("rootOf(%q) = %d", text, got)
		}
	}
}
