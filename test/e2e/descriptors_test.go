// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/driver/amd"
	"xsched/internal/driver/nvidia"
	"xsched/internal/quarantine/quarantinetest"
	"xsched/internal/wire"
)

// sender sends descriptors of files, and of other kinds, in each packet, on a connection for each. A line
// of its input: the socket, "stream" or "packet", what to send before (it reads a reply then), the packet.
const sender = `
import array, os, socket, struct, sys
def lingering():
    l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(); keep.append(l)
    s = socket.socket(); s.connect(l.getsockname()); keep.append(l.accept()[0])
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    s.setblocking(False)
    try:
        while True: s.send(bytes(65536))
    except BlockingIOError: pass
    return s.detach()
def rights(fd): return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
keep, files = [], [os.open(path, os.O_RDWR) for path in sys.argv[2:]]
others = []
if sys.argv[1] == "all":
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for f in files: a.sendmsg([b"x"], rights(f))
    others = [lingering(), os.pipe()[1], os.eventfd(0), b.detach()]
print("open", flush=True)
for line in sys.stdin:
    if line.strip() == "end": break
    path, kind, before, packet = line.rstrip("\n").split("\t")
    for fd in files + others:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if kind == "stream" else socket.SOCK_SEQPACKET)
        s.settimeout(5)
        try:
            s.connect(path)
            if before:
                s.send(bytes.fromhex(before)); s.recv(65536)
            for _ in range(3): s.sendmsg([bytes.fromhex(packet)], rights(fd))
        except OSError: pass
        keep.append(s)
for fd in others: os.close(fd)
print("sent", flush=True)
sys.stdin.read()
`

// frames are the ways in which descriptors can reach the daemon, as lines for sender.
func (w *world) frames() []string {
	w.t.Helper()
	client, err := nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMClient, Client: 0xc1d00001, Object: 0xc1d00001}})
	if err != nil {
		w.t.Fatal(err)
	}
	object, _ := nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMAlloc, Client: 0xc1d00001, Parent: 0xc1d00001, Object: 5, ObjectClass: 0x80}})
	queue, err := amd.EncodeKFD([]amd.KFDEvent{{Kind: amd.KFDQueue, GPUID: 1, RingBytes: 4096}})
	if err != nil {
		w.t.Fatal(err)
	}
	hello := wire.EncodeHello(wire.Hello{})
	var out []string
	add := func(socket, kind string, before, packet []byte) {
		out = append(out, strings.Join([]string{w.path(socket), kind, hex.EncodeToString(before), hex.EncodeToString(packet)}, "\t"))
	}
	add("xsched.sock", "packet", nil, hello)
	add("client/xsched.sock", "packet", nil, []byte("no HELLO"))
	for _, packet := range [][]byte{wire.EncodeHint(wire.HintFrame{}), client, object, queue, []byte("no frame"), hello} {
		add("xsched.sock", "packet", hello, packet)
	}
	request := []byte("GET /healthz HTTP/1.1\r\nHost: xsched\r\n\r\n")
	add("control.sock", "stream", nil, request)
	add("client/control.sock", "stream", request, request)
	return out
}

// attack sends descriptors in frames as the user nobody: of the files in paths and, with "all", others.
// ready runs once the files are open.
func (w *world) attack(kinds string, frames []string, ready func(), paths ...string) *program {
	w.t.Helper()
	p := w.drive(execAs("/usr/bin/env", append([]string{"python3", "-c", sender, kinds}, paths...)...))
	p.expect("open", soon)
	ready()
	for _, line := range frames {
		p.send(line)
	}
	p.send("end")
	p.expect("sent", soon)
	return p
}

// threads returns the number of threads of the daemon.
func (w *world) threads() int {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", w.serve.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(tasks)
}

// stopsIn ends the daemon with a signal, which takes at most the limit.
func (w *world) stopsIn(signal syscall.Signal, limit time.Duration) {
	w.t.Helper()
	pid := w.serve.Process.Pid
	if err := w.serve.Process.Signal(signal); err != nil {
		w.t.Fatal(err)
	}
	took := eventually(w.t, limit, fmt.Sprintf("the daemon ends after %v", signal), func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z ") && noThreads(pid)
	})
	_ = w.serve.Wait()
	w.client.Close()
	w.t.Logf("the daemon ended %v after %v", took, signal)
}

// noThreads reports that only the zombie of a process is left.
func noThreads(pid int) bool {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || len(tasks) <= 1
}

// TestDescriptorsBlockNobody: a user hands over descriptors whose close blocks, in every frame. Others do not
// notice, SIGTERM and SIGKILL end the daemon, and the next one starts at once.
func TestDescriptorsBlockNobody(t *testing.T) {
	asNobody(t)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			w := newWorld(t)
			w.open()
			low := w.low(options{})
			flush, hung := quarantinetest.Mount(t, quarantinetest.OpFlush), quarantinetest.Mount(t)
			defer flush.End()
			defer hung.End()
			before := w.threads()
			attacker := w.attack("all", w.frames(), func() {
				hung.Mute(quarantinetest.OpLookup, quarantinetest.OpGetattr, quarantinetest.OpFlush, quarantinetest.OpRelease, quarantinetest.OpWrite)
			}, flush.Path, hung.Path)
			if after := w.threads(); after > before+20 {
				t.Errorf("%d threads, %d before the attack", after, before)
			}
			w.suspendByHand(low)
			w.must("resume", strconv.Itoa(low.pid()))
			w.low(options{priority: 5}).finish() // at level 3, by its descriptors
			_ = attacker.in.Close()              // it blocks in its own exit
			w.stopsIn(signal, 2*time.Second)
			start := nowNS()
			w.startDaemon()
			if took := elapsed(start, nowNS()); took > 2*time.Second {
				t.Errorf("the next daemon took %v", took)
			}
			w.waitLevel(low.pid(), 3)
			low.finish()
		})
	}
}

// dirtier writes to a file and keeps it open.
const dirtier = `
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.write(fd, bytes(4096))
print("dirty", flush=True)
sys.stdin.read()
`

// TestDescriptorsReleasedByTheQueue: a file whose release blocks is only in the daemon's sockets.
// Discarding it, or closing the socket, does not block the daemon, nor does its exit.
func TestDescriptorsReleasedByTheQueue(t *testing.T) {
	asNobody(t)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		read   bool // by the daemon, before the signal
	}{{"read", syscall.SIGTERM, true}, {"queued", syscall.SIGKILL, false}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.open()
			fuse := quarantinetest.Mount(t)
			defer fuse.End()
			if err := w.serve.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			frames := w.frames()
			attacker := w.attack("files", []string{frames[0], frames[1], frames[8]}, func() {}, fuse.Path)
			_ = attacker.in.Close()
			if err := attacker.wait(soon); err != nil {
				t.Fatal(err)
			}
			w.exec("python3", "-c", dirtier, fuse.Path).expect("dirty", soon)
			fuse.Mute(quarantinetest.OpFlush, quarantinetest.OpRelease, quarantinetest.OpWrite)
			if c.read {
				_ = w.serve.Process.Signal(syscall.SIGCONT)
				w.low(options{}).finish()
			}
			w.stopsIn(c.signal, 2*time.Second)
			w.startDaemon()
			w.low(options{}).finish()
		})
	}
}

// open lets other users reach this world's sockets.
func (w *world) open() {
	w.t.Helper()
	if err := os.Chmod(w.dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
}
