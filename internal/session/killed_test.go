// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// TestMain also serves as the program of the client that TestKilledProcess kills.
func TestMain(m *testing.M) {
	if path := os.Getenv("SESSION_TEST_CLIENT"); path != "" {
		os.Exit(clientProcess(path))
	}
	os.Exit(m.Run())
}

// clientProcess joins, leaves its connection to a child too, and waits to be killed.
func clientProcess(path string) int {
	c, err := sessiontest.Dial(path, wire.Hello{PID: uint32(os.Getpid()), Hint: wire.Hint{Said: wire.HintLevel, Level: int64(wire.LevelInterrupt)}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	packet := sessiontest.Events(sessiontest.EventHandOver)
	fd, _ := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	_, _, _ = c.Conn.WriteMsgUnix(packet, unix.UnixRights(fd), nil)
	f, _ := c.Conn.File()
	sleep := exec.Command("sleep", "30")
	sleep.ExtraFiles = []*os.File{f}
	if err := sleep.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(sleep.Process.Pid)
	time.Sleep(30 * time.Second)
	return 0
}

// The pidfd reports a killed process even if another process still holds its socket.
func TestKilledProcess(t *testing.T) {
	h := sessiontest.Start(t, nil)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SESSION_TEST_CLIENT="+h.Path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	var sleeper int
	if _, err := fmt.Sscan(line, &sleeper); err != nil {
		t.Fatalf("client says %q", line)
	}
	defer func() { _ = unix.Kill(sleeper, unix.SIGKILL) }()
	sessiontest.Await(t, "file there", func() bool { return h.Hardware(0).Files() == 1 })
	_ = cmd.Process.Kill()
	start := time.Now()
	sessiontest.Await(t, "files closed", h.Hardware(0).Closed.Load)
	t.Logf("closed %v after kill -9", time.Since(start))
	_ = cmd.Wait()
}

// The end of a client closes its files at once, even while the loop is blocked.
func TestEndWhileWedged(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, wire.LevelAuto)
	c.HandOver(t)
	c.Queue(0)
	sessiontest.Await(t, "file there", func() bool { return h.Hardware(0).Files() == 1 })
	release := h.Block(t)
	beat := c.Page.LastHeartbeat()
	_ = c.Conn.Close()
	sessiontest.Await(t, "files closed", h.Hardware(0).Closed.Load)
	if c.Page.LastHeartbeat() != beat {
		t.Error("a heartbeat although the engine was blocked")
	}
	release()
	sessiontest.Await(t, "session forgotten", func() bool { return h.Server.Stats().Sessions == 0 })
}
