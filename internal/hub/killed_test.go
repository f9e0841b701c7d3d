// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia"
	"xsched/internal/wire"
)

// TestMain also is the program of a client that is to be killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("HUB_TEST_CLIENT"); path != "" {
		os.Exit(clientProcess(path))
	}
	os.Exit(m.Run())
}

// clientProcess joins, leaves its connection to a child too, and waits to be killed.
func clientProcess(path string) int {
	c, err := dial(path, wire.Hello{PID: uint32(os.Getpid()), Hint: wire.Hint{Said: wire.HintLevel, Level: int64(wire.LevelInterrupt)}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	packet, _ := nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMClient, Client: 7, Object: 7}})
	fd, _ := unix.MemfdCreate("control", unix.MFD_CLOEXEC)
	_, _, _ = c.conn.WriteMsgUnix(packet, unix.UnixRights(fd), nil)
	f, _ := c.conn.File()
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

// kill -9 of a process whose socket somebody else still holds: the pidfd tells.
func TestKilledProcess(t *testing.T) {
	h := startHub(t, nil)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "HUB_TEST_CLIENT="+h.path)
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
	await(t, "file there", func() bool {
		h.hardware(0).mu.Lock()
		defer h.hardware(0).mu.Unlock()
		return len(h.hardware(0).files) == 1
	})
	_ = cmd.Process.Kill()
	start := time.Now()
	await(t, "files closed", h.hardware(0).closed.Load)
	t.Logf("closed %v after kill -9", time.Since(start))
	_ = cmd.Wait()
}

// The end of a client closes its files at once, also while the engine is blocked.
func TestEndWhileWedged(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, wire.LevelAuto)
	c.handOver(t)
	c.queue(0)
	await(t, "file there", func() bool {
		h.hardware(0).mu.Lock()
		defer h.hardware(0).mu.Unlock()
		return len(h.hardware(0).files) == 1
	})
	release := h.block(t)
	beat := c.page.LastHeartbeat()
	_ = c.conn.Close()
	await(t, "files closed", h.hardware(0).closed.Load)
	if c.page.LastHeartbeat() != beat {
		t.Error("a heartbeat although the engine was blocked")
	}
	release()
	await(t, "session forgotten", func() bool { return h.count() == 0 })
}
