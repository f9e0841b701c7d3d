// SPDX-License-Identifier: Apache-2.0

// Package kube tests XSched on a real Kubernetes of one node: etcd, API server, controller manager,
// scheduler, kubelet and containerd, with the virtual GPU. Run it with `make test-kube`, as root.
//
// The test binary starts itself again in namespaces of its own: network, mounts, PIDs, cgroups, IPC and
// host name. The node therefore uses the usual paths and addresses, and the host sees none of them. All
// processes end with the PID namespace, also if the test is killed.
package kube

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/test/kube/cgroups"
)

const (
	stageVariable  = "XSCHED_KUBE_STAGE" // tells a copy of the test binary which part it plays
	folderVariable = "XSCHED_KUBE"       // the folder that tools/kube fills
)

const (
	stageInit    = "init"    // PID 1 of the namespaces: sets them up and reaps orphans
	stageTest    = "test"    // runs the tests, in the namespaces
	stageRemove  = "remove"  // outlives a killed test and removes its cgroups
	stageFleet   = "fleet"   // runs the plugins of many nodes, in the namespaces
	stageMachine = "machine" // PID 1 of another node's namespaces
	stageAsk     = "ask"     // sends one request to the daemon, in a container
)

func TestMain(m *testing.M) {
	runtime.LockOSThread() // namespaces and parent death signals belong to threads
	switch os.Getenv(stageVariable) {
	case stageInit:
		os.Exit(runInit())
	case stageRemove:
		os.Exit(removeAtEnd())
	case stageFleet:
		os.Exit(runFleet())
	case stageMachine:
		os.Exit(runMachine())
	case stageAsk:
		os.Exit(runAsk())
	case stageTest:
		code := m.Run()
		shared.end(code != 0)
		os.Exit(code)
	default:
		os.Exit(outside())
	}
}

// again returns a command that runs the test binary at another stage.
func again(stage string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(append(os.Environ(), stageVariable+"="+stage), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "test/kube:", err)
	return 1
}

// outside runs the tests in new namespaces and returns their exit code.
func outside() int {
	if os.Geteuid() != 0 {
		return complain(fmt.Errorf("a node needs root: run make test-kube as root"))
	}
	if os.Getenv(folderVariable) == "" {
		build := exec.Command(root + "/tools/kube")
		build.Stderr = os.Stderr
		built, err := build.Output()
		if err == nil {
			err = os.Setenv(folderVariable, strings.TrimSpace(string(built)))
		}
		if err != nil {
			return complain(fmt.Errorf("tools/kube: %w", err))
		}
	}
	trees, err := cgroups.Find(os.ReadFile)
	if err != nil {
		return complain(err)
	}
	groups, err := ownGroups(trees, "xsched-kube-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		return complain(err)
	}
	// The pipe closes when this process ends, however it ends.
	held, hold, err := os.Pipe()
	if err != nil {
		return complain(err)
	}
	remover := again(stageRemove, groupsVariable+"="+strings.Join(groups, ":"))
	remover.Stdin = held
	remover.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := remover.Start(); err != nil {
		return complain(err)
	}
	_ = held.Close()
	defer func() {
		_ = hold.Close()
		_ = remover.Wait()
	}()
	if err := makeGroups(groups); err != nil {
		return complain(err)
	}
	child := again(stageInit, groupsVariable+"="+strings.Join(groups, ":"))
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := child.Start(); err != nil {
		return complain(fmt.Errorf("make namespaces: %w", err))
	}
	go endWithParent(os.Getppid())
	_ = child.Wait()
	return child.ProcessState.ExitCode()
}

// endWithParent ends this process when the go command has been killed.
func endWithParent(parent int) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	os.Exit(complain(fmt.Errorf("the go command has ended")))
}

// runInit is PID 1: it prepares the namespaces, runs the tests and reaps every orphan until they end.
// When it exits, the kernel kills all processes that are left.
func runInit() int {
	trees, err := cgroups.Find(os.ReadFile)
	if err != nil {
		return complain(err)
	}
	if err := enterGroups(trees, strings.Split(os.Getenv(groupsVariable), ":")); err != nil {
		return complain(err)
	}
	if err := mountAll(trees); err != nil {
		return complain(err)
	}
	if err := configureNetwork(); err != nil {
		return complain(err)
	}
	tests := again(stageTest, "TMPDIR="+temporaryDir)
	if err := tests.Start(); err != nil {
		return complain(err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return complain(fmt.Errorf("wait for the tests: %w", err))
		case pid == tests.Process.Pid && status.Signaled():
			return complain(fmt.Errorf("the tests ended by %v", status.Signal()))
		case pid == tests.Process.Pid:
			return status.ExitStatus()
		}
	}
}
