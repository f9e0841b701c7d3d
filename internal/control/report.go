// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strconv"
	"strings"
	"time"
)

// What the rows of a Report are about.
const (
	ByUser    = "user"
	ByGroup   = "group" // the primary group of the user
	ByPod     = "pod"
	ByProgram = "program" // of a user
	ByGPU     = "gpu"
)

// ReportKinds returns the kinds of reports.
func ReportKinds() []string { return []string{ByUser, ByGroup, ByPod, ByProgram, ByGPU} }

// ReportSince is the time of a report unless a request says another one. The ledger keeps 97 days.
const ReportSince = "30d"

const maxReport = 400 * 24 * time.Hour

// ReportLength reads the time of a report: a duration such as 12h, 30d or 2w. Empty: ReportSince.
func ReportLength(text string) (time.Duration, error) {
	if text == "" {
		text = ReportSince
	}
	d, err := time.ParseDuration(text)
	for suffix, days := range map[string]int{"d": 1, "w": 7} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			var n uint64
			n, err = strconv.ParseUint(number, 10, 10)
			d = time.Duration(n) * time.Duration(days) * 24 * time.Hour
		}
	}
	if err != nil || d <= 0 || d > maxReport {
		return 0, Errorf(ErrInvalid, "use a duration like 12h or 30d, up to 400d", "%q is no time of a report", text)
	}
	return d, nil
}

// ReportRequest selects a report.
type ReportRequest struct {
	// Since is how far back the report goes: 12h, 30d; empty: ReportSince.
	Since string `json:"since,omitempty"`
	// By is one of ReportKinds; empty: user.
	By string `json:"by,omitempty"`
}

// Report shows who used how much of the GPUs. Times of the clock are nanoseconds of the Unix clock. The first
// hour, or the first day before the last week, counts as a whole.
type Report struct {
	FromNS int64  `json:"from_ns"`
	ToNS   int64  `json:"to_ns"`
	By     string `json:"by"`
	// WatchedNS is for how long a daemon ran in this time, and CapacityNS the same times the number of GPUs.
	WatchedNS  int64 `json:"watched_ns"`
	CapacityNS int64 `json:"capacity_ns"`
	// Own says that the rows of other users are left out.
	Own   bool        `json:"own"`
	Rows  []ReportRow `json:"rows"` // by GPUNS, largest first
	Total ReportRow   `json:"total"`
}

// ReportRow is what programs used. Without a name it has those for which the ledger had no room.
type ReportRow struct {
	User    string `json:"user,omitempty"` // login name, or the container
	Group   string `json:"group,omitempty"`
	Pod     string `json:"pod,omitempty"` // as "namespace/pod"
	Program string `json:"program,omitempty"`
	GPU     string `json:"gpu,omitempty"` // PCI address
	// GPUNS is time on GPUs. Programs that use one at once divide the time.
	GPUNS int64 `json:"gpu_ns"`
	// Share is GPUNS divided by CapacityNS, 0 to 1.
	Share float64 `json:"share"`
	// OpenNS is for how long programs lived that have used a GPU, with work or without.
	OpenNS int64 `json:"open_ns"`
	// WaitedNS is for how long programs had work while others ran or they were suspended.
	WaitedNS int64 `json:"waited_ns"`
	Requests int64 `json:"requests"`
	// Judged requests have a latency target, and Met of them met it.
	Judged int64 `json:"judged"`
	Met    int64 `json:"met"`
}

// Name returns what a row is about.
func (r *ReportRow) Name(by string) string {
	switch by {
	case ByGroup:
		return r.Group
	case ByPod:
		return r.Pod
	case ByProgram:
		return r.Program
	case ByGPU:
		return r.GPU
	}
	return r.User
}
