// SPDX-License-Identifier: Apache-2.0

// Package quarantinetest serves a file system that does not answer, so that closing its files blocks.
package quarantinetest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Requests of the kernel, from linux/fuse.h.
const (
	OpLookup  = 1
	opForget  = 2
	OpGetattr = 3
	opSetattr = 4
	opOpen    = 14
	OpWrite   = 16
	OpRelease = 18
	OpFlush   = 25
	opInit    = 26
	opBatch   = 42 // FUSE_BATCH_FORGET

	initWriteback = 1 << 16 // FUSE_WRITEBACK_CACHE

	inHeader, outHeader = 40, 16
	attrBytes           = 88
	fileMode            = unix.S_IFREG | 0o666
	rootMode            = unix.S_IFDIR | 0o777
)

// serverName is the first argument of the process that serves a file system. Its death, also with the
// test, ends every call that waits for it. The test itself must not have a file of it open: a child that
// it starts would close the file in execve, and block there.
const serverName = "xsched-fuse-server"

func init() {
	if os.Args[0] == serverName {
		serve(os.Args[1])
		os.Exit(0)
	}
}

// FUSE is a mounted file system with one file of one page.
type FUSE struct {
	Path string // of the file

	dir  string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	once sync.Once
}

// Mount mounts a file system for the test; mute lists the requests that it never answers. Only root
// can mount it, where the kernel has FUSE.
func Mount(t testing.TB, mute ...uint32) *FUSE {
	t.Helper()
	dir, err := os.MkdirTemp("", "xsfuse")
	if err != nil {
		t.Fatal(err)
	}
	f := &FUSE{Path: filepath.Join(dir, "file"), dir: dir}
	f.cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{serverName, dir}, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	f.in, _ = f.cmd.StdinPipe()
	out, _ := f.cmd.StdoutPipe()
	f.out = bufio.NewReader(out)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.End)
	if line, _ := f.out.ReadString('\n'); line != "ready\n" {
		t.Skipf("FUSE can't be mounted here: %s", line)
	}
	f.Mute(mute...)
	return f
}

// Mute changes which requests are never answered.
func (f *FUSE) Mute(ops ...uint32) {
	_, _ = fmt.Fprintln(f.in, strings.Trim(fmt.Sprint(ops), "[]"))
	_, _ = f.out.ReadString('\n')
}

// End ends the server, and every call that waits for it.
func (f *FUSE) End() {
	f.once.Do(func() {
		_ = f.cmd.Process.Kill()
		_ = f.cmd.Wait()
		_ = unix.Unmount(f.dir, unix.MNT_FORCE)
		_ = unix.Unmount(f.dir, unix.MNT_DETACH)
		_ = os.Remove(f.dir)
	})
}

// serve mounts and serves the file system. A line of input lists the requests that it does not answer.
func serve(dir string) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other", fd, rootMode)
		err = unix.Mount("test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	var mu sync.Mutex
	mute := map[uint32]bool{}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			mu.Lock()
			clear(mute)
			for op := range strings.FieldsSeq(lines.Text()) {
				n, _ := strconv.Atoi(op)
				mute[uint32(n)] = true
			}
			mu.Unlock()
			fmt.Println("ok")
		}
	}()
	fmt.Println("ready")
	buf := make([]byte, 1<<20)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil || n < inHeader {
			return
		}
		op := binary.NativeEndian.Uint32(buf[4:])
		mu.Lock()
		silent := mute[op]
		mu.Unlock()
		if reply := answer(op, buf[:n]); reply != nil && !silent {
			_, _ = unix.Write(fd, reply)
		}
	}
}

// answer encodes the reply to a request; nil: it has none.
func answer(op uint32, in []byte) []byte {
	node := binary.NativeEndian.Uint64(in[16:])
	var body []byte
	status := unix.Errno(0)
	switch op {
	case opForget, opBatch, 36: // FUSE_INTERRUPT
		return nil
	case opInit:
		body = make([]byte, 64)
		binary.NativeEndian.PutUint32(body[0:], 7)
		binary.NativeEndian.PutUint32(body[4:], 31)
		binary.NativeEndian.PutUint32(body[12:], initWriteback)
		binary.NativeEndian.PutUint32(body[20:], 1<<16) // max_write
	case OpLookup:
		body = make([]byte, 40+attrBytes)
		binary.NativeEndian.PutUint64(body[0:], 2)
		attributes(body[40:], 2)
	case OpGetattr, opSetattr:
		body = make([]byte, 16+attrBytes)
		attributes(body[16:], node)
	case opOpen:
		body = make([]byte, 16)
	case OpWrite:
		body = make([]byte, 8)
		binary.NativeEndian.PutUint32(body, binary.NativeEndian.Uint32(in[inHeader+16:]))
	case OpFlush, OpRelease:
	default:
		status = unix.ENOSYS
	}
	out := make([]byte, outHeader, outHeader+len(body))
	binary.NativeEndian.PutUint32(out[0:], uint32(outHeader+len(body)))
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(status)))
	copy(out[8:], in[8:16])
	return append(out, body...)
}

func attributes(b []byte, node uint64) {
	mode := uint32(rootMode)
	if node == 2 {
		mode = fileMode
	}
	binary.NativeEndian.PutUint64(b[0:], node)
	binary.NativeEndian.PutUint64(b[8:], uint64(os.Getpagesize()))
	binary.NativeEndian.PutUint32(b[60:], mode)
	binary.NativeEndian.PutUint32(b[64:], 1)
}
