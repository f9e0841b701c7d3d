// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"time"

	"xsched/internal/model"
)

// SelfTester is implemented by a driver that can demonstrate preemption on its GPUs: it
// runs a program of its own, suspends it in the middle of a kernel, resumes it and
// compares the result.
type SelfTester interface {
	// SelfTest tests GPUs one after the other. It keeps the results in the state
	// directory, where the next daemon of the same user finds them.
	SelfTest(ctx context.Context, o SelfTestOptions) ([]SelfTest, error)
	// KeepTested tests each GPU once per driver release, in the background, until ctx
	// ends. It calls changed when the evidence has changed.
	KeepTested(ctx context.Context, o SelfTestOptions, changed func())
}

// SelfTestOptions configure a self-test.
type SelfTestOptions struct {
	// GPUs to test; empty: all.
	GPUs []model.DeviceID
	// Program returns the path and the environment of the test program. The driver
	// adds variables of its own.
	Program func() (path string, env []string, err error)
	// OnlyIfNeeded leaves GPUs out that need no test for levels 2 and 3.
	OnlyIfNeeded bool
	// OnStep is called after each step; nil: nobody watches.
	OnStep func(gpu model.DeviceID, s SelfTestStep)
}

// Outcome is the result of a self-test in one word.
type Outcome string

// Outcomes. Only a failure says something about the GPU: an inconclusive test
// could not be carried out.
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
	Stop    bool           `json:"stop"`   // levels 2 and 3 were demonstrated
	Slices  bool           `json:"slices"` // timeslices can be set and read back
	When    time.Time      `json:"when"`
	Steps   []SelfTestStep `json:"steps"`
}

// SelfTestKey is what a result holds for.
type SelfTestKey struct {
	Driver  string `json:"driver"`
	Version string `json:"version"` // of XSched
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
