// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// The debug side: a packet of magic and JSON asks, packets of magic, flags and JSON answer
// (pieces of one document; flagLast is set in the last).
const (
	flagLast    = 1
	debugHeader = 8
	debugPiece  = 32 << 10
)

type debugRequest struct {
	Op    string `json:"op"` // stats, timeline, waits, fault, clear-faults, quit
	From  int64  `json:"from,omitempty"`
	To    int64  `json:"to,omitempty"`
	Fault string `json:"fault,omitempty"`
}

type debugReply struct {
	Error string `json:"error,omitempty"`
	Stats *Stats `json:"stats,omitempty"`
	Spans []Span `json:"spans,omitempty"`
	Waits []Wait `json:"waits,omitempty"`
}

// Stats is the state of the whole device process.
type Stats struct {
	NowNS   int64     `json:"now_ns"`
	Devices []Totals  `json:"devices"`
	Clients []Account `json:"clients"` // in the order of their first connection

	// Remaps is told by the double of AMD's driver only.
	Remaps uint64 `json:"remaps,omitempty"`

	Files    int `json:"files"`    // open connections to the driver
	Objects  int `json:"objects"`  // RM objects
	Contexts int `json:"contexts"` // submission memories mapped

	// How late the device thread woke up: the noise of the machine.
	Wakes         uint64 `json:"wakes"`
	WakeLateMean  int64  `json:"wake_late_mean_ns"`
	WakeLateMax   int64  `json:"wake_late_max_ns"`
	WakesOver100u uint64 `json:"wakes_over_100us"`
}

// Client returns the account of a process; of several with the same number the newest.
func (s *Stats) Client(pid int) (Account, bool) {
	for _, a := range slices.Backward(s.Clients) {
		if a.PID == pid {
			return a, true
		}
	}
	return Account{}, false
}

// detach hands a connection that turned out to be a debugger's to a goroutine: nothing it
// does may cost the device thread time.
func (s *server) detach(c *conn, first []byte) {
	delete(s.conns, c.fd)
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
	c.closed = true
	file := os.NewFile(uintptr(c.fd), "debug")
	trusted := c.uid == 0 || int(c.uid) == os.Geteuid()
	go func() {
		nc, err := net.FileConn(file)
		_ = file.Close()
		if err != nil {
			return
		}
		defer nc.Close()
		packet := first
		for {
			if err := s.debug(nc, packet, trusted); err != nil {
				return
			}
			buffer := make([]byte, 4096)
			n, err := nc.Read(buffer)
			if err != nil || n == 0 {
				return
			}
			packet = buffer[:n]
		}
	}()
}

// debug answers one request.
func (s *server) debug(nc net.Conn, packet []byte, trusted bool) error {
	if len(packet) < 4 || binary.LittleEndian.Uint32(packet) != magicDebug {
		return fmt.Errorf("read request: %w", ErrPacket)
	}
	var q debugRequest
	if err := json.Unmarshal(packet[4:], &q); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	switch q.Op {
	case "fault", "clear-faults", "quit":
		if !trusted {
			return errors.New("refuse request: only root and the user of the virtual gpu may")
		}
	}
	replies := make(chan debugReply, 1)
	s.call(func() { replies <- s.ask(q) })
	var reply debugReply
	select {
	case reply = <-replies:
	case <-s.ended:
	}
	body, err := json.Marshal(reply)
	if err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	for last := false; !last; {
		piece := body[:min(len(body), debugPiece)]
		body = body[len(piece):]
		last = len(body) == 0
		out := make([]byte, debugHeader, debugHeader+len(piece))
		binary.LittleEndian.PutUint32(out, magicDebug)
		if last {
			binary.LittleEndian.PutUint32(out[4:], flagLast)
		}
		_ = nc.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := nc.Write(append(out, piece...)); err != nil {
			return fmt.Errorf("send reply: %w", err)
		}
	}
	return nil
}

// ask runs in the device's thread: it only copies.
func (s *server) ask(q debugRequest) debugReply {
	for _, g := range s.gpus {
		g.Advance(s.now())
	}
	switch q.Op {
	case "stats":
		return debugReply{Stats: s.stats()}
	case "timeline":
		var spans []Span
		for _, l := range s.timelines {
			spans = append(spans, l.Spans(model.Time(q.From), model.Time(q.To))...)
		}
		return debugReply{Spans: spans}
	case "waits":
		var waits []Wait
		for _, l := range s.timelines {
			waits = append(waits, l.Waits(model.Time(q.From), model.Time(q.To))...)
		}
		return debugReply{Waits: waits}
	case "fault":
		if err := setFault(s.faults, q.Fault); err != nil {
			return debugReply{Error: err.Error()}
		}
	case "clear-faults":
		*s.faults = Faults{NeverAnswer: map[int]bool{}}
	case "quit":
		s.quit = true
	default:
		return debugReply{Error: "unknown request " + strconv.Quote(q.Op)}
	}
	return debugReply{}
}

func (s *server) stats() *Stats {
	out := &Stats{
		NowNS: int64(s.now()), Objects: s.rm.objects, Contexts: s.rm.areas,
		Wakes: s.late.count, WakeLateMax: int64(s.late.maxNS), WakesOver100u: s.late.over100us,
	}
	if s.late.count > 0 {
		out.WakeLateMean = int64(s.late.sumNS / s.late.count)
	}
	for _, c := range s.conns {
		if c.file != nil {
			out.Files++
		}
	}
	for _, g := range s.gpus {
		out.Devices = append(out.Devices, g.Totals())
	}
	for _, key := range s.accounts.order {
		out.Clients = append(out.Clients, *s.accounts.byKey[key])
	}
	return out
}

// set turns a fault on by name: suspend-noop, timeslice-ignored, lose-block, never-answer:PID.
func setFault(f *Faults, name string) error {
	verb, pid, _ := strings.Cut(name, ":")
	switch verb {
	case "suspend-noop":
		f.SuspendNoop = true
	case "timeslice-ignored":
		f.TimesliceIgnored = true
	case "lose-block":
		f.LoseBlock = true
	case "never-answer":
		n, err := strconv.Atoi(pid)
		if err != nil {
			return fmt.Errorf("set fault %q: want never-answer:PID", name)
		}
		f.NeverAnswer[n] = true
	default:
		return fmt.Errorf("set fault %q: want suspend-noop, timeslice-ignored, lose-block or never-answer:PID", name)
	}
	return nil
}
