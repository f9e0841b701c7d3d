// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"xsched/internal/bench"
	"xsched/internal/embedded"
	"xsched/internal/report"
	"xsched/internal/virtual"
)

// Load is the built-in pair for the virtual GPU: requests at a fixed rate beside kernels back to back.
// Both programs verify their results.
type Load struct {
	Rate    float64       // requests per second; default 10
	Request time.Duration // GPU time of a request; default 5 ms
	Kernel  time.Duration // GPU time of an offline kernel; default 20 ms
	Queues  int           // hardware queues of the offline programs, at least; 0: those of one program with one stream
}

// queuesEach is how many hardware queues an offline program with three streams has, at least: those
// of the streams, of its default stream, and the runtime's own.
const (
	streamsEach = 3
	queuesEach  = streamsEach + 2
)

// The limits of the built-in load.
const (
	maxRate   = 10000
	maxQueues = 100
)

func (l *Load) defaults() error {
	bench.Default(&l.Rate, 10)
	bench.Default(&l.Request, 5*time.Millisecond)
	bench.Default(&l.Kernel, 20*time.Millisecond)
	switch {
	case !(l.Rate > 0 && l.Rate <= maxRate): // also no number
		return fmt.Errorf("a rate of %g is out of range; use more than 0, at most %d requests per second", l.Rate, maxRate)
	case l.Queues < 0 || l.Queues > maxQueues:
		return fmt.Errorf("%d queues are out of range; use 1 to %d", l.Queues, maxQueues)
	case l.Request < time.Microsecond || l.Kernel < time.Microsecond:
		return errors.New("requests and kernels of the built-in load last at least 1us")
	}
	return nil
}

// describe names the programs of the load for a reader; their commands have paths of this run.
func (l *Load) describe() (online, offline string) {
	offline = fmt.Sprintf("kernels of %s back to back", report.Micros(float64(l.Kernel.Microseconds())))
	if l.Queues > 0 {
		offline += fmt.Sprintf(" on at least %s", report.Plural(l.Queues, "hardware queue"))
	}
	return fmt.Sprintf("%g requests a second of %s GPU time", l.Rate, report.Micros(float64(l.Request.Microseconds()))), offline
}

// builtIn sets the commands. The online program lasts for the measurement; the offline programs end
// after it.
func (c *colocation) builtIn(folder string) error {
	tenant, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		return fmt.Errorf("unpack the built-in programs: %w", err)
	}
	platform, _ := virtual.Find(c.Platform)
	over := filepath.Join(folder, "over")
	command := func(what, until, name string, kernel time.Duration, more string) string {
		return fmt.Sprintf("{ echo %s; %s; echo quit; } | %s --api %s --name %s --kernel-us %d %s >/dev/null",
			what, until, tenant, platform.API, name, kernel.Microseconds(), more)
	}
	bench.Default(&c.Together, 10*time.Second)
	c.Online = command(fmt.Sprintf("rate %g", c.Load.Rate), fmt.Sprintf("sleep %g", c.Together.Seconds()+1), "online", c.Load.Request, "") + " && sleep 1 && touch " + over // after the last resume
	offline := command("loop", "until [ -e "+over+" ]; do sleep 0.1; done", "offline", c.Load.Kernel, "--depth 8")
	if c.Load.Queues > 0 {
		one := strings.Replace(offline, "--depth 8", fmt.Sprintf("--depth 8 --streams %d", streamsEach), 1)
		n := (c.Load.Queues + queuesEach - 1) / queuesEach
		// The exit status is that of the first program that failed.
		offline = "s=0; p=; for i in $(seq " + fmt.Sprint(n) + "); do { " + one + "; } & p=\"$p $!\"; done; for i in $p; do wait $i || s=$?; done; exit $s"
	}
	c.Offline = offline
	c.Together = 0 // until the online program ends
	return nil
}

// Cell is one combination of a sweep.
type Cell struct {
	Rate      float64 `json:"rate_hz"`
	RequestMS float64 `json:"request_ms"`
	Limit     float64 `json:"limit"` // net loss of two remaps per suspension
	*Report
}

// Sweep is the loss for each rate and length of requests.
type Sweep struct {
	RemapMS float64 `json:"remap_ms"` // assumed cost of a remap
	Cells   []Cell  `json:"cells"`
}

// RunSweep runs the built-in load with each combination of rate and request.
func RunSweep(ctx context.Context, o Options, rates []float64, requests []time.Duration, remap time.Duration, progress io.Writer) (*Sweep, error) {
	out := &Sweep{RemapMS: report.MS(remap)}
	dir := o.Out
	for _, rate := range rates {
		for _, request := range requests {
			o.Load.Rate, o.Load.Request = rate, request
			if dir != "" {
				o.Out = filepath.Join(dir, fmt.Sprintf("%gx%v", rate, request))
			}
			fmt.Fprintf(progress, "%g requests of %v per second\n", rate, request)
			r, err := Run(ctx, o)
			if err != nil {
				return nil, fmt.Errorf("%g requests of %v per second: %w", rate, request, err)
			}
			out.Cells = append(out.Cells, Cell{Rate: rate, RequestMS: report.MS(request), Limit: limit(r, remap), Report: r})
		}
	}
	if dir == "" {
		return out, nil
	}
	return out, report.Save(dir, map[string]func(io.Writer) error{"sweep.json": out.WriteJSON, "sweep.txt": out.WriteTable})
}

// limit is the least net loss: a suspension and its resume take a remap each, during which no queue
// runs.
func limit(r *Report, remap time.Duration) float64 {
	if r.Throughput.TogetherS <= 0 {
		return 0
	}
	return 2 * remap.Seconds() * float64(r.Requests.N) / r.Throughput.TogetherS
}

// WriteJSON writes the sweep, indented.
func (s *Sweep) WriteJSON(w io.Writer) error { return report.WriteJSON(w, s) }

// WriteTable writes one row per combination.
func (s *Sweep) WriteTable(w io.Writer) error {
	table := report.Table{Left: 0, Head: []string{"RATE", "REQUEST ms", "P50 ms", "P99 ms", "GROSS", "ONLINE", "NET", "LIMIT", "NET < 5 %", "REMAPS", "DRIVER ms"}}
	for _, c := range s.Cells {
		t := c.Throughput
		met := "no"
		switch {
		case t.Net < lossTarget:
			met = "yes"
		case c.Limit >= lossTarget:
			met = "limit"
		}
		driver := "-"
		if c.DriverSuspend != nil {
			driver = fmt.Sprintf("%.2f", c.DriverSuspend.P50)
		}
		table.Add(report.Short(c.Rate), report.Short(c.RequestMS), report.Short(c.Requests.P50), report.Short(c.Requests.P99),
			report.Percent(t.Loss), report.Percent(t.OnlineShare), report.Percent(t.Net), report.Percent(c.Limit), met,
			fmt.Sprintf("%.1f", float64(c.Remaps)/float64(max(c.Suspensions, 1))), driver)
	}
	if err := table.WriteText(w, ""); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nLIMIT: two remaps of %g ms per request. REMAPS: per suspension and its resume. DRIVER: median time of a suspension in the driver.\n", s.RemapMS)
	return err
}

// Met reports whether the net loss is below its target wherever the limit permits.
func (s *Sweep) Met() bool {
	for _, c := range s.Cells {
		if c.Throughput.Net >= lossTarget && c.Limit < lossTarget {
			return false
		}
	}
	return len(s.Cells) > 0
}
