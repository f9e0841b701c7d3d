// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia/abi"
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
	s.advanceAll(s.now())
	switch q.Op {
	case "stats":
		return vdevice.Reply{Stats: s.stats()}
	case "fault":
		if err := setFault(s.faults, q.Fault); err != nil {
			return vdevice.Reply{Error: err.Error()}
		}
		s.askBeforeCopies()
	case "clear-faults":
		*s.faults = noFaults()
		s.askBeforeCopies()
		s.rm.answerHeld()
	case "quit":
		s.quit = true
	default:
		return vdevice.Look(q, s.timelines)
	}
	return vdevice.Reply{}
}

// askBeforeCopies lets contexts ask before they copy, while a fault needs that.
func (s *server) askBeforeCopies() {
	for _, a := range s.doorbells {
		a.askBeforeCopies(s.faults)
	}
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
	for _, h := range s.rm.held {
		out.Held = append(out.Held, h.Held)
	}
	out.Memory = s.rm.memoryUse()
	for _, g := range s.gpus {
		out.Devices = append(out.Devices, g.Totals())
	}
	for _, key := range s.accounts.order {
		out.Clients = append(out.Clients, *s.accounts.byKey[key])
	}
	return out
}

func noFaults() gpumodel.Faults {
	return gpumodel.Faults{
		NeverAnswer: map[int]bool{}, Refuse: map[int]bool{}, Hung: map[int]bool{}, NoMemory: map[int]bool{}, MapFails: map[int]bool{},
	}
}

// setStepFault parses OP:PID:N[+][:MS]: the Nth call from now fails, or takes so many milliseconds longer. With
// a plus sign, so do all behind it. PID 0 is any process.
func setStepFault(f *gpumodel.Faults, spec string) bool {
	words := strings.Split(spec, ":")
	if len(words) < 3 || len(words) > 4 {
		return false
	}
	count, every := strings.CutSuffix(words[2], "+")
	op, known := memorySteps[words[0]]
	pid, err := strconv.Atoi(words[1])
	n, err2 := strconv.Atoi(count)
	if !known || err != nil || err2 != nil || n < 1 || pid < 0 {
		return false
	}
	fault := &gpumodel.StepFault{Op: op, PID: pid, After: n - 1, Every: every}
	if len(words) == 4 {
		ms, err := strconv.Atoi(words[3])
		if err != nil || ms < 1 {
			return false
		}
		fault.Slow = time.Duration(ms) * time.Millisecond
	}
	f.Steps = append(f.Steps, fault)
	return true
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
	case "own-clients":
		f.OwnClients = true
	case "never-answer", "refuse", "map-fails":
		n, err := strconv.Atoi(pid)
		if err != nil {
			return fmt.Errorf("set fault %q: want %s:PID", name, verb)
		}
		map[string]map[int]bool{"never-answer": f.NeverAnswer, "refuse": f.Refuse, "map-fails": f.MapFails}[verb][n] = true
	case "hang-gpu", "no-memory":
		n, err := strconv.Atoi(pid)
		if err != nil || n < 0 || n >= MaxDevices {
			return fmt.Errorf("set fault %q: want %s:N, from 0", name, verb)
		}
		map[string]map[int]bool{"hang-gpu": f.Hung, "no-memory": f.NoMemory}[verb][n] = true
	case "step":
		if !setStepFault(f, pid) {
			return fmt.Errorf("set fault %q: want step:OP:PID:N[+][:MS] with create, map, unmap, pin or copy", name)
		}
	case "slow-copies":
		n, err := strconv.Atoi(pid)
		if err != nil || n < 1 {
			return fmt.Errorf("set fault %q: want slow-copies:TIMES", name)
		}
		f.SlowCopies = n
	default:
		return fmt.Errorf("set fault %q: want suspend-noop, timeslice-ignored, lose-block, own-clients, never-answer:PID, refuse:PID, "+
			"map-fails:PID, hang-gpu:N, no-memory:N, slow-copies:TIMES or step:OP:PID:N", name)
	}
	return nil
}

// refused reports whether a fault rejects this change. The creator of the reply socket asks for it,
// which may be another process than the file's.
func (s *server) refused(p vdevice.Packet, reply int) bool {
	if len(s.faults.Refuse) == 0 || p.Request != reqControl {
		return false
	}
	a, ok := abi.Decode[abi.NVOS54](p.Arg)
	if !ok || a.Cmd != abi.NVA06C_CTRL_CMD_SET_TIMESLICE && a.Cmd != abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS {
		return false
	}
	peer, err := unix.GetsockoptUcred(reply, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && s.faults.Refuse[int(peer.Pid)]
}
