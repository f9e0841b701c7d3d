// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"fmt"
	"io"
	"strings"
	"time"

	"xsched/internal/bench"
	"xsched/internal/control"
	"xsched/internal/report"
	"xsched/internal/virtual"
)

// Report is the mutual effect of an online and an offline program, and the content of pair.json.
type Report struct {
	Device   string        `json:"device"`
	Platform string        `json:"platform,omitempty"` // of a virtual GPU
	Route    string        `json:"route"`              // mechanism of suspension
	Level    int           `json:"level"`
	Date     time.Time     `json:"date"`
	Machine  bench.Machine `json:"machine"`
	Online   string        `json:"online"`
	Offline  string        `json:"offline"`
	SliceMS  float64       `json:"slice_ms"` // maximum suspension of the offline program; 0: the daemon's bound

	// Requests are the busy periods of the online program.
	Requests *report.Latency `json:"online_requests"`
	// Tenths are the requests of each tenth of the measurement; null: none.
	Tenths []*report.Latency `json:"online_tenths"`
	// Suspend and Resume last from the daemon's call to the reply. Where the shim reports it, only
	// the driver's part counts.
	Suspend       Operation  `json:"suspend"`
	Resume        Operation  `json:"resume"`
	DriverSuspend *Operation `json:"driver_suspend,omitempty"`
	DriverResume  *Operation `json:"driver_resume,omitempty"`

	Suspensions  int    `json:"suspensions"`   // decided suspensions of the offline program
	AfterRequest int    `json:"after_request"` // resumes at the end of a request
	AfterSlice   int    `json:"after_slice"`   // resumes at the end of the slice
	QueuesCaught uint64 `json:"queues_caught"` // created during a suspension, and suspended too

	// Failed counts rejected and repeated operations, Undone the suspensions that ended because the
	// daemon was starved of CPU time.
	Failed uint64 `json:"failed_operations"`
	Undone uint64 `json:"undone"`

	// Remaps counts how often the driver unmapped and mapped the GPU's queues; 0: unknown.
	Remaps     uint64     `json:"remaps,omitempty"`
	Usage      []Usage    `json:"usage"`
	Throughput Throughput `json:"offline_throughput"`
	Lost       []string   `json:"lost"` // losses, and properties without proof
	Targets    []Target   `json:"targets"`

	raw pictures
}

// Operation summarizes operations on hardware queues.
type Operation struct {
	N      uint64  `json:"n"`                // during the measurement
	Within uint64  `json:"within,omitempty"` // of these, within the target
	P50    float64 `json:"p50_ms"`           // of all operations, including start-up
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
}

// met reports whether at least 99 % of the operations met the target.
func (o Operation) met() bool { return o.N > 0 && 100*o.Within >= 99*o.N }

func (o Operation) text() string {
	return fmt.Sprintf("P50 %.2f ms, %d of %d within", o.P50, o.Within, o.N)
}

// Throughput is the offline program's work alone and with the online program.
type Throughput struct {
	Unit     string  `json:"unit"`
	Alone    float64 `json:"alone"`
	Together float64 `json:"together"`
	Loss     float64 `json:"loss"` // fraction of Alone
	// OnlineShare is the share of the GPU that the online program used; this loss is inevitable.
	OnlineShare float64 `json:"online_share"`
	// Net is the loss beyond OnlineShare. Without the GPU's own record it equals Loss.
	Net       float64 `json:"net_loss"`
	AloneS    float64 `json:"alone_s"`
	TogetherS float64 `json:"together_s"`
	Measured  bool    `json:"measured"`
}

// Target is one target of the online/offline framework.
type Target struct {
	Name   string `json:"name"`
	Wanted string `json:"wanted"`
	Got    string `json:"got"`
	Met    bool   `json:"met"`
}

// The names of the targets.
const (
	targetSuspend = "suspend"
	targetResume  = "resume"
	targetOnline  = "online request, end to end"
	targetLoss    = "offline loss beyond the online share"
	targetLeak    = "nothing leaked"
	targetLost    = "nothing lost"
)

// advice says what to do about a missed target.
var advice = map[string]string{
	targetSuspend: "repeat it on a machine without other load: the daemon and the GPU's driver need CPU time; as root the daemon has real-time priority",
	targetResume:  "repeat it on a machine without other load: the daemon and the GPU's driver need CPU time; as root the daemon has real-time priority",
	targetOnline:  "compare it with the online program alone; if that is below the target, look for kernels of the offline program that can't be stopped with `xsched doctor`",
	targetLoss:    "every request costs a suspend and a resume: use fewer and longer requests, or a shorter --hold if requests have no gaps",
	targetLeak:    "repeat it for longer (--seconds); report a growth that continues",
	targetLost:    "see the output of the programs with --output; they must end by themselves within --linger",
}

