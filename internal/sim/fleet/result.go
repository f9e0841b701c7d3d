// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"time"

	"xsched/internal/report"
)

// Result is the result of one simulation. Equal pods and configurations give equal results.
type Result struct {
	Sharing Sharing `json:"mode"`
	Rule    string  `json:"rule"`
	Nodes   int     `json:"nodes"`
	GPUs    int     `json:"gpus"`

	// Arrived = Finished + Running + Pending.
	Arrived    int `json:"arrived"`
	Finished   int `json:"finished"`
	Running    int `json:"running"`
	Pending    int `json:"pending"`
	NotArrived int `json:"-"` // after the end

	Services       int     `json:"services"`
	ServicesWaited int     `json:"services_waited"` // not placed on arrival
	LateHours      float64 `json:"late_service_hours"`
	WorstP99       float64 `json:"worst_p99_of_target"` // the highest P99 relative to its target; -1: saturated

	Jobs      int     `json:"jobs"`
	Overdue   int     `json:"jobs_overdue"` // over twice their run time alone + 10 min
	WaitP50   float64 `json:"wait_p50_s"`
	WaitP95   float64 `json:"wait_p95_s"`
	WaitMax   float64 `json:"wait_max_s"`
	Stretch   float64 `json:"stretch"` // mean time from arrival to end, relative to the run time alone
	Evictions int     `json:"evictions"`

	Busy     float64 `json:"busy"`     // part of all GPU time with a kernel on the GPU
	Occupied float64 `json:"occupied"` // part of all GPU time with a pod on the GPU
	// Cost is the part of the GPU time which services leave to jobs on their GPUs that sharing loses.
	Cost float64 `json:"cost_of_sharing"`
	// MostShare and MostMemory are the highest allocations of a GPU: percent and GiB.
	MostShare  int `json:"most_share"`
	MostMemory int `json:"most_memory_gib"`
	// The means of each hour.
	BusyByHour    []float64 `json:"busy_by_hour"`
	PendingByHour []float64 `json:"pending_by_hour"`

	Aborted bool `json:"-"` // ended early, because it is not Kept

	waits                []float64
	stretch, kept, ideal float64
	ended                int
}

// Kept reports whether the fleet keeps its promises: every service is placed on arrival and has its
// P99 within its target at all times, and 95 % of jobs end in time.
func (r *Result) Kept() bool {
	return !r.Aborted && r.ServicesWaited == 0 && r.LateHours == 0 && float64(r.Overdue) <= limitPart*float64(r.Jobs)
}

func (r *Result) begin(c *Config) {
	r.Sharing, r.Rule, r.Nodes, r.GPUs = c.Sharing, c.Rule.Name, c.Nodes, c.gpus(c.Nodes)
	hours := int((c.Length + time.Hour - 1) / time.Hour)
	r.BusyByHour, r.PendingByHour = make([]float64, hours), make([]float64, hours)
}

// integrate adds a time in which nothing changed.
func (r *Result) integrate(hour int, seconds float64, w *world) {
	r.BusyByHour[hour] += float64(seconds * w.busy)
	r.PendingByHour[hour] += float64(seconds * float64(len(w.queue)))
	r.Occupied += float64(seconds * float64(w.occupied))
	r.LateHours += float64(seconds*float64(w.late)) / 3600
	r.kept += float64(seconds * w.kept)
	r.ideal += float64(seconds * w.ideal)
}

func (r *Result) place(c *cluster, on []int) {
	for _, i := range on {
		r.MostShare = max(r.MostShare, c.devices[i].share)
		r.MostMemory = max(r.MostMemory, c.devices[i].memory)
	}
}

func (r *Result) worst(load, ratio float64) {
	switch {
	case load == 0 || r.WorstP99 < 0:
	case ratio > 1e9: // not a number in JSON
		r.WorstP99 = -1
	default:
		r.WorstP99 = max(r.WorstP99, ratio)
	}
}

func (r *Result) end(length time.Duration) {
	all := float64(r.GPUs) * length.Seconds()
	if all <= 0 {
		return
	}
	for i := range r.BusyByHour {
		r.Busy += r.BusyByHour[i]
		seconds := min(length-time.Duration(i)*time.Hour, time.Hour).Seconds()
		if seconds <= 0 {
			break
		}
		r.BusyByHour[i] /= seconds * float64(r.GPUs)
		r.PendingByHour[i] /= seconds
	}
	r.Busy /= all
	r.Occupied /= all
	if r.ideal > 0 {
		r.Cost = max(0, 1-r.kept/r.ideal)
	}
	if r.ended > 0 {
		r.Stretch = r.stretch / float64(r.ended)
	}
	slices.Sort(r.waits)
	if n := len(r.waits); n > 0 {
		r.WaitP50, r.WaitP95, r.WaitMax = report.Quantile(r.waits, 0.5), report.Quantile(r.waits, 0.95), r.waits[n-1]
	}
}
