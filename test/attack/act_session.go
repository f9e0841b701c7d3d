// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"net"
	"time"

	"xsched/internal/clock"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// keep toggles the first queue of each session, so that decisions are due.
func (a *attacker) keep(all []*sessiontest.Client, unit string) error {
	a.count.Store(int64(len(all)))
	on := false
	a.ready(unit)
	for {
		on = !on
		for i, c := range all {
			c.Busy(0, on)
			if i%16 == 15 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// mergedQueues has more queues than a user may have of its own.
func (a *attacker) mergedQueues() error {
	domain, slot, err := a.gpu()
	if err != nil {
		return err
	}
	all := a.dialAll(254)
	for _, c := range all {
		for q := range wire.MaxQueues - 1 {
			c.Page.CreateStream(q, domain, slot, 0)
		}
		c.Ring()
	}
	// The daemon adds queues at a limited rate; the bench's limit ends this wait.
	time.Sleep(8 * time.Second)
	return a.keep(all, "programs with 1,023 queues each")
}

// inventedDevices has busy queues on GPUs that do not exist.
func (a *attacker) inventedDevices() error {
	all := a.dialAll(1024)
	for i, c := range all {
		for q := range 16 {
			c.Page.CreateQueue(q, uint32(0x100+i), uint32(q+1)<<8)
			c.Page.SetBusy(q, true, clock.Now())
		}
		c.Ring()
	}
	time.Sleep(1500 * time.Millisecond) // until the daemon has added them
	return a.keep(all, "programs with 16 invented GPUs each")
}

// historySlots uses invented GPUs, some at a time.
func (a *attacker) historySlots() error {
	all := a.dialAll(2)
	for i, c := range all {
		for q := range 16 {
			c.Page.CreateQueue(q, uint32(0x100+i), uint32(q+1)<<8)
		}
		c.Ring()
	}
	a.ready("programs with 16 invented GPUs each")
	for on := true; ; on = !on {
		for _, c := range all {
			for q := range 16 {
				c.Busy(q, on)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// sloQueues is one program with a latency target and all the queues that a page has.
func (a *attacker) sloQueues() error {
	domain, slot, err := a.gpu()
	if err != nil {
		return err
	}
	c, err := a.dial(wire.Hello{Hint: wire.Hint{Said: wire.HintSLO, SLOUS: 1000}})
	if err != nil {
		return err
	}
	for q := range wire.MaxQueues {
		c.Page.CreateStream(q, domain, slot, 0)
	}
	c.Ring()
	time.Sleep(700 * time.Millisecond)
	return a.keep([]*sessiontest.Client{c}, "programs")
}

// connections opens connections to the client socket and closes them.
func (a *attacker) connections() error {
	return a.forever(16, "connections", func(int) error { return connect("unixpacket", a.socket()) })
}

// controlConnects does so with the control socket.
func (a *attacker) controlConnects() error {
	return a.forever(16, "connections", func(int) error { return connect("unix", a.client.Socket()) })
}

func connect(network, address string) error {
	c, err := net.DialTimeout(network, address, time.Second)
	if err == nil {
		_ = c.Close()
	}
	return err
}

func (a *attacker) joins() error {
	return a.forever(8, "joins", func(int) error { return a.joinOnce() })
}

// refusedOnce is refused, for a check of the log.
func (a *attacker) refusedOnce() error { return a.refuse() }

// refuse is refused, because its first packet is no HELLO, and waits for the answer.
func (a *attacker) refuse() error {
	c, err := net.DialTimeout("unixpacket", a.socket(), time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Write([]byte("this is no HELLO, and the daemon refuses it with a reason")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, wire.FrameMaxBytes))
	return err
}

// refused100k is ready after 100,000 refusals, and goes on.
func (a *attacker) refused100k() error {
	for range 16 {
		go func() {
			for {
				if a.refuse() == nil {
					a.count.Add(1)
				}
			}
		}()
	}
	for end := time.Now().Add(10 * time.Second); a.count.Load() < 100_000 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	a.ready("refusals")
	select {}
}

// refusalLog is refused as many processes.
func (a *attacker) refusalLog() error {
	return a.forever(4, "refused processes", func(int) error { return a.child("refused").Run() })
}

// hintFrames changes hints as fast as the session accepts them.
func (a *attacker) hintFrames() error {
	all := a.dialAll(64)
	return a.forever(len(all), "hint frames", func(i int) error {
		h := wire.Hint{Said: wire.HintPriority, Priority: int64(-rand.IntN(200))}
		return all[i].Send(wire.EncodeHint(wire.HintFrame{Queue: wire.QueueAll, Hint: h}))
	})
}

// doorbells rings and changes queues as fast as possible.
func (a *attacker) doorbells() error {
	domain, slot, err := a.gpu()
	if err != nil {
		return err
	}
	all := a.dialAll(64)
	for _, c := range all {
		for q := range 8 {
			c.Page.CreateStream(q, domain, slot, 0)
		}
		c.Ring()
	}
	return a.forever(2, "doorbells", func(worker int) error {
		c := all[rand.IntN(len(all))]
		c.Page.SetBusy(rand.IntN(8), rand.IntN(2) == 0, clock.Now())
		c.Ring()
		return nil
	})
}

// pageNoise overwrites its pages.
func (a *attacker) pageNoise() error {
	domain, slot, err := a.gpu()
	if err != nil {
		return err
	}
	all := a.dialAll(64)
	return a.forever(2, "random slots", func(int) error {
		c, q := all[rand.IntN(len(all))], rand.IntN(wire.MaxQueues)
		c.Page.CreateStream(q, domain+uint32(rand.IntN(2)), slot, rand.Int32())
		c.Page.Corrupt(q, rand.Uint64(), rand.Uint64(), rand.Uint64())
		c.Page.BeginRequest()
		if rand.IntN(4) == 0 {
			c.Page.DestroyQueue(q)
		}
		c.Ring()
		return nil
	})
}

// logFlood ends valid sessions with a malformed frame, which the daemon logs.
func (a *attacker) logFlood() error {
	return a.forever(8, "malformed frames", func(int) error {
		c, err := a.dial(wire.Hello{})
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Send(wire.EncodeWelcome(1, wire.Version))
	})
}

// garbage sends noise to every socket, with and without a valid HELLO.
func (a *attacker) garbage() error {
	return a.forever(8, "connections", func(worker int) error {
		noise := make([]byte, 1+rand.IntN(2*wire.FrameMaxBytes))
		for i := range noise {
			noise[i] = byte(rand.Uint32())
		}
		network, address := "unixpacket", a.socket()
		switch worker % 4 {
		case 0:
			c, err := a.dial(wire.Hello{})
			if err != nil {
				return err
			}
			defer c.Close()
			return c.Send(noise)
		case 1:
			network, address = "unix", a.client.Socket()
		case 2:
			network, address = "tcp", a.http
		}
		c, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
		_, err = c.Write(noise)
		return err
	})
}

// oddNames joins with a name that terminals would obey.
func (a *attacker) oddNames() error {
	var h wire.Hello
	copy(h.Command[:], "test"+oddName)
	c, err := a.dial(h)
	if err != nil {
		return err
	}
	domain, slot, err := a.gpu()
	if err != nil {
		return err
	}
	c.Page.CreateQueue(0, domain, slot)
	c.Ring()
	return a.keep([]*sessiontest.Client{c}, "programs")
}

// oddName has a C1 control character, which begins an escape sequence, and a change of direction.
const oddName = "\u009b31m\u202eevil\x1b[2J"
