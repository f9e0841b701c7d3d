// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"time"

	"xsched/internal/model"
)

// SelfTester is a driver that can demonstrate preemption: it suspends its own program mid-kernel,
// resumes it and compares the result.
type SelfTester interface {
	// SelfTest tests GPUs in sequence and stores the results in the state directory for the next
	// daemon of the same user.
	SelfTest(ctx context.Context, o SelfTestOptions) ([]SelfTest, error)
	// KeepTested tests each GPU once per driver release in the background until ctx ends, and
	// calls changed on another release or new evidence. Without a program, KeepTested only watches.
	KeepTested(ctx context.Context, o SelfTestOptions, changed func())
}

// SelfTestOptions configure a self-test.
type SelfTestOptions struct {
	// GPUs to test; empty: all.
	GPUs []model.DeviceID
	// Program returns the test program's path and environment, to which the driver adds variables.
	Program func() (path string, env []string, err error)
	// OnlyIfNeeded skips GPUs whose levels 2 and 3 need no test.
	OnlyIfNeeded bool
	// OnStep is called after each step; may be nil.
	OnStep func(gpu model.DeviceID, s SelfTestStep)
	// Beat is called by KeepTested while it works; may be nil.
	Beat func()
}

// Outcome is the result of a self-test.
type Outcome string

// Only a failure is evidence against the GPU; an inconclusive test could not run.
const (
	OutcomePassed       Outcome = "passed"
	OutcomeFailed       Outcome = "failed"
	OutcomeInconclusive Outcome = "inconclusive"
)

// SelfTest is the result for one GPU.
type SelfTest struct {
	SelfTestKey
	Outcome Outcome        `json:"outcome"`
	Reason  string         `json:"reason,omitempty"`
	Stop    bool           `json:"stop"`   // levels 2 and 3 demonstrated
	Slices  bool           `json:"slices"` // timeslices can be set and read back
	When    time.Time      `json:"when"`
	Steps   []SelfTestStep `json:"steps"`
}

// SelfTestKey identifies the configuration a result is valid for.
type SelfTestKey struct {
	Driver  string `json:"driver"`
	Version string `json:"version"` // XSched version
	GPU     string `json:"gpu"`     // PCI address
	UUID    string `json:"uuid,omitempty"`
	Name    string `json:"name,omitempty"`
}

// SelfTestStep is one step of a self-test.
type SelfTestStep struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Detail string  `json:"detail"`
	MS     float64 `json:"ms"`
}