// Advice has a line for each missed target.
func (r *Report) Advice() []string {
	var out []string
	for _, t := range r.Targets {
		if text := advice[t.Name]; !t.Met && text != "" {
			out = append(out, "missed: "+t.Name+"; "+text)
		}
	}
	return out
}

// The targets.
const (
	suspendTarget = 5.0  // ms
	resumeTarget  = 10.0 // ms
	onlineTarget  = 50.0 // ms
	lossTarget    = 0.05
)

// note records the daemon's counters of a process while it exists.
func (r *Report) note(p control.Process) {
	if isOnline(p) {
		return
	}
	r.QueuesCaught = max(r.QueuesCaught, p.QueuesCaught)
	for _, q := range p.Queues {
		r.Route, r.Level = q.Route, q.Level
	}
}

func operation(h control.Histogram) Operation {
	return Operation{N: h.Count, P50: h.P50US / 1000, P99: h.P99US / 1000, Max: h.MaxUS / 1000}
}

func (r *Report) operations(s control.Stats) {
	if s.DriverSuspendTime.Count > 0 {
		suspend, resume := operation(s.DriverSuspendTime), operation(s.DriverResumeTime)
		r.DriverSuspend, r.DriverResume = &suspend, &resume
	}
	r.Failed, r.Undone = s.DeviceErrors, s.Undone
}

// conclude computes the report.
func (c *colocation) conclude() {
	r := c.report
	r.Throughput = throughput(c.alone, c.together)
	for _, s := range []*side{c.online, c.offline} {
		switch {
		case s.ended:
			r.Lost = append(r.Lost, fmt.Sprintf("not shown: the %s program had to be ended", s.name))
		case s.err != nil:
			r.Lost = append(r.Lost, fmt.Sprintf("the %s program failed: %v%s", s.name, s.err, s.errs.Suffix()))
		}
	}
	ms := func(v float64) string { return fmt.Sprintf("%.2f ms", v) }
	nothing := "every program ended well, every suspension was resumed"
	if len(r.Lost) > 0 {
		nothing = strings.Join(r.Lost, "; ")
	} else {
		r.Lost = []string{}
	}
	online, met := "no request", false
	if r.Requests != nil {
		online, met = "P99 "+ms(r.Requests.P99), r.Requests.P99 < onlineTarget
	}
	loss := "not measured"
	if r.Throughput.Measured {
		loss = fmt.Sprintf("net %.2f %%, gross %.2f %%", 100*r.Throughput.Net, 100*r.Throughput.Loss)
	}
	leaks := leaked(r.Usage)
	kept := "open files and threads did not grow"
	if len(leaks) > 0 {
		kept = strings.Join(leaks, "; ")
	}
	r.Targets = []Target{
		{targetSuspend, fmt.Sprintf("< %g ms", suspendTarget), r.Suspend.text(), r.Suspend.met()},
		{targetResume, fmt.Sprintf("< %g ms", resumeTarget), r.Resume.text(), r.Resume.met()},
		{targetOnline, fmt.Sprintf("< %g ms", onlineTarget), online, met},
		{targetLoss, fmt.Sprintf("< %g %%", 100*lossTarget), loss, r.Throughput.Measured && r.Throughput.Net < lossTarget},
		{targetLeak, "no growth", kept, len(leaks) == 0},
		{targetLost, "nothing", nothing, len(r.Lost) == 0},
	}
}

func throughput(alone, together progress) Throughput {
	seconds := func(p progress) float64 { return time.Duration(p.to - p.from).Seconds() }
	t := Throughput{AloneS: seconds(alone), TogetherS: seconds(together)}
	if t.AloneS <= 0 || t.TogetherS <= 0 {
		return t
	}
	switch {
	case alone.recorded:
		t.Unit = "part of the GPU's time, by its own record"
		t.Alone, t.Together = alone.ran.Seconds()/t.AloneS, together.ran.Seconds()/t.TogetherS
		t.OnlineShare = together.onlineRan.Seconds() / t.TogetherS
	case alone.hooked:
		t.Unit = "launches a second"
		t.Alone, t.Together = float64(alone.launches)/t.AloneS, float64(together.launches)/t.TogetherS
	}
	if t.Alone > 0 {
		t.Loss, t.Measured = 1-t.Together/t.Alone, true
		t.Net = max(t.Loss-t.OnlineShare/t.Alone, 0)
	}
	return t
}

