// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/api"
	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/daemon"
	"xsched/internal/driver/nvidia"
	"xsched/internal/driver/registry"
	"xsched/internal/guardian"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
	vnvidia "xsched/internal/virtual/nvidia"
	"xsched/internal/wire"
)

// TestMain also runs the programs of the tests: daemon, guardian, application.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "guardian":
			err = guardian.Main(3, registry.All(), "test")
		case "daemon":
			err = daemonProgram(os.Args[2], os.Args[3:]...)
		case "inside":
			err = insideProgram(os.Args[2])
		case "inside-child":
			var text string
			if text, err = inside(os.Args[2], client.New(filepath.Join(os.Args[2], control.ControlSocket)), "hint", control.Self); err == nil {
				fmt.Println("ok", text)
			}
		case "inside-get":
			err = insideGet(os.Args[2], os.Args[3])
		case "app":
			err = appProgram(os.Args[2:])
		default:
			os.Exit(m.Run())
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func options(dir string) daemon.Options {
	self, _ := os.Executable()
	return daemon.Options{
		Dir: dir, Virtual: true, Version: "test", GuardianCommand: []string{self, "guardian"},
	}
}

// onAMD selects an AMD virtual GPU.
func onAMD(o *daemon.Options) { o.Platform = "amd" }

func daemonProgram(dir string, platform ...string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	o := options(dir)
	o.Platform = strings.Join(platform, "")
	d, served, err := startDaemon(ctx, o)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	d.Close()
	return <-served
}

// startDaemon starts a daemon and serves its control socket until ctx ends.
func startDaemon(ctx context.Context, o daemon.Options) (*daemon.Daemon, <-chan error, error) {
	d, err := daemon.Start(o)
	if err != nil {
		return nil, nil, err
	}
	l, err := d.ListenControl()
	if err != nil {
		d.Close()
		return nil, nil, err
	}
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, l, d.Control(), api.Options{Log: slog.New(slog.DiscardHandler)}) }()
	return d, served, nil
}

// rm speaks to the virtual GPU like an application's driver library.
type rm struct{ fd int }

func (r rm) ioctl(nr, bytes uint32, arg, params []byte) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pair[0]) }()
	b := binary.NativeEndian.AppendUint32(nil, 0x4F494756)
	b = binary.NativeEndian.AppendUint32(b, 3<<30|bytes<<16|'F'<<8|nr)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(arg)))
	b = binary.NativeEndian.AppendUint32(b, uint32(len(params)))
	err = unix.Sendmsg(r.fd, append(append(b, arg...), params...), unix.UnixRights(pair[1]), nil, 0)
	_ = unix.Close(pair[1])
	if err != nil {
		return err
	}
	reply := make([]byte, 8192)
	n, err := unix.Read(pair[0], reply)
	if err != nil || n < 16+len(arg)+len(params) {
		return fmt.Errorf("%d bytes, %w", n, err)
	}
	copy(arg, reply[16:])
	copy(params, reply[16+len(arg):])
	return nil
}

func (r rm) alloc(root, parent, class uint32, params []byte) (uint32, error) {
	arg := make([]byte, 32)
	for i, v := range []uint32{root, parent, 0, class} {
		binary.NativeEndian.PutUint32(arg[4*i:], v)
	}
	binary.NativeEndian.PutUint32(arg[24:], uint32(len(params)))
	if err := r.ioctl(0x2B, 32, arg, params); err != nil {
		return 0, err
	}
	if s := binary.NativeEndian.Uint32(arg[28:]); s != 0 {
		return 0, fmt.Errorf("alloc %#x: status %#x", class, s)
	}
	return binary.NativeEndian.Uint32(arg[8:]), nil
}

func pad(n int, words ...uint32) []byte {
	b := make([]byte, n)
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return b
}

// build creates the objects of one CUDA context and returns the shim's announcements.
func (r rm) build(gpus ...uint32) ([]nvidia.RMEvent, error) {
	client, err := r.alloc(0, 0, 0x41, nil)
	if err != nil {
		return nil, err
	}
	events := []nvidia.RMEvent{{Kind: nvidia.RMClient, Client: client, Object: client}}
	for _, gpu := range gpus {
		more, err := r.context(client, gpu)
		if err != nil {
			return nil, err
		}
		events = append(events, more...)
	}
	return events, nil
}

const computeChannels = 8

// context creates a client's objects on one GPU.
func (r rm) context(client, gpu uint32) (events []nvidia.RMEvent, err error) {
	alloc := func(parent, class uint32, params []byte) uint32 {
		h, e := r.alloc(client, parent, class, params)
		err = errors.Join(err, e)
		events = append(events, nvidia.RMEvent{Kind: nvidia.RMAlloc, Client: client, Parent: parent, Object: h, ObjectClass: class})
		return h
	}
	dev := alloc(client, 0x80, pad(56, gpu))
	alloc(dev, 0x2080, pad(4))
	compute := alloc(dev, 0xA06C, pad(20, 0, 0, 0, 1))
	var first uint32
	for i := range computeChannels {
		ch := alloc(compute, 0xC86F, nil)
		if i == 0 {
			first = ch
		}
	}
	alloc(first, 0xCBC0, nil)
	copies := alloc(dev, 0xA06C, pad(20, 0, 0, 0, 9))
	alloc(copies, 0xC86F, nil)
	return events, err
}

