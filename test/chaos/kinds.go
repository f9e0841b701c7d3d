// SPDX-License-Identifier: Apache-2.0

package main

// kind is one row of the table of faults. do injects the fault, waits for its duration and ends it;
// an error means that it was impossible at that moment.
type kind struct {
	name              string
	what              string
	weight            int
	shortest, longest int // duration in ms
	roles             []string
	texts             []string
	root              bool   // needs root
	spaces            bool   // the texts are namespaces, which must be possible
	older             bool   // needs another release
	kube              bool   // needs a world with a node plugin
	platform          string // only there; empty: everywhere
	do                func(*world, Fault) error
}

var (
	anyRole  = []string{"high", "low", "lower", "bare", "user"}
	policies = []string{"HHPF", "CHPF", "UP", "PUP", "SPUP", "KEDF", "LAX", "AWF", "CFS", "MLFQ", "FIFO", "RR", "EDF", "SLO"}
	modes    = []string{"off", "timeslice", "suspend", "level 1", "level 2", "level 3"}
)

// kinds is the table of all faults.
func kinds() []kind {
	return []kind{
		{name: "daemon-kill", what: "SIGKILL of the daemon; it starts again", weight: 4, shortest: 10, longest: 900, do: daemonKill},
		{name: "daemon-stop", what: "SIGSTOP of the daemon, then SIGCONT", weight: 9, shortest: 30, longest: 1500, do: daemonStop},
		{name: "daemon-term", what: "clean restart of the daemon", weight: 3, shortest: 1, longest: 300, do: daemonTerm},
		{name: "daemon-hup", what: "SIGHUP, which the daemon must survive", weight: 1, shortest: 50, longest: 300, do: daemonHup},
		{name: "daemon-wedge", what: "blocked engine loop", weight: 7, shortest: 50, longest: 1200, do: daemonWedge},
		{name: "daemon-files", what: "the daemon can open almost no descriptor", weight: 5, shortest: 200, longest: 3500, root: true, do: daemonFiles},
		{name: "daemon-size", what: "the daemon can't extend a file (RLIMIT_FSIZE)", weight: 2, shortest: 100, longest: 1000, root: true, do: daemonSize},
		{name: "daemon-stderr", what: "nobody reads the daemon's log, while garbage makes it log", weight: 4, shortest: 200, longest: 1500, do: daemonStderr},
		{name: "daemon-switch", what: "upgrade or downgrade to another release", weight: 4, shortest: 1, longest: 300, older: true, do: daemonSwitch},
		{name: "daemon-memory", what: "the daemon's cgroup has almost no memory left", weight: 3, shortest: 100, longest: 1200, root: true, do: daemonMemory},
		{name: "clock-step", what: "the wall clock steps, and back after a while", weight: 5, shortest: 50, longest: 2500, texts: []string{"-8760h", "-1h", "-20s", "-1s", "1s", "20s", "1h", "8760h"}, do: clockStep},
		{name: "disk-full", what: "the folder of state, journal, audit log and recording is full, or the cache", weight: 4, shortest: 200, longest: 1500, root: true, texts: disks, do: diskFull},
		{name: "socket-removed", what: "a socket file is removed; the operator restarts the daemon", weight: 1, shortest: 200, longest: 1000, texts: []string{"control.sock", "xsched.sock"}, do: socketRemoved},

		{name: "guardian-kill", what: "SIGKILL of the guardians", weight: 5, shortest: 10, longest: 100, do: guardianKill},
		{name: "guardian-stop", what: "SIGSTOP of the guardians, then SIGCONT", weight: 5, shortest: 50, longest: 1200, do: guardianStop},
		{name: "both-kill", what: "SIGKILL of daemon and guardians together", weight: 3, shortest: 10, longest: 600, do: bothKill},
		{name: "both-stop", what: "SIGSTOP of daemon and guardians together", weight: 3, shortest: 50, longest: 1000, do: bothStop},

		{name: "node-stop", what: "SIGSTOP of the Kubernetes node plugin, then SIGCONT", weight: 6, shortest: 200, longest: 3000, kube: true, do: nodeStop},
		{name: "node-kill", what: "SIGKILL of the node plugin; it starts again", weight: 6, shortest: 50, longest: 500, kube: true, do: nodeKill},
		{name: "api-slow", what: "the API server answers up to 2.5 s late", weight: 8, shortest: 200, longest: 3000, kube: true, do: apiSlow},

		{name: "tenant-kill", what: "SIGKILL of a program; it starts again", weight: 7, shortest: 10, longest: 300, roles: anyRole, do: tenantKill},
		{name: "tenant-stop", what: "SIGSTOP of a program, then SIGCONT", weight: 6, shortest: 50, longest: 1500, roles: anyRole, do: tenantStop},
		{name: "watcher-stop", what: "the shim's watcher thread stops in a program", weight: 5, shortest: 50, longest: 2000, roles: []string{"high", "low", "lower", "user"}, do: watcherStop},
		{name: "short-clients", what: "programs that start and end at once", weight: 3, shortest: 50, longest: 100, do: shortClients},
		{name: "namespace", what: "a program in namespaces of its own", weight: 4, shortest: 1000, longest: 1800, root: true, spaces: true, texts: []string{"time", "pid", "user", "time,pid", "user,pid"}, do: namespace},

		{name: "suspend", what: "suspend and resume by hand", weight: 14, shortest: 300, longest: 3000, roles: anyRole, do: suspend},
		{name: "detach", what: "detach and attach by hand", weight: 6, shortest: 10, longest: 1500, roles: []string{"bare"}, do: detach},
		{name: "policy", what: "another policy for a while", weight: 6, shortest: 100, longest: 1500, texts: policies, do: policy},
		{name: "mode", what: "another mode for a while", weight: 6, shortest: 100, longest: 1500, texts: modes, do: mode},
		{name: "priority", what: "another priority for a while", weight: 4, shortest: 100, longest: 1500, roles: anyRole, do: priority},

		{name: "device-hang", what: "controls of one program are never answered; the program is replaced", weight: 4, shortest: 100, longest: 1000, roles: anyRole, platform: "nvidia", do: deviceHang},
		{name: "device-refuses", what: "the device rejects the daemon's controls", weight: 5, shortest: 100, longest: 3500, platform: "nvidia", do: deviceRefuses},

		{name: "cpu-hog", what: "busy threads on all processors", weight: 3, shortest: 100, longest: 800, do: actor("hog")},
		{name: "flood-connections", what: "another user opens silent connections", weight: 3, shortest: 200, longest: 1500, do: actor("connections")},
		{name: "flood-requests", what: "another user asks for everything at once", weight: 3, shortest: 200, longest: 1200, do: actor("requests")},
		{name: "flood-garbage", what: "another user sends garbage", weight: 3, shortest: 200, longest: 1200, do: actor("garbage")},
		{name: "flood-hints", what: "another user changes the hints of its program all the time", weight: 3, shortest: 200, longest: 1200, root: true, roles: []string{"user"}, do: actor("hints")},
		{name: "forbidden", what: "another user tries what it may not do", weight: 3, shortest: 50, longest: 100, root: true, roles: []string{"high", "low", "bare"}, do: forbidden},
	}
}

func findKind(name string) (kind, bool) {
	for _, k := range kinds() {
		if k.name == name {
			return k, true
		}
	}
	return kind{}, false
}
