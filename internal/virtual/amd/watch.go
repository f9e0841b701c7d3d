// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// What the double really did can be read beside it, on a socket of its own, in the form
// that the virtual GPU of the other platform has: a packet of magic and JSON asks, packets of
// magic, flags and JSON answer, pieces of one document.
const (
	// WatchSuffix makes the name of that socket from the driver's.
	WatchSuffix = ".watch"

	watchMagic  = 0x47444756 // "VGDG"
	watchHeader = 8
	watchPiece  = 32 << 10
	watchLast   = 1

	maxAccounts = 4096 // of processes that have ended
)

type watchRequest struct {
	Op    string `json:"op"` // stats, timeline, waits, fault, clear-faults
	From  int64  `json:"from,omitempty"`
	To    int64  `json:"to,omitempty"`
	Fault string `json:"fault,omitempty"`
}

type watchReply struct {
	Error string          `json:"error,omitempty"`
	Stats *Stats          `json:"stats,omitempty"`
	Spans []gpumodel.Span `json:"spans,omitempty"`
	Waits []gpumodel.Wait `json:"waits,omitempty"`
}

// Stats is the state of the double.
type Stats struct {
	NowNS   int64              `json:"now_ns"`
	Devices []gpumodel.Totals  `json:"devices"`
	Clients []gpumodel.Account `json:"clients"` // in the order they opened the driver
	Files   int                `json:"files"`   // open connections
	Remaps  uint64             `json:"remaps"`  // times all queues of a GPU were taken off it and put back
}

// watchers accepts whoever wants to look; the caller closes l.
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
	buffer := make([]byte, 4096)
	for {
		n, err := c.Read(buffer)
		if err != nil || n < 4 || binary.LittleEndian.Uint32(buffer) != watchMagic {
			return
		}
		var q watchRequest
		if json.Unmarshal(buffer[4:n], &q) != nil {
			return
		}
		reply := s.look(q, trusted)
		body, err := json.Marshal(reply)
		if err != nil || writePieces(c, body) != nil {
			return
		}
	}
}

func writePieces(c net.Conn, body []byte) error {
	for last := false; !last; {
		piece := body[:min(len(body), watchPiece)]
		body = body[len(piece):]
		last = len(body) == 0
		out := make([]byte, watchHeader, watchHeader+len(piece))
		binary.LittleEndian.PutUint32(out, watchMagic)
		if last {
			binary.LittleEndian.PutUint32(out[4:], watchLast)
		}
		_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write(append(out, piece...)); err != nil {
			return fmt.Errorf("send reply: %w", err)
		}
	}
	return nil
}

func (s *server) look(q watchRequest, trusted bool) watchReply {
	k := s.kernel
	if q.Op == "stats" {
		s.mu.Lock()
		files := len(s.conns)
		s.mu.Unlock()
		stats := k.stats()
		stats.Files = files
		return watchReply{Stats: stats}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.advance()
	defer k.arm()
	var reply watchReply
	from, to := model.Time(q.From), model.Time(q.To)
	switch {
	case q.Op == "timeline":
		for _, g := range k.gpus {
			reply.Spans = append(reply.Spans, g.timeline.Spans(from, to)...)
		}
	case q.Op == "waits":
		for _, g := range k.gpus {
			reply.Waits = append(reply.Waits, g.timeline.Waits(from, to)...)
		}
	case !trusted:
		reply.Error = "only root and the user of the double may"
	case q.Op == "fault" && q.Fault == "suspend-noop":
		k.faults.SuspendNoop = true
	case q.Op == "fault" && q.Fault == "unmap-fails":
		k.faults.UnmapFails = true
	case q.Op == "clear-faults":
		k.faults = Faults{}
	default:
		reply.Error = "unknown request " + strconv.Quote(q.Op+" "+q.Fault)
	}
	return reply
}

func (k *Kernel) stats() *Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.advance()
	defer k.arm()
	out := &Stats{NowNS: int64(k.system.Now()), Remaps: k.remaps}
	for _, g := range k.gpus {
		out.Devices = append(out.Devices, g.model.Totals())
	}
	for _, a := range k.accounts {
		out.Clients = append(out.Clients, *a)
	}
	return out
}

// enlist remembers a process's account, also after its end.
func (k *Kernel) enlist(a *gpumodel.Account) {
	k.accounts = append(k.accounts, a)
	if len(k.accounts) > maxAccounts {
		k.accounts = k.accounts[1:]
	}
}
