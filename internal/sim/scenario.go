// SPDX-License-Identifier: Apache-2.0

// Package sim runs the real engine and policies on a virtual clock, with the GPU model of the
// virtual GPU. It simulates thousands of tenants in seconds; equal seeds give equal results.
//
// A scenario (scenario.go, yaml.go) places tenants on devices. Devices that share no tenant and no
// gang form independent cells (cell.go), each with its own engine, and run in parallel (run.go).
// Replay (replay.go) turns a recording into a scenario.
package sim

import (
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// Scenario describes a simulation. Zero values select the defaults.
type Scenario struct {
	Name  string `yaml:"name"`
	About string `yaml:"about"`

	Duration Duration  `yaml:"duration"` // default 10 s
	Warmup   *Duration `yaml:"warmup"`   // excluded from results; default 5 % of duration
	Seed     uint64    `yaml:"seed"`     // default 1
	Devices  int       `yaml:"devices"`  // default 1

	Policy string     `yaml:"policy"` // default HPF
	Mode   model.Mode `yaml:"mode"`   // default live
	Level  int        `yaml:"level"`  // for mode level
	Engine Knobs      `yaml:"engine"`
	// PerDevice are devices with a policy or mode of their own. They keep it in comparisons,
	// except with native.
	PerDevice []DeviceSetting `yaml:"per_device"`

	GPU     GPU      `yaml:"gpu"`
	Host    Host     `yaml:"host"`
	Tenants []Tenant `yaml:"tenants"`
	// Cases are selections of the tenants, each simulated by itself.
	Cases []Case `yaml:"cases"`

	firstNumber int // number of the first program: selects random streams
}

// DeviceSetting is the policy and mode of one device; empty: those of the scenario.
type DeviceSetting struct {
	Device int        `yaml:"device"` // from 0
	Policy string     `yaml:"policy"`
	Mode   model.Mode `yaml:"mode"`
	Level  int        `yaml:"level"` // for mode level
}

// deviceID is the engine's name of a device.
func deviceID(device int) model.DeviceID { return model.DeviceID(device + 1) }

// Knobs are parameters of the engine; nil selects its default.
type Knobs struct {
	Quantum         *Duration `yaml:"quantum"`
	StarvationBound *Duration `yaml:"starvation_bound"`
	Hold            *Duration `yaml:"hold"`
	HighSlice       *Duration `yaml:"high_slice"`
	LowSlice        *Duration `yaml:"low_slice"`
	PeerSlice       *Duration `yaml:"peer_slice"`
	GrantSlice      *Duration `yaml:"grant_slice"`
	InFlight        int       `yaml:"in_flight"`
	Batch           int       `yaml:"batch"`
}

// GPU describes the devices; nil selects the value measured on an H200.
type GPU struct {
	Slice     *Duration `yaml:"slice"`      // default timeslice
	MidSwitch *Duration `yaml:"mid_switch"` // context switch from or to a preempted kernel
	Switch    *Duration `yaml:"switch"`     // any other context switch
	Suspend   RPC       `yaml:"suspend"`
	Resume    RPC       `yaml:"resume"`
	SetSlice  RPC       `yaml:"set_slice"`
	// Also is the time that each further process adds to one call that suspends or resumes several.
	Also *Duration `yaml:"also"`
	// CopySlice is the timeslice of the copy engine, CopyRate its bytes per second, and CopySlowdown
	// the part of a kernel's speed that a copy at the same time takes.
	CopySlice    *Duration `yaml:"copy_slice"`
	CopyRate     int64     `yaml:"copy_rate"`
	CopySlowdown float64   `yaml:"copy_slowdown"`
	// Memory is that of each device, for tenants with memory; MoveRate the bytes per second that move in one
	// direction.
	Memory   Bytes `yaml:"memory"`
	MoveRate int64 `yaml:"move_rate"`
	Channels int   `yaml:"channels"` // compute channels per process; default 8
	Level    int   `yaml:"level"`    // highest supported level; default 3
	Slices   *bool `yaml:"slices"`   // has hardware timeslices; default yes
}

// RPC is the latency of a request to the device's firmware.
type RPC struct {
	Reply  *Duration `yaml:"reply"`  // until the caller gets its reply and the next request starts
	Effect *Duration `yaml:"effect"` // until the device acts on it
}

// Host describes latencies of the host.
type Host struct {
	// Reaction is the time from a queue's state change to the decision.
	Reaction *Duration `yaml:"reaction"`
	// Dispatch is the time from the decision to the worker's call of the driver.
	Dispatch *Dist `yaml:"dispatch"`
	// Return is the time from the end of the last kernel until the program observes it.
	Return *Duration `yaml:"return"`
}

// Tenant is one program or Count identical ones.
type Tenant struct {
	Name  string `yaml:"name"`
	Count int    `yaml:"count"` // default 1
	// On lists the devices, assigned round-robin; default all.
	On []int `yaml:"on"`
	// Ranks is the number of devices per program. Each request runs the same kernels on all of
	// them. Ranks are processes of one gang, or one process.
	Ranks      int  `yaml:"ranks"`
	OneProcess bool `yaml:"one_process"`

	// User owns the program, and MaxPriority is the administrator's limit of its rank; nil: none.
	// Memory is what the program holds on each of its devices, and what moves if programs do not fit together.
	Memory Bytes `yaml:"memory"`

	User        string `yaml:"user"`
	MaxPriority *int   `yaml:"max_priority"`

	Hint     Hint     `yaml:"hint"`
	Arrivals Arrivals `yaml:"arrivals"`
	Kernel   Dist     `yaml:"kernel"`  // duration of a kernel
	Kernels  Number   `yaml:"kernels"` // per request; default 1
	Launch   Dist     `yaml:"launch"`  // CPU time between two launches
	Copy     int64    `yaml:"copy"`    // bytes copied after the kernels
	Wait     Wait     `yaml:"wait"`    // how the program waits for a request; default sync
	// Segments replaces the five fields above for a request of several parts.
	Segments []Segment `yaml:"segments"`
	// Vary is the standard deviation of the logarithm of a factor on all CPU times of a request.
	Vary  float64 `yaml:"vary"`
	Stall Stall   `yaml:"stall"`

	Start Duration `yaml:"start"`
	Stop  Duration `yaml:"stop"` // 0: never

	pid int // set by replay: queues with the same pid share a process
}

// Arrivals defines when requests arrive. Exactly one kind is set.
type Arrivals struct {
	Poisson   float64   `yaml:"poisson"` // mean requests per second
	Rate      float64   `yaml:"rate"`    // requests per second at regular intervals
	OnOff     *OnOff    `yaml:"onoff"`
	Closed    *Closed   `yaml:"closed"`
	TraceFile string    `yaml:"trace"`
	Trace     []Request `yaml:"-"` // contents of TraceFile, or set by a program
	// Jitter delays each request of Rate by a random part of the period, 0 to 1.
	Jitter float64 `yaml:"jitter"`
}

// OnOff is a bursty Poisson stream.
type OnOff struct {
	Rate float64 `yaml:"rate"`
	On   Dist    `yaml:"on"`
	Off  Dist    `yaml:"off"`
}

// Closed is a closed loop: Depth requests are in flight, and Think passes between the end of one
// and the next.
type Closed struct {
	Depth int  `yaml:"depth"`
	Think Dist `yaml:"think"`
}

// Request is an entry of a trace.
type Request struct {
	At      time.Duration // since the tenant's start; in a closed loop, the think time before it
	Work    time.Duration // GPU time of each kernel; 0: the tenant's Kernel
	Kernels int           // of each segment; 0: the tenant's Kernels
}

// Bytes is a size, such as 90GiB.
type Bytes model.Bytes

func (g *GPU) moveRate() int64 {
	if g.MoveRate > 0 {
		return g.MoveRate
	}
	return defaultMoveRate
}

// Limits of a scenario.
const (
	maxDevices   = 100_000
	maxInstances = 1_000_000
	maxKernels   = 100_000
	maxDuration  = 24 * time.Hour
)

func orElse(d *Duration, other time.Duration) time.Duration {
	if d == nil {
		return other
	}
	return d.D()
}

// costs returns the device's costs. One channel stands for all channels of a process, so the cost
// per channel is folded into the fixed part, and that of a further process takes its place.
func (g *GPU) costs() gpumodel.Costs {
	c := gpumodel.RemoteCosts() // the daemon is another process
	c.Block = 0
	c.ComputeSlice = orElse(g.Slice, c.ComputeSlice)
	c.CopySlice = orElse(g.CopySlice, c.CopySlice)
	c.MidSwitch = orElse(g.MidSwitch, c.MidSwitch)
	c.Switch = orElse(g.Switch, c.Switch)
	if g.CopyRate > 0 {
		c.CopyBytesPerSecond = g.CopyRate
	}
	c.CopySlowdown = g.CopySlowdown
	channels := time.Duration(8)
	if g.Channels > 0 {
		channels = time.Duration(g.Channels)
	}
	fold := func(r gpumodel.RPC, with RPC) gpumodel.RPC {
		also := orElse(g.Also, channels*r.ReplyPerChannel)
		out := gpumodel.RPC{
			Reply: r.Reply + channels*r.ReplyPerChannel - also, ReplyPerChannel: also, ReplyPreempt: r.ReplyPreempt,
			Effect: orElse(with.Effect, r.Effect+channels*r.EffectPerChannel),
		}
		if with.Reply != nil {
			out.Reply, out.ReplyPreempt = with.Reply.D()-also, 0
		}
		return out
	}
	c.Suspend, c.Resume = fold(c.Suspend, g.Suspend), fold(c.Resume, g.Resume)
	c.SetSlice.Reply = orElse(g.SetSlice.Reply, c.SetSlice.Reply)
	c.SetSlice.Effect = orElse(g.SetSlice.Effect, c.SetSlice.Effect)
	return c
}

// engineConfig returns the engine's configuration for a policy and a mode.
func (s *Scenario) engineConfig(policy string, mode model.Mode) engine.Config {
	c := engine.DefaultConfig()
	c.Policy, c.Mode, c.Strategies = policy, mode, strategies
	if mode == model.ModeLevel {
		c.ForceLevel = model.Level(s.Level)
	}
	for _, d := range s.PerDevice {
		if mode == model.ModeOff {
			break // native hardware scheduling everywhere
		}
		if c.Devices == nil {
			c.Devices = map[model.DeviceID]engine.Setting{}
		}
		c.Devices[deviceID(d.Device)] = engine.Setting{Policy: d.Policy, Mode: d.Mode, ForceLevel: model.Level(d.Level)}
	}
	k := &s.Engine
	c.Quantum = orElse(k.Quantum, c.Quantum)
	c.StarvationBound = orElse(k.StarvationBound, c.StarvationBound)
	c.Hold = orElse(k.Hold, c.Hold)
	c.HighSlice = orElse(k.HighSlice, c.HighSlice)
	c.LowSlice = orElse(k.LowSlice, c.LowSlice)
	c.PeerSlice = orElse(k.PeerSlice, c.PeerSlice)
	c.GrantSlice = orElse(k.GrantSlice, c.GrantSlice)
	if k.InFlight > 0 {
		c.InFlight = k.InFlight
	}
	if k.Batch > 0 {
		c.Batch = k.Batch
	}
	return c
}

// defaultReaction covers the doorbell and one thread wake-up. defaultDispatch is the maximum for
// the second wake-up, of the worker.
const (
	defaultReaction = 40 * time.Microsecond
	defaultDispatch = 40 * time.Microsecond
)

// complete fills in the defaults.
func (s *Scenario) complete() {
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	if s.Name == "" {
		s.Name = "scenario"
	}
	if s.Duration == 0 {
		s.Duration = Duration(10 * time.Second)
	}
	if s.Warmup == nil {
		w := s.Duration / 20
		s.Warmup = &w
	}
	if s.Seed == 0 {
		s.Seed = 1
	}
	if s.Policy == "" {
		s.Policy = "HPF"
	}
	if s.Mode == "" {
		s.Mode = model.ModeLive
	}
	set(&s.Devices, 1)
	set(&s.GPU.Level, int(model.LevelInterrupt))
	for i := range s.Tenants {
		t := &s.Tenants[i]
		set(&t.Count, 1)
		set(&t.Ranks, 1)
		t.Kernels.orOne()
		if t.Wait == "" {
			t.Wait = WaitSync
		}
		for k := range t.Segments {
			t.Segments[k].complete()
		}
		if c := t.Arrivals.Closed; c != nil {
			set(&c.Depth, 1)
		}
	}
}