// appProgram is an application with one context on the virtual GPU; a second argument adds a shim.
// The program waits for a command: more, join, exec or end of input.
func appProgram(args []string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: args[0]}); err != nil {
		return err
	}
	gpus := []uint32{0}
	if len(args) > 1 && args[1] == "both" {
		gpus, args = []uint32{0, 1}, args[:1]
	}
	events, err := rm{fd}.build(gpus...)
	if err != nil {
		return err
	}
	if len(args) > 1 {
		if err := join(args[1], fd, events); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	line, _ := in.ReadString('\n')
	if line == "more\n" {
		if _, err := (rm{fd}).context(events[0].Client, 1); err != nil {
			return err
		}
		line, _ = in.ReadString('\n')
	}
	for ; line == "join\n"; line, _ = in.ReadString('\n') {
		if err := join(args[1], fd, events); err != nil {
			return err
		}
		fmt.Println("joined")
	}
	for ; line == "request\n"; line, _ = in.ReadString('\n') {
		request()
	}
	if line == "exec\n" {
		return unix.Exec("/bin/sleep", []string{"sleep", "30"}, os.Environ())
	}
	return nil
}

// request ends the busy period of a program that joined, and begins another one.
var request func()

// join acts as the shim and stays busy on GPU 0.
func join(path string, control int, events []nvidia.RMEvent) error {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	hello := wire.Hello{PID: uint32(os.Getpid())}
	copy(hello.Command[:], "app")
	if _, err := conn.Write(wire.EncodeHello(hello)); err != nil {
		return err
	}
	buf, oob := make([]byte, 4096), make([]byte, 256)
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return err
	}
	if _, err := wire.DecodeWelcome(buf[:n]); err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	page, err := wire.MapPage(fds[0])
	if err != nil {
		return err
	}
	for i, part := range [][]nvidia.RMEvent{events[:1], events[1:]} {
		packet, err := nvidia.EncodeRM(part)
		if err != nil {
			return err
		}
		var rights []byte
		if i == 0 {
			rights = unix.UnixRights(control)
		}
		if _, _, err := conn.WriteMsgUnix(packet, rights, nil); err != nil {
			return err
		}
	}
	c := wire.ClientPage{Page: page}
	c.CreateQueue(0, 0, 1<<8)
	change := func(busy bool) error {
		c.SetBusy(0, busy, clock.Now())
		_, err := unix.Write(fds[1], []byte{1, 0, 0, 0, 0, 0, 0, 0})
		return err
	}
	request = func() {
		_ = change(false)
		time.Sleep(10 * time.Millisecond)
		_ = change(true)
	}
	return change(true)
}

type program struct {
	*exec.Cmd
	in  *os.File
	out *bufio.Reader
}

// startProgram starts this test binary in another role and waits until it is ready.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{Cmd: exec.Command(self, args...)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Stdin, p.in = r, w
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Stderr = os.Stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait(); _ = w.Close() })
	p.out = bufio.NewReader(out)
	if line, err := p.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%v says %q (%v)", args, line, err)
	}
	return p
}

// rejoin makes a program connect to the next daemon, as its shim would.
func (p *program) rejoin(t *testing.T) {
	t.Helper()
	if _, err := p.in.WriteString("join\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := p.out.ReadString('\n'); line != "joined\n" {
		t.Fatalf("the program says %q (%v)", line, err)
	}
}

// world is a virtual GPU with a directory for a daemon.
type world struct {
	dir    string
	device *vdevice.Client
	ctl    *client.Client
	daemon *daemon.Daemon // the most recent one
}

func (w *world) vgpuPath() string { return filepath.Join(w.dir, "vgpu.sock") }
func (w *world) sockPath() string { return filepath.Join(w.dir, "xsched.sock") }

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "xsd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{dir: dir}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- vnvidia.Serve(ctx, vnvidia.Options{Socket: w.vgpuPath(), Ready: func() { close(ready) }})
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	if w.device, err = vdevice.Dial(w.vgpuPath()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.device.Close() })
	w.ctl = client.New(filepath.Join(dir, "control.sock"))
	t.Cleanup(w.ctl.Close)
	return w
}

// serve runs a daemon in this process until the test ends or stop is called.
func (w *world) serve(t *testing.T, change func(*daemon.Options)) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := options(w.dir)
	if change != nil {
		change(&o)
	}
	d, served, err := startDaemon(ctx, o)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	w.daemon = d
	stop = sync.OnceValue(func() error {
		cancel()
		d.Close()
		return <-served
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

func (w *world) account(t *testing.T, pid int) gpumodel.Account {
	t.Helper()
	st, err := w.device.Stats()
	if err != nil {
		t.Fatal(err)
	}
	a, _ := st.Client(pid)
	return a
}

// stopped reports that a process is suspended on the given number of GPUs. The suspension count is
// no criterion: a daemon without CPU for a whole lease suspends again.
func (w *world) stopped(t *testing.T, pid, gpus int) func() bool {
	var last gpumodel.Account
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last seen: %+v", last)
		}
	})
	return func() bool {
		last = w.account(t, pid)
		return last.Stopped >= gpus*computeChannels
	}
}

func (w *world) free(t *testing.T, pid int) func() bool {
	return func() bool { return w.account(t, pid).Stopped == 0 }
}

func await(t *testing.T, what string, cond func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}

func wantError(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %v", err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than one line", err)
	}
}
