// SPDX-License-Identifier: Apache-2.0

package windowtest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jezek/xgb"
)

// variable makes a test binary a program with windows. See Main.
const variable = "XSCHED_TEST_WINDOW"

// Own returns an environment variable for a test binary that calls Main. With it the binary opens a
// window and becomes its command, which has that window then.
func Own() string { return variable + "=own" }

// Terminal is Own for a program like a terminal: it opens windows and starts its command once in each.
func Terminal(windows int) string { return variable + "=" + strconv.Itoa(windows) }

// Main runs a program with windows if the environment asks for it; else it returns. TestMain calls it
// first. The command is in os.Args[1:]. It writes a line "W WINDOW PID" per window to standard output,
// with the PID of the command.
func Main() {
	mode := os.Getenv(variable)
	if mode == "" {
		return
	}
	_ = os.Unsetenv(variable)
	if err := run(mode, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "windowtest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(mode string, command []string) error {
	_, number, _ := strings.Cut(os.Getenv("DISPLAY"), ":")
	socket, err := net.Dial("unix", filepath.Join("/tmp/.X11-unix", "X"+number))
	if err != nil {
		return err
	}
	xgb.Logger.SetOutput(io.Discard)
	conn, err := xgb.NewConnNet(socket)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	if mode == "own" {
		id, err := createWindow(conn, "own")
		if err != nil {
			return err
		}
		return become(path, command, socket.(*net.UnixConn), id)
	}
	windows, err := strconv.Atoi(mode)
	if err != nil {
		return err
	}
	var children []*exec.Cmd
	for i := range windows {
		id, err := createWindow(conn, fmt.Sprintf("terminal %d", i))
		if err != nil {
			return err
		}
		child := &exec.Cmd{Path: path, Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
		child.Env = append(os.Environ(), fmt.Sprintf("WINDOWID=%d", id))
		child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := child.Start(); err != nil {
			return err
		}
		children = append(children, child)
		fmt.Printf("W %d %d\n", id, child.Process.Pid)
	}
	for _, child := range children {
		_ = child.Wait()
	}
	return nil
}

// become replaces this process with its command, which inherits the connection to the X server.
func become(path string, command []string, socket *net.UnixConn, id uint32) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { _, failed = syscall.Dup(int(fd)) }); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	fmt.Printf("W %d %d\n", id, os.Getpid())
	return syscall.Exec(path, command, os.Environ())
}
