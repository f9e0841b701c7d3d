// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"xsched/internal/atomicfile"
)

// Bounds are what an attack may cost others.
type Bounds struct {
	// Ratio limits the service's P99 and the jobs' time per iteration, against alone and control.
	Ratio float64 `json:"ratio"`
	P99   bool    `json:"p99"` // whether Ratio applies to the service
	// CPU is what the daemon may use in addition, in percent of a core.
	CPU float64 `json:"cpu_percent"`
	// MemoryMB is what the daemon may need in addition: a quarter of the unit's MemoryMax, so that four
	// such users at once do not get it killed.
	MemoryMB float64 `json:"memory_mb"`
	// ProbeMS limits each request of root, and a new program's handshake.
	ProbeMS    float64 `json:"probe_ms"`
	TermMS     float64 `json:"term_ms"`  // from SIGTERM to the daemon's end
	StartMS    float64 `json:"start_ms"` // until the next daemon answers
	RecoveryMS float64 `json:"recovery_ms"`
	WrittenMB  float64 `json:"written_mb_per_s"` // by the daemon, to files
	LoggedKB   float64 `json:"logged_kb_per_s"`
}

func usualBounds() Bounds {
	return Bounds{
		Ratio: 1.10, P99: true, CPU: 50, MemoryMB: 256, ProbeMS: 1000, TermMS: 2000, StartMS: 2000, RecoveryMS: 5000,
		WrittenMB: 4, LoggedKB: 64,
	}
}

// Row is the result of one attack.
type Row struct {
	Attack   string `json:"attack"`
	ID       string `json:"id"`
	Platform string `json:"platform"`
	What     string `json:"what"`
	Skipped  string `json:"skipped,omitempty"` // why it did not run
	Did      string `json:"did,omitempty"`     // the attacker's own report

	P99MS         Triple  `json:"p99_ms"`
	JobRate       Triple  `json:"job_per_s"`
	SecondRate    Triple  `json:"second_job_per_s"`
	P99           Ratio   `json:"p99_ratio"`
	P99Control    Ratio   `json:"p99_ratio_to_control"`
	Job           Ratio   `json:"job_slowdown"`
	JobControl    Ratio   `json:"job_slowdown_to_control"`
	Second        Ratio   `json:"second_job_slowdown"`
	SecondControl Ratio   `json:"second_job_slowdown_to_control"`
	DaemonCPU     Triple  `json:"daemon_cpu_percent"`
	AttackerCPU   float64 `json:"attacker_cpu_percent"`
	// Amplification is the CPU time that the daemon uses in addition, per CPU time of the attacker. An
	// attacker counts with 1 % of a core at least, so that the figure is a lower bound for idle ones.
	Amplification  float64            `json:"amplification"`
	MemoryMB       Triple             `json:"daemon_memory_mb"`
	Files          Triple             `json:"daemon_files"`
	Threads        Triple             `json:"daemon_threads"`
	Decisions      Triple             `json:"decisions_per_s"`
	WrittenMB      Triple             `json:"written_mb_per_s"`
	LoggedKB       Triple             `json:"logged_kb_per_s"`
	ProbesMS       map[string]float64 `json:"probes_ms"` // the slowest while attacked
	HeldIterations int                `json:"held_iterations"`
	// Spoiled is the share of the time during which the host withheld CPUs; the ratios exclude it.
	Spoiled    float64  `json:"spoiled_percent"`
	TermMS     float64  `json:"term_ms"`
	StartMS    float64  `json:"start_ms"`
	RecoveryMS float64  `json:"recovery_ms"`
	Broken     []string `json:"broken"`
}

// Triple has a figure for each kind of block.
type Triple struct {
	Alone    float64 `json:"alone"`
	Attacked float64 `json:"attacked"`
	Control  float64 `json:"control"`
}

func triple(arms *[3]arm, f func(*arm) float64) Triple {
	return Triple{f(&arms[alone]), f(&arms[attacked]), f(&arms[controlled])}
}

// breach records broken bounds, each once.
func (r *Row) breach(texts ...string) {
	for _, text := range texts {
		if !slices.Contains(r.Broken, text) {
			r.Broken = append(r.Broken, text)
		}
	}
}

