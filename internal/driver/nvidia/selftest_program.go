// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
	"xsched/internal/seqpacket"
)

// testProgram is the running test program, shim/selftest, and our end of its socket.
type testProgram struct {
	command *exec.Cmd
	socket  int
	stderr  *tail
	ended   chan struct{} // closed when the process has ended
	once    sync.Once
}

// progress is what the kernel has written so far; words change while it runs.
type progress struct {
	words [2]uint64
	done  bool
}

// kernelResult is a kernel's output in host and device memory.
type kernelResult [4]uint64

// startTest starts the program on one GPU.
func startTest(ctx context.Context, gpu model.DeviceID, program func() (string, []string, error)) (*testProgram, string, error) {
	path, env, err := program()
	if err != nil {
		return nil, "", err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("make socket: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "self-test")
	p := &testProgram{socket: pair[0], stderr: &tail{}, ended: make(chan struct{})}
	p.command = exec.Command(path, "3")
	p.command.Env, p.command.ExtraFiles, p.command.Stderr = testEnvironment(env), []*os.File{theirs}, p.stderr
	err = p.command.Start()
	_ = theirs.Close() // so that the program's exit closes the socket
	if err != nil {
		_ = unix.Close(p.socket)
		return nil, "", fmt.Errorf("start the test program: %w", err)
	}
	go func() {
		_ = p.command.Wait()
		close(p.ended)
	}()
	name, _, err := p.ask(ctx, openTime, "open "+gpu.String())
	if err != nil {
		return p, "", err
	}
	return p, strings.TrimPrefix(name, "ok "), nil
}

// testEnvironment makes every GPU visible, disables the kernel cache, and avoids MPS, whose other
// clients would be suspended too.
func testEnvironment(env []string) []string {
	ours := []string{"CUDA_MPS_PIPE_DIRECTORY=/nonexistent", "CUDA_CACHE_DISABLE=1", "CUDA_VISIBLE_DEVICES="}
	out := slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.ContainsFunc(ours, func(o string) bool { return strings.HasPrefix(o, name+"=") })
	})
	return append(out, ours[:2]...)
}

// kill ends the program, because a process with suspended channels may be unable to exit. Pending
// and later requests fail.
func (p *testProgram) kill() {
	_ = p.command.Process.Kill()
	_ = unix.Shutdown(p.socket, unix.SHUT_RDWR)
}

// stop kills the program and releases the socket. The wait for its end is bounded, because even a
// killed process may be stuck in the driver. Preconditions: no request is in progress.
func (p *testProgram) stop() {
	p.once.Do(func() {
		p.kill()
		select {
		case <-p.ended:
		case <-time.After(stopTime):
		}
		_ = unix.Close(p.socket)
	})
}

// ask sends a command and waits for the answer, possibly with a descriptor.
func (p *testProgram) ask(ctx context.Context, limit time.Duration, command string) (string, int, error) {
	if err := unix.Sendmsg(p.socket, []byte(command), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
		return "", -1, p.explain(command, err)
	}
	return p.receive(ctx, limit, command)
}

func (p *testProgram) receive(ctx context.Context, limit time.Duration, command string) (string, int, error) {
	end := time.Now().Add(limit)
	for {
		pfd := []unix.PollFd{{Fd: int32(p.socket), Events: unix.POLLIN}}
		n, err := unix.Poll(pfd, 20)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return "", -1, p.explain(command, err)
		case n > 0:
			return p.packet(command)
		case ctx.Err() != nil:
			return "", -1, p.explain(command, ctx.Err())
		case time.Now().After(end):
			return "", -1, p.explain(command, fmt.Errorf("no answer within %v", limit))
		}
	}
}

func (p *testProgram) packet(command string) (string, int, error) {
	var data [1024]byte
	var oob [64]byte
	n, oobn, _, _, err := unix.Recvmsg(p.socket, data[:], oob[:], unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return "", -1, p.explain(command, err)
	}
	fd := -1
	if fds := seqpacket.Rights(oob[:oobn]); len(fds) > 0 {
		fd = fds[0]
		closeAll(fds[1:])
	}
	text := string(data[:n])
	if what, failed := strings.CutPrefix(text, "error "); failed {
		err = p.explain(command, errors.New(what))
	} else if n == 0 {
		err = p.explain(command, errors.New("the test program ended"))
	}
	return text, fd, err
}

// explain appends the program's standard error.
func (p *testProgram) explain(command string, err error) error {
	verb, _, _ := strings.Cut(command, " ")
	if text := p.stderr.String(); text != "" {
		return fmt.Errorf("%s: %w; stderr: %s", verb, err, text)
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// files receives duplicates of candidate control files.
func (p *testProgram) files(ctx context.Context) ([]int, error) {
	text, fd, err := p.ask(ctx, answerTime, "files")
	var fds []int
	for ; err == nil && text == "file"; text, fd, err = p.receive(ctx, answerTime, "files") {
		if fd >= 0 {
			fds = append(fds, fd)
		}
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

func (p *testProgram) launch(ctx context.Context, work uint32) error {
	_, _, err := p.ask(ctx, answerTime, fmt.Sprintf("launch %d %d", work, testSeed))
	return err
}

func (p *testProgram) read(ctx context.Context) (out progress, err error) {
	text, _, err := p.ask(ctx, answerTime, "read")
	if err != nil {
		return out, err
	}
	var state string
	if _, err := fmt.Sscanf(text, "words %d %d %s", &out.words[0], &out.words[1], &state); err != nil {
		return out, p.explain("read", fmt.Errorf("%q: %w", text, err))
	}
	out.done = state == "done"
	return out, nil
}

func (p *testProgram) result(ctx context.Context) (out kernelResult, err error) {
	text, _, err := p.ask(ctx, answerTime, "result")
	if err != nil {
		return out, err
	}
	if _, err := fmt.Sscanf(text, "result %d %d %d %d", &out[0], &out[1], &out[2], &out[3]); err != nil {
		return out, p.explain("result", fmt.Errorf("%q: %w", text, err))
	}
	return out, nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 1000

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if extra := len(t.text) - tailBytes; extra > 0 {
		t.text = t.text[extra:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
