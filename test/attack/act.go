// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"xsched/internal/control/client"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/virtual"
	"xsched/internal/wire"
)

// longest bounds an attacker's life, should the bench die.
const longest = time.Minute

// attacker is the unprivileged user's program.
type attacker struct {
	dir, http string
	platform  virtual.Platform
	args      []string
	client    *client.Client
	count     atomic.Int64 // of what it did

	// What stays open: the garbage collector closes what nothing refers to.
	inputs   []io.Closer
	sockets  []net.Conn
	sessions []*sessiontest.Client
}

// act is the attacker: NAME DIR PLATFORM HTTP [ARG].
func act(args []string) error {
	if len(args) < 4 {
		return errors.New("use: attack act NAME DIR PLATFORM HTTP [ARG]")
	}
	p, ok := virtual.Find(args[2])
	if !ok {
		return fmt.Errorf("unknown platform %q", args[2])
	}
	a := &attacker{dir: args[1], platform: p, http: args[3], args: args[4:], client: client.New(filepath.Join(args[1], "control.sock"))}
	acts := map[string]func() error{
		"burn": a.burn, "join": a.joinOnce, "refused": a.refusedOnce, "session": a.session,
		"fuse": a.fuse, "linger-sockets": a.lingerSockets, "odd-files": a.oddFiles,
		"merged-queues": a.mergedQueues, "invented-devices": a.inventedDevices, "slo-queues": a.sloQueues, "history-slots": a.historySlots,
		"serial-unmanaged": a.serialUnmanaged, "many-mappings": a.manyMappings, "mappings": a.mappings, "unmanaged": a.unmanaged, "idle-programs": a.idlePrograms,
		"http-accept": a.httpAccept, "healthz": a.healthz, "refused-puts": a.refusedPuts, "reads": a.reads, "slow-readers": a.slowReaders,
		"refusal-log": a.refusalLog, "connections": a.connections, "control-connects": a.controlConnects, "joins": a.joins,
		"hint-requests": a.hintRequests, "hint-frames": a.hintFrames, "attaches": a.attaches, "refused-100k": a.refused100k,
		"doorbells": a.doorbells, "page-noise": a.pageNoise, "log-flood": a.logFlood, "huge-commands": a.hugeCommands, "garbage": a.garbage, "odd-names": a.oddNames,
	}
	do := acts[args[0]]
	if do == nil {
		return fmt.Errorf("unknown act %q", args[0])
	}
	time.AfterFunc(longest, func() { os.Exit(0) })
	return do()
}

// ready ends the preparation. From now on the attacker reports its count.
func (a *attacker) ready(unit string) {
	fmt.Println("R")
	go func() {
		for range time.Tick(500 * time.Millisecond) {
			fmt.Println(a.count.Load(), unit)
		}
	}()
}

// forever repeats f in some goroutines and never returns.
func (a *attacker) forever(goroutines int, unit string, f func(worker int) error) error {
	for i := range goroutines {
		go func() {
			for {
				if f(i) == nil {
					a.count.Add(1)
				} else {
					time.Sleep(time.Millisecond) // a refused attacker does not spin on its own CPU time only
				}
			}
		}()
	}
	a.ready(unit)
	select {}
}

func (a *attacker) socket() string { return filepath.Join(a.dir, "xsched.sock") }

// dial joins as a program of this user, also a daemon of the previous release.
func (a *attacker) dial(h wire.Hello) (*sessiontest.Client, error) {
	h.PID = uint32(os.Getpid())
	c, err := sessiontest.Dial(a.socket(), h)
	if err != nil && strings.Contains(err.Error(), "speaks version") {
		return sessiontest.DialVersion(a.socket(), h, wire.VersionMin)
	}
	return c, err
}

// dialAll joins n times, or as often as the daemon permits. The handshakes overlap.
func (a *attacker) dialAll(n int) []*sessiontest.Client {
	const overlap = 16
	found := make(chan *sessiontest.Client, n)
	for worker := range overlap {
		go func() {
			for i := worker; i < n; i += overlap {
				c, err := a.dial(wire.Hello{})
				if err != nil {
					c = nil
				}
				found <- c
			}
		}()
	}
	var all []*sessiontest.Client
	for range n {
		if c := <-found; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// gpu is the address of the first GPU, as a client writes it into its page.
func (a *attacker) gpu() (domain, busSlot uint32, err error) {
	list, err := ask(10*time.Second, a.client.Devices)
	if err != nil {
		return 0, 0, err
	}
	if len(list.Devices) == 0 {
		return 0, 0, errors.New("the daemon lists no GPU")
	}
	id, err := model.ParseDeviceID(list.Devices[0].ID)
	return uint32(uint64(id) >> 16), uint32(uint64(id) & 0xffff), err
}

// burn uses CPU time and nothing else: PERCENT of a core.
func (a *attacker) burn() error {
	if len(a.args) != 1 {
		return errors.New("use: burn PERCENT")
	}
	percent, err := strconv.Atoi(a.args[0])
	if err != nil {
		return err
	}
	workers := min(runtime.NumCPU(), percent/100+1)
	busy := time.Duration(percent) * time.Millisecond / 10 / time.Duration(workers) // of 10 ms
	return a.forever(workers, "periods", func(int) error {
		begin := time.Now()
		for time.Since(begin) < busy {
			_ = rand.Uint64()
		}
		time.Sleep(10*time.Millisecond - busy)
		return nil
	})
}

// joinOnce joins and leaves. It waits for room in the daemon's queue of connections, as the shim does.
func (a *attacker) joinOnce() error {
	c, err := a.dial(wire.Hello{})
	for end := time.Now().Add(probeLimit); errors.Is(err, syscall.EAGAIN) && time.Now().Before(end); {
		time.Sleep(time.Millisecond / 4)
		c, err = a.dial(wire.Hello{})
	}
	if err == nil {
		c.Close()
	}
	return err
}

// session joins and stays, until its input ends; it joins again without end if asked.
func (a *attacker) session() error {
	again := len(a.args) > 0 && a.args[0] == "again"
	for {
		c, err := a.dial(wire.Hello{})
		switch {
		case err != nil && !again:
			return err
		case err != nil:
			time.Sleep(10 * time.Millisecond)
		case again:
			c.Close()
		default:
			domain, slot, err := a.gpu()
			if err != nil {
				return err
			}
			c.Page.CreateQueue(0, domain, slot)
			c.Ring()
			fmt.Println("R")
			select {}
		}
	}
}