// fill calculates the figures of a row.
func (r *Row) fill(arms *[3]arm) {
	finite := func(v float64) float64 {
		if v != v {
			return 0
		}
		return v
	}
	r.P99MS = triple(arms, func(a *arm) float64 { return finite(p99(a.p99)) })
	r.JobRate = triple(arms, func(a *arm) float64 { return finite(rate(a.job)) })
	r.SecondRate = triple(arms, func(a *arm) float64 { return finite(rate(a.second)) })
	r.P99 = ratio(arms[attacked].p99, arms[alone].p99, p99)
	r.P99Control = ratio(arms[attacked].p99, arms[controlled].p99, p99)
	r.Job = ratio(arms[alone].job, arms[attacked].job, rate)
	r.JobControl = ratio(arms[controlled].job, arms[attacked].job, rate)
	r.Second = ratio(arms[alone].second, arms[attacked].second, rate)
	r.SecondControl = ratio(arms[controlled].second, arms[attacked].second, rate)
	r.DaemonCPU = triple(arms, func(a *arm) float64 { return a.cpu })
	r.AttackerCPU = arms[attacked].attacker
	r.Amplification = max(0, r.DaemonCPU.Attacked-r.DaemonCPU.Alone) / max(1, r.AttackerCPU)
	r.MemoryMB = triple(arms, func(a *arm) float64 { return float64(a.rss) / (1 << 20) })
	r.Files = triple(arms, func(a *arm) float64 { return float64(a.files) })
	r.Threads = triple(arms, func(a *arm) float64 { return float64(a.threads) })
	r.Decisions = triple(arms, func(a *arm) float64 { return a.decisions })
	r.WrittenMB = triple(arms, func(a *arm) float64 { return a.written / (1 << 20) })
	r.LoggedKB = triple(arms, func(a *arm) float64 { return a.logged / (1 << 10) })
	r.HeldIterations = arms[attacked].held
	all := 0
	for i := range arms {
		r.Spoiled += float64(100 * arms[i].dropped)
		all += arms[i].slices
	}
	r.Spoiled /= float64(max(1, all))
	r.ProbesMS = map[string]float64{}
	for name, took := range arms[attacked].probes {
		r.ProbesMS[name] = ms(took)
	}
	r.breach(arms[attacked].failed...)
}

// judge compares a row with the bounds.
func (r *Row) judge(b Bounds, a attack) {
	over := func(what string, value, limit float64, unit string) {
		if value > limit {
			r.breach(fmt.Sprintf("%s: %.4g %s, at most %.4g", what, value, unit, limit))
		}
	}
	worse := func(what string, direct, control Ratio) {
		switch {
		case a.control != "":
			direct = control // alone has no competitor for the GPU
		case control == Ratio{} && !b.P99:
			control = direct // a short run has no control
		}
		if direct.Low > b.Ratio && control.Low > b.Ratio {
			r.breach(fmt.Sprintf("%s: %.2f times (%.2f to %.2f), %.2f times the control, at most %.2f", what, direct.Value, direct.Low, direct.High, control.Value, b.Ratio))
		}
	}
	if b.P99 {
		worse("P99 of the service", r.P99, r.P99Control)
	}
	worse("time per iteration of the job", r.Job, r.JobControl)
	worse("time per iteration of the job on the other GPU", r.Second, r.SecondControl)
	over("daemon's CPU time", r.DaemonCPU.Attacked-r.DaemonCPU.Alone, b.CPU, "% of a core")
	memory := b.MemoryMB
	if a.memoryMB > 0 {
		memory = a.memoryMB
	}
	over("daemon's memory", r.MemoryMB.Attacked-r.MemoryMB.Alone, memory, "MB")
	for _, name := range probeNames() {
		over(name+" under attack", r.ProbesMS[name], b.ProbeMS, "ms")
	}
	if r.HeldIterations > 0 {
		r.breach(fmt.Sprintf("a program suspended by hand ran %d iterations", r.HeldIterations))
	}
	over("end after SIGTERM", r.TermMS, b.TermMS, "ms")
	over("start of the next daemon", r.StartMS, b.StartMS, "ms")
	over("recovery", r.RecoveryMS, b.RecoveryMS, "ms")
	over("writes", r.WrittenMB.Attacked-r.WrittenMB.Alone, b.WrittenMB, "MB/s")
	over("log", r.LoggedKB.Attacked-r.LoggedKB.Alone, b.LoggedKB, "kB/s")
}

func probeNames() []string { return []string{"healthz", "list", "suspend", "resume", "join"} }

// Report is the result of a run.
type Report struct {
	Version string  `json:"version"`
	CPUs    int     `json:"cpus"`
	Load    string  `json:"load"` // how victims are protected from the attacker's CPU time
	Seconds float64 `json:"seconds"`
	Bounds  Bounds  `json:"bounds"`
	Rows    []Row   `json:"attacks"`

	begin time.Time
}

// Broken counts the attacks that broke a bound.
func (r *Report) Broken() (n int) {
	for i := range r.Rows {
		if len(r.Rows[i].Broken) > 0 {
			n++
		}
	}
	return n
}

