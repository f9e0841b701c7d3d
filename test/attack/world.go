// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"xsched/internal/control/client"
	"xsched/internal/virtual"
	vdevice "xsched/internal/virtual/device"
	"xsched/test/proc"
)

// Users without an entry in /etc/passwd.
const (
	attackerUID = 65534
	victimUID   = 60001 // of the service and of the job on the same GPU
	otherUID    = 60002 // of the job on the second GPU
)

// gpus has one more than the victims use: it is unused until an attack is under way.
const gpus = 3

// world is a root daemon with a virtual GPU, the victims and a folder for the attacker.
type world struct {
	platform virtual.Platform
	folder   string // of the files under test
	base     string
	dir      string // of the daemon
	limits   unitLimits
	http     string // the address of the daemon's HTTP interface

	device *exec.Cmd
	log    proc.Tail // of the device
	client *client.Client
	daemon *daemon

	service, job, second *victim // on GPU 0, GPU 0 and GPU 1
	held, probed         *victim // on GPU 1: suspended by hand for ever, and again and again
}

func newWorld(p virtual.Platform, folder string, limits unitLimits) (_ *world, err error) {
	w := &world{platform: p, folder: folder, limits: limits}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.base, err = os.MkdirTemp("", "xa"); err != nil {
		return nil, err
	}
	w.dir = filepath.Join(w.base, "run")
	for name, uid := range map[string]int{"": 0, "run": 0, "state": 0, "cache": 0, "attacker": attackerUID, "victim": victimUID, "other": otherUID} {
		path := filepath.Join(w.base, name)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o755), os.Chown(path, uid, uid)); err != nil {
			return nil, err
		}
	}
	makeFuseNode(w.base)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w.http = l.Addr().String()
	_ = l.Close()
	w.client = client.New(filepath.Join(w.dir, "control.sock"))
	if err := w.startDevice(); err != nil {
		return nil, err
	}
	if _, err := w.startDaemon(); err != nil {
		return nil, err
	}
	return w, w.startVictims()
}

func (w *world) startVictims() error {
	w.service = &victim{w: w, name: "service", uid: victimUID, home: "victim", priority: 10, kernelUS: 250, load: "rate 400"}
	w.job = &victim{w: w, name: "job", uid: victimUID, home: "victim", priority: -5, kernelUS: 2000, load: "loop"}
	w.second = &victim{w: w, name: "second", uid: otherUID, home: "other", kernelUS: 2000, load: "loop", device: 1}
	w.held = &victim{w: w, name: "held", uid: victimUID, home: "victim", kernelUS: 2000, load: "loop", device: 1}
	w.probed = &victim{w: w, name: "probed", uid: otherUID, home: "other", kernelUS: 200, load: "rate 20", device: 1}
	for _, v := range w.victims() {
		if err := v.start(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) victims() []*victim {
	return []*victim{w.service, w.job, w.second, w.held, w.probed}
}

// env is the environment of this world's processes.
func (w *world) env(home string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "XSCHED_") && !strings.HasPrefix(kv, "HOME=") {
			env = append(env, kv)
		}
	}
	cache := filepath.Join(w.base, "cache")
	if home != "" {
		cache = filepath.Join(w.base, home)
	}
	return append(env, "XSCHED_DIR="+w.dir, "XSCHED_STATE="+filepath.Join(w.base, "state"), "XSCHED_CACHE="+cache, "HOME="+cache)
}

func (w *world) xsched() string { return filepath.Join(w.folder, "xsched") }
func (w *world) self() string   { return filepath.Join(w.folder, "self") }

func (w *world) startDevice() error {
	socket := w.platform.Socket(w.dir)
	w.device = unitLimits{cores: division().device}.wrap(w.self(), 0, w.xsched(), "vgpu", "--platform", w.platform.Name, "--devices", strconv.Itoa(gpus), "--socket", socket)
	if len(w.platform.Env(w.dir)) > 1 {
		w.device.Args = append(w.device.Args, "--root", filepath.Join(w.dir, "kfd"))
	}
	w.device.Env = w.env("")
	w.device.Stderr = &w.log
	if err := proc.Start(w.device); err != nil {
		return err
	}
	if !await(10*time.Second, func() bool {
		c, err := vdevice.Dial(w.platform.Watch(socket))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}) {
		return errors.New("the virtual GPU does not answer: " + w.log.Last())
	}
	return os.Chmod(socket, 0o666)
}

// close ends everything.
func (w *world) close() {
	for _, v := range w.victims() {
		v.kill()
	}
	if w.daemon != nil {
		w.daemon.kill()
	}
	if w.device != nil && w.device.Process != nil {
		_ = w.device.Process.Kill()
		_ = w.device.Wait()
	}
	_ = os.RemoveAll(w.base)
}

// daemon is one life of `xsched serve`.
type daemon struct {
	cmd    *exec.Cmd
	log    proc.Tail
	logged atomic.Int64 // bytes
	gone   chan struct{}
	over   atomic.Bool // the memory limit ended it
}

// Write counts and keeps what the daemon logs.
func (d *daemon) Write(p []byte) (int, error) {
	d.logged.Add(int64(len(p)))
	return d.log.Write(p)
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

func (d *daemon) ended(limit time.Duration) bool {
	select {
	case <-d.gone:
		return true
	case <-time.After(limit):
		return false
	}
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	d.ended(5 * time.Second)
}

// startDaemon starts a daemon and returns how long it took to answer.
func (w *world) startDaemon() (time.Duration, error) {
	args := []string{
		w.xsched(), "serve", "--virtual", "--platform", w.platform.Name, "--http", w.http, "--log-json",
		"--max-priority", strconv.Itoa(victimUID) + "=10",
	}
	d := &daemon{cmd: w.limits.wrap(w.self(), 0, args...), gone: make(chan struct{})}
	d.cmd.Env = w.env("")
	d.cmd.Stderr = d
	begin := time.Now()
	if err := proc.Start(d.cmd); err != nil {
		return 0, err
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.gone)
	}()
	go d.guard(w.limits.memory)
	w.daemon = d
	w.client.Close()
	if !await(10*time.Second, func() bool {
		v, err := ask(time.Second, w.client.Version)
		return err == nil && v.PID == d.pid() || d.ended(0)
	}) || d.ended(0) {
		return time.Since(begin), errors.New("the daemon does not answer: " + d.log.Last())
	}
	return time.Since(begin), nil
}

// guard ends the daemon if it exceeds the unit's memory, as the kernel would end it.
func (d *daemon) guard(memory int64) {
	for memory > 0 && !d.ended(20*time.Millisecond) {
		if u, err := usageOf(d.pid()); err == nil && u.rss > memory {
			d.over.Store(true)
			_ = d.cmd.Process.Kill()
			return
		}
	}
}

// actor starts this program as the attacker.
func (w *world) actor(name string, args ...string) *exec.Cmd {
	argv := append([]string{w.self(), "act", name, w.dir, w.platform.Name, w.http}, args...)
	// As many descriptors as a login session usually has at most.
	cmd := unitLimits{files: 1 << 20, cores: division().attackers}.wrap(w.self(), attackerUID, argv...)
	cmd.Env = w.env("attacker")
	cmd.Dir = filepath.Join(w.base, "attacker")
	return cmd
}

// await polls until a condition holds.
func await(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// endGroup ends a process that proc.Start started, with its children.
func endGroup(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}
