// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Report is the result of a campaign.
type Report struct {
	Seed     uint64                 `json:"seed"`
	Version  string                 `json:"version"`
	Other    string                 `json:"other_version,omitempty"`
	Faults   int                    `json:"faults"`
	Episodes int                    `json:"episodes"`
	Worlds   int                    `json:"worlds"`
	Seconds  float64                `json:"seconds"`
	Stalled  float64                `json:"stalled_percent"` // of the time, a runnable thread waited
	Kinds    map[string]*KindResult `json:"kinds"`
	Rules    map[string]int         `json:"violations_by_rule"`
	Failures []Failure              `json:"failures"`
	Broken   []string               `json:"broken,omitempty"`
	Batches  uint64                 `json:"batches"` // of kernels, released to the device
}

const maxFailureFiles = 5

func (c *campaign) report(took time.Duration, stalled time.Duration) Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := Report{
		Seed: c.seed, Faults: c.done, Episodes: c.next, Worlds: c.worlds, Seconds: took.Seconds(), Kinds: c.kinds,
		Rules: map[string]int{}, Failures: c.failures, Broken: c.broken, Batches: c.batches, Stalled: 100 * float64(stalled) / float64(took),
	}
	for _, f := range c.failures {
		for _, v := range f.Violations {
			r.Rules[v.Rule]++
		}
	}
	return r
}

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %d faults in %d episodes, %d worlds, %.0f s, %.1f faults a second; a thread waited %.0f %% of the time; %d batches of kernels\n",
		r.Seed, r.Faults, r.Episodes, r.Worlds, r.Seconds, float64(r.Faults)/r.Seconds, r.Stalled, r.Batches)
	fmt.Fprintf(&b, "%-18s %7s %9s %10s %10s %10s %11s\n", "kind", "count", "could not", "worst ms", "over ms", "answer ms", "violations")
	for _, k := range kinds() {
		if s := r.Kinds[k.name]; s != nil {
			fmt.Fprintf(&b, "%-18s %7d %9d %10.0f %10.0f %10.0f %11d\n", k.name, s.Count, s.Failed, s.WorstMS, s.OverMS, s.AnswerMS, s.Violations)
		}
	}
	for rule, n := range r.Rules {
		fmt.Fprintf(&b, "violated %-10s %d times\n", rule, n)
	}
	for _, text := range r.Broken {
		fmt.Fprintf(&b, "no world: %s\n", text)
	}
	for i, f := range r.Failures {
		fmt.Fprintf(&b, "failure %d, episode %d: %v\n", i, f.Schedule.Episode, f.Violations[0])
		for _, fault := range f.Violations[0].Active {
			fmt.Fprintf(&b, "  beside %v\n", fault)
		}
		switch {
		case f.Minimal.Faults() > 0:
			b.WriteString("  minimal schedule:\n")
			for _, segment := range f.Minimal.Segments {
				for _, fault := range segment {
					fmt.Fprintf(&b, "    %v\n", fault)
				}
			}
		case f.Replays > 0:
			fmt.Fprintf(&b, "    did not fail again in %d replays\n", f.Replays)
		}
	}
	if len(r.Failures) == 0 && len(r.Broken) == 0 {
		b.WriteString("no promise was broken\n")
	}
	return b.String()
}

// write stores the report, and one file for each of the first failures.
func (r Report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs error
	for i, f := range r.Failures[:min(maxFailureFiles, len(r.Failures))] {
		errs = errors.Join(errs, writeJSON(filepath.Join(dir, fmt.Sprintf("failure-%d.json", i)), f))
	}
	errs = errors.Join(errs, writeJSON(filepath.Join(dir, "report.json"), r))
	return errors.Join(errs, os.WriteFile(filepath.Join(dir, "report.txt"), []byte(r.String()), 0o644))
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
