// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// WatchSuffix, appended to the driver's socket, names the socket that answers queries.
const WatchSuffix = ".watch"

const maxAccounts = 4096 // of ended processes

// watchers accepts query connections until the caller closes l.
func (s *server) watchers(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go s.answer(c)
	}
}

func (s *server) answer(c *net.UnixConn) {
	defer c.Close()
	trusted := false
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
			trusted = err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
		})
	}
	err := vdevice.Answer(c, nil, trusted, s.look)
	s.log.Debug("end query connection", "err", err)
}

func (s *server) look(q vdevice.Query) vdevice.Reply {
	k := s.kernel
	s.mu.Lock()
	files := len(s.conns)
	s.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.advance()
	defer k.arm()
	switch {
	case q.Op == "stats":
		stats := k.stats()
		stats.Files = files
		return vdevice.Reply{Stats: stats}
	case q.Op == "fault" && q.Fault == "suspend-noop":
		k.faults.SuspendNoop = true
	case q.Op == "fault" && q.Fault == "unmap-fails":
		k.faults.UnmapFails = true
	case q.Op == "fault":
		return vdevice.Reply{Error: fmt.Sprintf("set fault %q: want suspend-noop or unmap-fails", q.Fault)}
	case q.Op == "clear-faults":
		k.faults = Faults{}
	default:
		var timelines []*gpumodel.Timeline
		for _, g := range k.gpus {
			timelines = append(timelines, g.timeline)
		}
		return vdevice.Look(q, timelines)
	}
	return vdevice.Reply{}
}

func (k *Kernel) stats() *vdevice.Stats {
	out := &vdevice.Stats{NowNS: int64(k.system.Now()), Remaps: k.remaps}
	for i, g := range k.gpus {
		out.Devices = append(out.Devices, g.model.Totals())
		for pid, p := range k.processes {
			if bytes := p.usedVRAM(g.id); bytes > 0 {
				out.Memory = append(out.Memory, vdevice.MemoryUse{Device: i, PID: pid, Bytes: bytes})
			}
		}
	}
	for _, a := range k.accounts {
		out.Clients = append(out.Clients, *a)
	}
	return out
}

// enlist keeps a process's account beyond its end.
func (k *Kernel) enlist(a *gpumodel.Account) {
	k.accounts = append(k.accounts, a)
	if len(k.accounts) > maxAccounts {
		k.accounts = k.accounts[1:]
	}
}
