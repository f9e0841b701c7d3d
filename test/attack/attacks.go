// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"xsched/internal/virtual"
)

// attack is one thing that an unprivileged user does to the daemon.
type attack struct {
	name, id, what string
	act            string   // of the attacker; empty: as the name
	args           []string // of the act
	both           bool     // on each virtual GPU; else on the default one only
	ready          time.Duration
	block          time.Duration // 0: as usual
	rounds         int           // at most; 0: as usual
	// control replaces the program that only uses CPU time. Where it is set, the attack uses the GPU, and
	// figures are compared with those next to the control only.
	control  string
	memoryMB float64 // what the daemon may need in addition; 0: as usual
	before   func(*world)
	check    func(*world) []string // under attack; returns what is wrong
}

func (a attack) actor() string {
	if a.act != "" {
		return a.act
	}
	return a.name
}

func (a attack) runsOn(p virtual.Platform) bool { return a.both || p.Name == virtual.Default().Name }

// settle is how long the attacker may take to get ready.
func (a attack) settle() time.Duration {
	if a.ready > 0 {
		return a.ready
	}
	return 1500 * time.Millisecond
}

// attacks lists every attack. An id refers to the class of defects in docs/threat-model.md.
func attacks() []attack {
	return []attack{
		{name: "fuse-hello", id: "R1", what: "descriptors of a FUSE file that never answers, with a HELLO that is refused", act: "fuse", args: []string{"hello"}, rounds: 1},
		{name: "fuse-frame", id: "R1", what: "descriptors of such a file, with a driver's frame", act: "fuse", args: []string{"frame"}, rounds: 1, both: true},
		{name: "linger-sockets", id: "R1", what: "300 TCP sockets with unsent data and SO_LINGER, with refused HELLOs", rounds: 1},
		{name: "odd-files", id: "R1", what: "pipes, eventfds, folders, sockets with descriptors inside, with every frame"},
		{name: "merged-queues", id: "R2", what: "254 programs of 1,023 queues each on one GPU", both: true, rounds: 1, ready: 9 * time.Second, block: 1200 * time.Millisecond},
		{name: "invented-devices", id: "R3", what: "1,024 programs with busy queues on 16 invented GPUs each", both: true, ready: 4 * time.Second},
		{name: "serial-unmanaged", id: "R4", what: "unmanaged programs of 1.0 s each, one after another", both: true, rounds: 2, ready: 4 * time.Second, block: 2500 * time.Millisecond, control: "unmanaged"},
		{name: "many-mappings", id: "R4", what: "30 processes with 65,000 mappings each, then an unmanaged program", rounds: 1, ready: 5 * time.Second, block: 4 * time.Second, control: "unmanaged"},
		{name: "http-accept", id: "R5", what: "connections to the HTTP port, next to 4,000 other TCP sockets"},
		{name: "slo-queues", id: "R6", what: "a program with a latency target and 1,024 queues against /metrics", check: checkMetrics, rounds: 1},
		{name: "refusal-log", id: "R6", what: "refused programs, one process each; another user's refusals must reach the log", check: checkRefusalLog, rounds: 1},
		{name: "connections", id: "R7", what: "connections to the client socket that say nothing"},
		{name: "control-connects", id: "R7", what: "connections to the control socket that say nothing"},
		{name: "joins", id: "R7", what: "programs that join and leave at once"},
		{name: "hint-requests", id: "R7", what: "hints for 150 own programs through the control socket", ready: 4 * time.Second},
		{name: "hint-frames", id: "R7", what: "hint frames on 64 connections"},
		{name: "healthz", id: "R7", what: "requests for /healthz on 32 connections"},
		{name: "refused-puts", id: "R7", what: "requests to change the policy, which are refused"},
		{name: "attaches", id: "R7", what: "attach to and detach from four own idle programs", ready: 3 * time.Second, control: "idle-programs"},
		{name: "reads", id: "R7", what: "the largest reads on 32 connections"},
		{name: "refused-100k", id: "R7", what: "100,000 refused sessions, then more", ready: 12 * time.Second, rounds: 1, memoryMB: 16},
		{name: "history-slots", id: "G3", what: "busy queues on 32 invented GPUs before a GPU is used for the first time", check: checkHistory, rounds: 1},
		{name: "doorbells", id: "R7", what: "doorbells and busy queues without end on 64 connections"},
		{name: "page-noise", id: "R7", what: "random words in 64 shared pages"},
		{name: "log-flood", id: "R7", what: "malformed frames in valid sessions, each of which the log mentions"},
		{name: "huge-commands", id: "R7", what: "16 programs with command lines of 1.5 MB that join again and again", ready: 3 * time.Second},
		{name: "garbage", id: "R7", what: "noise on every socket"},
		{name: "slow-readers", id: "R7", what: "event streams and large replies that nobody reads"},
		{name: "odd-names", id: "R9", what: "program names with control and direction characters", check: checkNames, rounds: 1},
	}
}