// prove rejects a report without a suspension, because the programs never competed.
func (c *colocation) prove() error {
	c.conclude()
	r := c.report
	switch {
	case r.Suspend.N == 0 || r.Suspensions == 0:
		return fmt.Errorf("%w: the offline program was never suspended: did both use the same GPU at the same time?", bench.ErrProof)
	case r.Requests == nil:
		return fmt.Errorf("%w: no request of the online program was seen: the shim in it is inert, or it never had idle times", bench.ErrProof)
	case r.Route == "gate" || r.Route == "":
		return fmt.Errorf("%w: the offline program could only be held at its launches, so its queues were not suspended", bench.ErrProof)
	}
	return nil
}

// Met reports whether all targets were met.
func (r *Report) Met() bool {
	for _, t := range r.Targets {
		if !t.Met {
			return false
		}
	}
	return len(r.Targets) > 0
}

// WriteJSON writes the report, indented.
func (r *Report) WriteJSON(w io.Writer) error { return report.WriteJSON(w, r) }

// where names the device.
func (r *Report) where() string {
	if r.Platform != "" {
		return r.Device + " (" + r.Platform + ")"
	}
	return r.Device
}

// notice is what a reader must know about the platform.
func (r *Report) notice() string {
	if p, ok := virtual.Find(r.Platform); ok && r.Platform != "" {
		return p.Notice
	}
	return ""
}

// WriteTable writes the report as text.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s, %s: offline suspended at Lv%d (route: %s)\n", r.where(), r.Machine.String(), r.Level, r.Route)
	if notice := r.notice(); notice != "" {
		fmt.Fprintln(w, notice)
	}
	fmt.Fprintln(w)
	if err := r.table().WriteText(w, ""); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(append(r.lines(), r.Advice()...), "\n"))
	return err
}

// table compares targets and measurement.
func (r *Report) table() *report.Table {
	table := &report.Table{Left: 4, Head: []string{"TARGET", "WANTED", "GOT", "MET"}}
	for _, t := range r.Targets {
		met := "no"
		if t.Met {
			met = "yes"
		}
		table.Add(t.Name, t.Wanted, t.Got, met)
	}
	return table
}

// lines are the other measurements.
func (r *Report) lines() (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	q, th := r.Requests, r.Throughput
	add("online: %d requests, P50 %.2f ms, P95 %.2f ms, P99 %.2f ms, max %.2f ms", q.N, q.P50, q.P95, q.P99, q.Max)
	if text := tenths(r.Tenths); text != "" {
		add("online P50 in each tenth of the time: %s ms", text)
	}
	for i, o := range []Operation{r.Suspend, r.Resume} {
		add("%s: %d times; with the start P50 %.3f ms, P99 %.3f ms, max %.3f ms", [...]string{"suspend", "resume"}[i], o.N, o.P50, o.P99, o.Max)
	}
	if d := r.DriverSuspend; d != nil {
		add("of that in the driver: suspend P50 %.3f ms, resume P50 %.3f ms", d.P50, r.DriverResume.P50)
	}
	add("offline: suspended %d times, resumed %d times after the request and %d times after a slice, %d new queues caught",
		r.Suspensions, r.AfterRequest, r.AfterSlice, r.QueuesCaught)
	if r.Remaps > 0 && r.Suspensions > 0 {
		add("remaps of the GPU: %d, %.1f per suspension and its resume", r.Remaps, float64(r.Remaps)/float64(r.Suspensions))
	}
	for _, u := range r.Usage {
		add("%s (pid %d): %d to %d open files, %d to %d threads, %.1f to %.1f MiB resident",
			u.Name, u.PID, u.Files[0], u.Files[1], u.Threads[0], u.Threads[1], mib(u.Resident[0]), mib(u.Resident[1]))
	}
	if r.Failed+r.Undone > 0 {
		add("%d operations failed and were repeated, %d suspensions were undone: the machine was too busy for a while", r.Failed, r.Undone)
	}
	if th.Measured {
		add("offline throughput (%s): %.4g alone, %.4g together; the online program used %.1f %% of the GPU", th.Unit, th.Alone, th.Together, 100*th.OnlineShare)
	} else {
		add("offline throughput: not measured, nobody counts the work of a program without the shim on this GPU")
	}
	return out
}

func tenths(list []*report.Latency) string {
	var out []string
	for _, l := range list {
		if l == nil {
			out = append(out, "-")
			continue
		}
		out = append(out, report.Short(l.P50))
	}
	return strings.Join(out, ", ")
}

// save writes pair.json and report.html.
func (r *Report) save(dir string) error {
	return report.Save(dir, map[string]func(io.Writer) error{"pair.json": r.WriteJSON, "report.html": r.WriteHTML})
}