const header = "attack             on      P99 ms alone>attacked  ratio (95 %)        /ctl   job  /ctl  job2  /ctl   CPU %      MB        files   dec/s        probe ms  TERM ms  recover ms  held  verdict"

func (r *Row) verdict() string {
	if len(r.Broken) > 0 {
		return "BROKEN"
	}
	return "holds"
}

// slowest is how long the slowest request of root took under attack, in ms.
func (r *Row) slowest() (longest float64) {
	for _, took := range r.ProbesMS {
		longest = max(longest, took)
	}
	return longest
}

// line is a row as text.
func (r *Row) line() string {
	if r.Skipped != "" {
		return fmt.Sprintf("%-18s %-7s skipped: %s", r.Attack, r.Platform, r.Skipped)
	}
	return fmt.Sprintf("%-18s %-7s %8.2f > %-8.2f  %6.2f (%.2f-%.2f) %6.2f %5.2f %5.2f %5.2f %5.2f %4.0f>%-4.0f %4.0f>%-4.0f %5.0f>%-6.0f %4.0f>%-5.0f %8.0f %8.0f %8.0f %8d  %s",
		r.Attack, r.Platform, r.P99MS.Alone, r.P99MS.Attacked, r.P99.Value, r.P99.Low, r.P99.High, r.P99Control.Value,
		r.Job.Value, r.JobControl.Value, r.Second.Value, r.SecondControl.Value,
		r.DaemonCPU.Alone, r.DaemonCPU.Attacked, r.MemoryMB.Alone, r.MemoryMB.Attacked, r.Files.Alone, r.Files.Attacked,
		r.Decisions.Alone, r.Decisions.Attacked, r.slowest(), r.TermMS, r.RecoveryMS, r.HeldIterations, r.verdict())
}

// String is the report as text.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d attacks in %.0f s on %d CPUs, ratios at most %.2f; %s\n%s\n", r.Version, len(r.Rows), r.Seconds, r.CPUs, r.Bounds.Ratio, r.Load, header)
	for i := range r.Rows {
		b.WriteString(r.Rows[i].line() + "\n")
	}
	for i := range r.Rows {
		for _, text := range r.Rows[i].Broken {
			fmt.Fprintf(&b, "%s on %s (%s): %s\n", r.Rows[i].Attack, r.Rows[i].Platform, r.Rows[i].ID, text)
		}
	}
	skipped := 0
	for i := range r.Rows {
		if r.Rows[i].Skipped != "" {
			skipped++
		}
	}
	if skipped > 0 {
		fmt.Fprintf(&b, "%d attacks were skipped\n", skipped)
	}
	if n := r.Broken(); n > 0 {
		fmt.Fprintf(&b, "%d of %d attacks broke a bound\n", n, len(r.Rows))
	} else {
		b.WriteString("every bound held\n")
	}
	return b.String()
}

func (r *Report) print(asJSON bool) error {
	if !asJSON {
		_, err := fmt.Print(r.String())
		return err
	}
	return r.encode(os.Stdout)
}

func (r *Report) encode(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// save writes what is known so far. A run that is ended early keeps it.
func (r *Report) save(path string) error {
	if path == "" {
		return nil
	}
	return atomicfile.Write(path, 0o644, r.encode)
}

// printTable prints a saved report in Markdown.
func printTable(w io.Writer, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	fmt.Fprintln(w, "| attack | GPU | P99 alone > attacked (ms) | over alone (95 %) | over control (95 %) | job | other job | daemon's CPU (%) | memory (MB) | request (ms) | SIGTERM (ms) | recovery (ms) | |")
	fmt.Fprintln(w, "|---|---|---|---|---|---:|---:|---|---|---:|---:|---:|---|")
	for i := range r.Rows {
		a := &r.Rows[i]
		if a.Skipped != "" {
			fmt.Fprintf(w, "| `%s` | %s | skipped: %s |%s\n", a.Attack, a.Platform, a.Skipped, strings.Repeat(" |", 10))
			continue
		}
		fmt.Fprintf(w, "| `%s` | %s | %.2f > %.2f | %v | %v | %.2f | %.2f | %.0f > %.0f | %.0f > %.0f | %.0f | %.0f | %.0f | %s |\n",
			a.Attack, a.Platform, a.P99MS.Alone, a.P99MS.Attacked, a.P99, a.P99Control, a.JobControl.Value, a.SecondControl.Value,
			a.DaemonCPU.Alone, a.DaemonCPU.Attacked, a.MemoryMB.Alone, a.MemoryMB.Attacked, a.slowest(), a.TermMS, a.RecoveryMS, a.verdict())
	}
	return nil
}

func versionOf(binary string) string {
	text, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
