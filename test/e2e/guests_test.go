// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia"
	"xsched/internal/wire"
)

// rawClient is a client that violates the protocol.
type rawClient struct {
	conn *net.UnixConn
	page []byte
}

func (w *world) rawJoin() *rawClient {
	w.t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: w.path("xsched.sock"), Net: "unixpacket"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write(wire.EncodeHello(wire.Hello{PID: uint32(os.Getpid())})); err != nil {
		w.t.Fatal(err)
	}
	data, oob := make([]byte, 4096), make([]byte, 256)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, n, _, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		w.t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		w.t.Fatalf("welcome without descriptors: %v", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 2 {
		w.t.Fatalf("welcome: %d descriptors, %v", len(fds), err)
	}
	page, err := unix.Mmap(fds[0], 0, wire.PageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Munmap(page) })
	if err := unix.Ftruncate(fds[0], 0); err == nil {
		w.t.Error("a client could shrink its page")
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return &rawClient{conn, page}
}

// TestGarbageHurtsNobodyElse: random bytes in pages and sockets do not disturb the scheduling of another client.
func TestGarbageHurtsNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.low(options{})
	for i := range 20 {
		c := w.rawJoin()
		if _, err := rand.Read(c.page); err != nil {
			t.Fatal(err)
		}
		noise := make([]byte, 4+i*200)
		_, _ = rand.Read(noise)
		if i%2 == 0 { // a right start, then noise
			binary.LittleEndian.PutUint32(noise, wire.FrameMagic)
		}
		_, _ = c.conn.Write(noise)
		_, _ = rand.Read(c.page)
		if i%3 == 0 {
			_ = c.conn.Close()
		}
	}
	// These clients send no HELLO at all.
	for range 20 {
		conn, err := net.Dial("unixpacket", w.path("xsched.sock"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(bytes.Repeat([]byte{0xff}, 3000))
		_ = conn.Close()
	}
	w.suspendByHand(low)
	w.must("resume", strconv.Itoa(low.pid()))
	w.firstRun(low.pid(), nowNS(), 200*time.Millisecond)
	low.finish()
}

// TestOtherClientsHandlesAreRefused: a client cannot control another process's channels by naming their handles.
func TestOtherClientsHandlesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.low(options{})
	before := w.account(low.pid())
	c := w.rawJoin()
	// The attacker opens its own driver file and names the victim's objects.
	thief, err := net.Dial("unixpacket", w.path("vgpu.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	raw, err := thief.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	send := func(fd int, events ...nvidia.RMEvent) {
		frame, err := nvidia.EncodeRM(events)
		if err != nil {
			t.Fatal(err)
		}
		var oob []byte
		if fd >= 0 {
			oob = unix.UnixRights(fd)
		}
		if _, _, err := c.conn.WriteMsgUnix(frame, oob, nil); err != nil {
			t.Logf("send: %v", err) // the daemon may have disconnected us
		}
	}
	for client := uint32(0xc1d00000); client < 0xc1d00010; client++ {
		send(int(raw.Fd()), nvidia.RMEvent{Kind: nvidia.RMClient, Client: client, Object: client})
		events := []nvidia.RMEvent{
			{Kind: nvidia.RMAlloc, Client: client, Parent: client, Object: 0x5c000002, ObjectClass: 0x80},
			{Kind: nvidia.RMAlloc, Client: client, Parent: 0x5c000002, Object: 0x5c000003, ObjectClass: 0x2080},
		}
		for object := uint32(0x5c000004); object < 0x5c000030; object++ {
			events = append(events, nvidia.RMEvent{Kind: nvidia.RMAlloc, Client: client, Parent: 0x5c000002, Object: object, ObjectClass: 0xa06c})
		}
		send(-1, events...)
	}
	_, _ = w.xsched("suspend", strconv.Itoa(os.Getpid()))
	time.Sleep(300 * time.Millisecond)
	after := w.account(low.pid())
	if after.Disables != before.Disables || after.Timeslices != before.Timeslices {
		t.Errorf("somebody else's session moved the low: %+v, was %+v", after, before)
	}
	low.finish()
}

const nobody = 65534

// asNobody prepares a folder for another user; needs root.
func asNobody(t *testing.T) (cache string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: starts processes of two users")
	}
	cache, err := os.MkdirTemp("", "xsn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(cache) })
	if err := os.Chown(cache, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return cache
}

// TestTwoUsers: on root's daemon another user cannot raise a priority or change other users' processes.
func TestTwoUsers(t *testing.T) {
	t.Parallel()
	cache := asNobody(t)
	w := newWorld(t)
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vgpu.sock", "xsched.sock", "control.sock"} {
		if err := os.Chmod(w.path(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	bin := copyFor(t, cache, xschedPath(t))
	tenant := copyFor(t, cache, product(t, "virtual/tenant"))
	mine := w.low(options{})

	user := func(args ...string) (string, error) {
		cmd := execAs(bin, args...)
		cmd.Env = w.env("XSCHED_CACHE="+filepath.Join(cache, "c"), "HOME="+cache)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{
		{"suspend", strconv.Itoa(mine.pid())},
		{"hint", strconv.Itoa(mine.pid()), "--priority", "-100"},
		{"mode", "off"},
		{"policy", "FIFO"},
	} {
		out, err := user(args...)
		if err == nil || strings.Count(strings.TrimSpace(out), "\n") != 0 {
			t.Errorf("xsched %s as another user: %v, %q; want one line that refuses", args[0], err, out)
		}
	}
	if p := w.process(mine.pid()); p == nil || p.Held || p.Priority != 0 {
		t.Errorf("another user changed the process: %+v", p)
	}
	// A refused priority does not keep the program from running.
	if out, err := user("run", "--virtual", "--priority", "50", "--", "/bin/echo", "ran"); err != nil || !strings.Contains(out, "running at priority 0") ||
		strings.Count(out, "\n") != 2 || !strings.HasSuffix(out, "ran\n") {
		t.Errorf("xsched run --priority 50 as another user: %v, %q; want one warning and the program's output", err, out)
	}
	// The user's own program runs at priority 0, even if its environment asks for more.
	cmd := execAs(bin, "run", "--virtual", "--", "env", "XSCHED_AUTO_XQUEUE_PRIORITY=50", tenant, "--name", "n", "--kernel-us", "500")
	cmd.Env = w.env("XSCHED_CACHE="+filepath.Join(cache, "c"), "HOME="+cache)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	startOwn(t, cmd)
	eventually(t, soon, "the other user's program joins", func() bool { return w.process(cmd.Process.Pid) != nil })
	if p := w.process(cmd.Process.Pid); p.Priority > 0 || p.UID != nobody {
		t.Errorf("uid %d got priority %d on root's daemon", p.UID, p.Priority)
	}
	_ = in.Close()
	mine.finish()
}

func copyFor(t *testing.T, dir, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestManyShortClients: a thousand short-lived clients leave no descriptor in the daemon.
func TestManyShortClients(t *testing.T) {
	w := newWorld(t)
	w.must("list")
	before := w.daemonFDs()
	for range 1000 {
		c := w.rawJoin()
		_ = c.conn.Close()
	}
	eventually(t, soon, "all descriptors are closed", func() bool { return w.daemonFDs() <= before })
}
