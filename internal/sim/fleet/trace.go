// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Pod is a service's replica, or a batch job with all pods of its gang.
type Pod struct {
	Name     string
	Service  bool
	Arrive   time.Duration
	Duration time.Duration // of a service: its life, 0 until the end; of a job: its run time alone on its GPUs
	GPUs     int           // of a job: its gang
	Memory   int           // GiB on each GPU
	Priority int
	Models   string // of GPUs that it accepts, with | between them; "": any

	// Of a service.
	Request time.Duration // GPU time of a request
	Rate    float64       // requests per second at the peak of the day
	P99     time.Duration // target
	Day     string        // name of a day's shape, or 24 numbers

	Kernel time.Duration // of a job: length of its kernels

	hours *[24]float64
	shape int // of its requests, or kernels
}

// Load is the part of a GPU that a service uses at its peak.
func (p *Pod) Load() float64 { return p.Rate * p.Request.Seconds() }

// days are named shapes: the rate of each hour, relative to the peak.
var days = map[string][24]float64{
	"flat":    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
	"office":  {.1, .1, .1, .1, .1, .15, .25, .5, .8, .95, 1, .95, .85, .95, 1, .95, .9, .75, .5, .35, .25, .2, .15, .1},
	"evening": {.45, .3, .2, .15, .12, .12, .15, .25, .35, .4, .45, .5, .55, .55, .5, .5, .55, .65, .8, .95, 1, .95, .8, .6},
}

// Limits of a trace.
const (
	maxTrace   = 64 << 20 // bytes
	maxPods    = 1_000_000
	maxGang    = 4096
	maxMemory  = 4096
	maxSeconds = 31 * 24 * 3600
	maxMillis  = 3_600_000
	maxRate    = 1e6
)

var traceColumns = []string{"kind", "name", "count", "arrive_s", "duration_s", "gpus", "memory_gib", "priority", "request_ms", "rate_hz", "p99_ms", "day", "kernel_ms", "models"}

// LoadTrace reads a trace from a file.
func LoadTrace(path string) ([]Pod, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	pods, err := ParseTrace(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return pods, nil
}

// ParseTrace reads a trace: CSV with a heading. docs/kubernetes/capacity.md has its columns.
func ParseTrace(r io.Reader) ([]Pod, error) {
	in := csv.NewReader(io.LimitReader(r, maxTrace))
	in.Comment, in.ReuseRecord, in.TrimLeadingSpace = '#', true, true
	head, err := in.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the trace is empty; its first line must be %s", strings.Join(traceColumns, ","))
	}
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	// The last column is younger than the others.
	if last := len(traceColumns) - 1; !slices.Equal(head, traceColumns) && !slices.Equal(head, traceColumns[:last]) {
		return nil, fmt.Errorf("line 1: unknown columns; use %s", strings.Join(traceColumns, ","))
	}
	var pods []Pod
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read trace: %w", err)
		}
		at, _ := in.FieldPos(0)
		p, count, err := parsePod(row)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", at, err)
		}
		if len(pods)+count > maxPods {
			return nil, fmt.Errorf("line %d: more than %d pods; split the trace", at, maxPods)
		}
		for range count {
			pods = append(pods, p)
		}
	}
	if len(pods) == 0 {
		return nil, errors.New("the trace has no pods; add lines of kind service or batch")
	}
	sortPods(pods)
	return pods, nil
}

// Complete checks pods that were not read by ParseTrace, and orders them by arrival.
func Complete(pods []Pod) error {
	for i := range pods {
		if err := pods[i].complete(); err != nil {
			return fmt.Errorf("pod %s: %w", pods[i].Name, err)
		}
	}
	sortPods(pods)
	return nil
}

// sortPods orders by arrival; equal ones keep their order.
func sortPods(pods []Pod) {
	slices.SortStableFunc(pods, func(a, b Pod) int { return int(min(max(a.Arrive-b.Arrive, -1), 1)) })
}

// fields reads the columns of a row and keeps the first error.
type fields struct {
	row []string
	err error
}

func (f *fields) text(name string) string {
	if i := slices.Index(traceColumns, name); i < len(f.row) {
		return f.row[i]
	}
	return ""
}

// number reads a column; an empty one is the default, which is NaN if the column is required.
func (f *fields) number(name string, lo, hi, def float64) float64 {
	text := f.text(name)
	v, err := strconv.ParseFloat(text, 64)
	if text == "" {
		v, err = def, nil
	}
	if f.err == nil && (err != nil || !(v >= lo && v <= hi)) {
		f.err = fmt.Errorf("%s %q is not in %g..%g", name, text, lo, hi)
	}
	if err != nil || !(v >= lo && v <= hi) {
		return lo
	}
	return v
}

