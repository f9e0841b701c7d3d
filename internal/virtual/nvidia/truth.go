// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// detach moves a connection that sends queries to a goroutine, so that it costs the device
// thread no time.
func (s *server) detach(c *conn, first []byte) {
	delete(s.conns, c.fd)
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
	c.closed = true
	file := os.NewFile(uintptr(c.fd), "queries")
	trusted := c.uid == 0 || int(c.uid) == os.Geteuid()
	go func() {
		nc, err := net.FileConn(file)
		_ = file.Close()
		if err != nil {
			return
		}
		defer nc.Close()
		err = vdevice.Answer(nc, first, trusted, s.look)
		s.log.Debug("end query connection", "err", err)
	}()
}

// look answers a query on the device thread.
func (s *server) look(q vdevice.Query) vdevice.Reply {
	replies := make(chan vdevice.Reply, 1)
	s.call(func() { replies <- s.ask(q) })
	select {
	case reply := <-replies:
		return reply
	case <-s.ended:
		return vdevice.Reply{}
	}
}

// ask runs on the device thread: it only copies.
func (s *server) ask(q vdevice.Query) vdevice.Reply {
	for _, g := range s.gpus {
		g.Advance(s.now())
	}
	switch q.Op {
	case "stats":
		return vdevice.Reply{Stats: s.stats()}
	case "fault":
		if err := setFault(s.faults, q.Fault); err != nil {
			return vdevice.Reply{Error: err.Error()}
		}
	case "clear-faults":
		*s.faults = gpumodel.Faults{NeverAnswer: map[int]bool{}}
	case "quit":
		s.quit = true
	default:
		return vdevice.Look(q, s.timelines)
	}
	return vdevice.Reply{}
}

func (s *server) stats() *vdevice.Stats {
	out := &vdevice.Stats{
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

// setFault turns on a fault by name.
func setFault(f *gpumodel.Faults, name string) error {
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
