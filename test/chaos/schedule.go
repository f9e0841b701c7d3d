// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// Setup describes a world.
type Setup struct {
	Platform string `json:"platform"`
	Devices  int    `json:"devices"`
	Record   bool   `json:"record"`  // the daemon records into the folder that may become full
	State    bool   `json:"state"`   // the daemon keeps what is set at run time
	Service  bool   `json:"service"` // the guardian runs as a service
	Kube     bool   `json:"kube"`    // a node plugin runs against an API server
	OldShim  bool   `json:"old_shim"`
	EndKill  bool   `json:"end_kill"` // the world ends with SIGKILL of the daemon, not SIGTERM
	Batch    bool   `json:"batch"`    // the service submits many short kernels, which gather on the device
}

// policy is the one that holds where no fault has changed it.
func (s Setup) policy() string {
	if s.Batch {
		return "HPF"
	}
	return "HPF/in-time"
}

// Fault is one entry of a schedule. All random choices are in it, so that a replay repeats them.
type Fault struct {
	AtMS   int    `json:"at_ms"` // since the segment began
	Kind   string `json:"kind"`
	Role   string `json:"role,omitempty"` // the tenant it is about
	ForMS  int    `json:"for_ms,omitempty"`
	Number int    `json:"number,omitempty"`
	Text   string `json:"text,omitempty"`
}

func (f Fault) String() string {
	return fmt.Sprintf("%5d ms  %s %s%s for %d ms (%d)", f.AtMS, f.Kind, f.Role, f.Text, f.ForMS, f.Number)
}

func (f Fault) duration() time.Duration { return time.Duration(f.ForMS) * time.Millisecond }

// Schedule is an episode: a fresh world, segments of faults, and a quiet check after each segment.
type Schedule struct {
	Seed     uint64    `json:"seed"`
	Episode  int       `json:"episode"`
	Setup    Setup     `json:"setup"`
	Segments [][]Fault `json:"segments"`
}

// Faults counts the faults of all segments.
func (s Schedule) Faults() (n int) {
	for _, segment := range s.Segments {
		n += len(segment)
	}
	return n
}

// plan bounds what the generator makes.
type plan struct {
	segments, faults int     // segments an episode, faults a segment
	rate             float64 // faults a second
	only             []string
	root, older      bool
	kube             bool     // the node plugin's binary is there
	spaces           []string // namespaces that can be created
	platform         string   // empty: by chance
}

// generate makes the schedule of one episode. It depends on its arguments only.
func generate(seed uint64, episode int, p plan) Schedule {
	r := rand.New(rand.NewPCG(seed, uint64(episode)))
	s := Schedule{Seed: seed, Episode: episode, Setup: Setup{
		Platform: "nvidia", Devices: 1 + r.IntN(4)/3, Record: r.IntN(3) == 0, EndKill: r.IntN(2) == 0,
	}}
	if r.IntN(5) == 0 {
		s.Setup.Platform = "amd"
	}
	if p.platform != "" {
		s.Setup.Platform = p.platform
	}
	s.Setup.OldShim = r.IntN(4) == 0 && p.older
	s.Setup.State, s.Setup.Service = r.IntN(2) == 0, r.IntN(3) == 0
	s.Setup.Kube = r.IntN(4) == 0 && p.kube
	s.Setup.Batch = r.IntN(2) == 0 && s.Setup.Platform == "nvidia"
	table, total := choices(s.Setup, p)
	for range p.segments {
		var segment []Fault
		at := 0.0
		for range p.faults {
			at += r.ExpFloat64() * 1000 / p.rate
			segment = append(segment, draw(r, table, total, int(at)))
		}
		s.Segments = append(s.Segments, segment)
	}
	return s
}

// choices returns the kinds that can occur in a world, and the sum of their weights.
func choices(s Setup, p plan) (table []kind, total int) {
	for _, k := range kinds() {
		if k.root && !p.root || k.older && !p.older || k.kube && !s.Kube || k.platform != "" && k.platform != s.Platform || !listed(p.only, k.name) {
			continue
		}
		if k.spaces {
			k.texts = slices.DeleteFunc(slices.Clone(k.texts), func(text string) bool {
				return slices.ContainsFunc(strings.Split(text, ","), func(s string) bool { return !slices.Contains(p.spaces, s) })
			})
			if len(k.texts) == 0 {
				continue
			}
		}
		table, total = append(table, k), total+k.weight
	}
	return table, total
}

func listed(only []string, name string) bool {
	return len(only) == 0 || slices.Contains(only, name)
}

func draw(r *rand.Rand, table []kind, total, at int) Fault {
	n := r.IntN(total)
	k := table[0]
	for _, k = range table {
		if n -= k.weight; n < 0 {
			break
		}
	}
	f := Fault{AtMS: at, Kind: k.name, ForMS: k.shortest, Number: r.IntN(1 << 16)}
	if k.longest > k.shortest {
		f.ForMS += r.IntN(k.longest - k.shortest)
	}
	if len(k.roles) > 0 {
		f.Role = k.roles[r.IntN(len(k.roles))]
	}
	if len(k.texts) > 0 {
		f.Text = k.texts[r.IntN(len(k.texts))]
	}
	return f
}

// readSchedule reads a schedule, or the minimal schedule of a failure file.
func readSchedule(path string) (Schedule, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Schedule{}, fmt.Errorf("read schedule: %w", err)
	}
	var failure Failure
	if err := json.Unmarshal(text, &failure); err != nil {
		return Schedule{}, fmt.Errorf("read schedule %s: %w", path, err)
	}
	s := failure.Minimal
	if s.Faults() == 0 {
		s = failure.Schedule
	}
	if s.Faults() == 0 {
		return Schedule{}, errors.New("read schedule " + path + ": it has no faults; use a failure file of this program")
	}
	for _, segment := range s.Segments {
		for _, f := range segment {
			if _, ok := findKind(f.Kind); !ok {
				return Schedule{}, fmt.Errorf("read schedule %s: unknown kind of fault %q", path, f.Kind)
			}
		}
	}
	return s, nil
}