func (f *fields) whole(name string, lo, hi, def float64) int {
	v := f.number(name, lo, hi, def)
	if f.err == nil && v != math.Trunc(v) {
		f.err = fmt.Errorf("%s %q is not a whole number", name, f.text(name))
	}
	return int(v)
}

func (f *fields) seconds(name string, def float64) time.Duration {
	return time.Duration(f.number(name, 0, maxSeconds, def) * float64(time.Second))
}

func (f *fields) millis(name string) time.Duration {
	return time.Duration(f.number(name, 1e-6, maxMillis, math.NaN()) * float64(time.Millisecond))
}

func parsePod(row []string) (Pod, int, error) {
	f := &fields{row: row}
	count := f.whole("count", 1, maxPods, 1)
	p := Pod{
		Name: strings.Clone(f.text("name")), Arrive: f.seconds("arrive_s", 0), GPUs: f.whole("gpus", 1, maxGang, 1),
		Memory: f.whole("memory_gib", 0, maxMemory, 0), Priority: f.whole("priority", -1e9, 1e9, 0),
		Models: strings.Clone(f.text("models")),
	}
	switch kind := f.text("kind"); kind {
	case "service":
		p.Service = true
		p.Duration = f.seconds("duration_s", 0)
		p.Request, p.Rate, p.P99 = f.millis("request_ms"), f.number("rate_hz", 0, maxRate, math.NaN()), f.millis("p99_ms")
		p.Day = strings.Clone(f.text("day"))
	case "batch":
		p.Duration, p.Kernel = f.seconds("duration_s", math.NaN()), f.millis("kernel_ms")
	default:
		return p, 0, fmt.Errorf("unknown kind %q; use service or batch", kind)
	}
	if f.err != nil {
		return p, 0, f.err
	}
	return p, count, p.complete()
}

// complete checks the pod and finds its place in the table of outcomes.
func (p *Pod) complete() error {
	ok := true
	if !p.Service {
		if p.Duration <= 0 {
			return errors.New("duration_s of a batch job must be above 0")
		}
		if p.shape, ok = kernelFor(p.Kernel); !ok {
			return fmt.Errorf("kernel_ms is above %v, the longest that is tabulated", batchKernels[len(batchKernels)-1])
		}
		return nil
	}
	if p.GPUs != 1 {
		return errors.New("a service's replica has 1 GPU; use count for replicas")
	}
	if p.shape, ok = shapeFor(p.Request); !ok {
		return fmt.Errorf("request_ms is above %v, the longest that is tabulated", requestShapes[len(requestShapes)-1].length())
	}
	if most := ownLoads[len(ownLoads)-1]; p.Load() > most {
		return fmt.Errorf("rate_hz x request_ms is %.2f of a GPU, above %g; use more replicas", p.Load(), most)
	}
	hours, err := parseDay(p.Day)
	p.hours = hours
	return err
}

// parseDay returns the shape of a day by its name, or from 24 numbers 0..1 with slashes between them.
func parseDay(text string) (*[24]float64, error) {
	if text == "" {
		text = "flat"
	}
	if day, ok := days[text]; ok {
		return &day, nil
	}
	parts := strings.Split(text, "/")
	var day [24]float64
	if len(parts) != len(day) {
		return nil, fmt.Errorf("day %q is unknown; use flat, office, evening, or 24 numbers such as 0.1/0.5/1", text)
	}
	for i := range day {
		v, err := strconv.ParseFloat(parts[i], 64)
		if err != nil || !(v >= 0 && v <= 1) {
			return nil, fmt.Errorf("hour %d of day is %q; use 0..1, relative to rate_hz", i, parts[i])
		}
		day[i] = v
	}
	return &day, nil
}

// WriteTrace writes a trace that ParseTrace reads.
func WriteTrace(w io.Writer, pods []Pod) error {
	out := csv.NewWriter(w)
	_ = out.Write(traceColumns)
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	millis := func(d time.Duration) string { return number(float64(d) / float64(time.Millisecond)) }
	for i := range pods {
		p := &pods[i]
		row := []string{"batch", p.Name, "1", number(p.Arrive.Seconds()), number(p.Duration.Seconds()), strconv.Itoa(p.GPUs), strconv.Itoa(p.Memory), strconv.Itoa(p.Priority), "", "", "", "", millis(p.Kernel), p.Models}
		if p.Service {
			row = append(append([]string{"service"}, row[1:8]...), millis(p.Request), number(p.Rate), millis(p.P99), p.Day, "", p.Models)
		}
		_ = out.Write(row)
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}
