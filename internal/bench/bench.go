// SPDX-License-Identifier: Apache-2.0

// Package bench is what the benchmarks share: a daemon and a device of their own, tenants that can be
// driven and counted, the device's own record, and the proof that a comparison must pass.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"xsched/internal/clock"
	"xsched/internal/control"
)

// VirtualDevice is the device name of a run on the virtual GPU.
const VirtualDevice = "virtual GPU"

// Machine describes where the measurement ran.
type Machine struct {
	CPUs   int    `json:"cpus"`
	Model  string `json:"cpu_model,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	// Load is the one-minute load average before the run: noise of other programs.
	Load float64 `json:"load_before"`
	// Scheduling is the tenants' CPU scheduling class in every mode. A real-time class, where
	// permitted, keeps CPU noise out.
	Scheduling string `json:"tenants_scheduling"`
}

// Workload is the tenants' load.
type Workload struct {
	HighRate float64 `json:"high_rate_hz"`
	HighUS   int     `json:"high_kernel_us"`
	LowUS    int     `json:"low_kernel_us"`
}

// Split is the GPU time by use, as fractions of the measured time that add up to 1.
type Split struct {
	High      float64 `json:"high"`
	Low       float64 `json:"low"`
	Switching float64 `json:"switching"`
	Idle      float64 `json:"idle"`
}

// ErrProof means that the run lacks proof of the modes' claims. No table is printed and no result
// is written then.
var ErrProof = errors.New("proof failed")

// Check is one condition of a proof.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Failure returns the first failed check as an error of one line that names the others.
func Failure(scenario string, checks []Check) error {
	var first *Check
	var others []string
	for i := range checks {
		switch c := &checks[i]; {
		case c.OK:
		case first == nil:
			first = c
		default:
			others = append(others, c.Name)
		}
	}
	if first == nil {
		return nil
	}
	also := ""
	if len(others) > 0 {
		also = " (failed too: " + strings.Join(others, ", ") + ")"
	}
	return fmt.Errorf("%w (%s): %s: %s%s", ErrProof, scenario, first.Name, first.Detail, also)
}

func Default[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// optionError is an option out of range: an error of usage, as control.ErrInvalid is.
type optionError struct{ error }

func (optionError) Is(target error) bool { return target == control.ErrInvalid }

// Complete returns the error of an option as one of usage. Without one, it checks that the folder for results
// can be written, and sets exe to this program, unless it is given.
func Complete(option error, out string, exe *string) error {
	if option != nil {
		return optionError{option}
	}
	if err := Writable(out); err != nil {
		return err
	}
	if *exe != "" {
		return nil
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	*exe = own
	return nil
}

// meter is a progress bar; it shows nothing unless it writes to a terminal.
type meter struct{ b *progressbar.ProgressBar }

func NewMeter(to *os.File, steps int) *meter {
	if to == nil || !term.IsTerminal(int(to.Fd())) {
		return &meter{}
	}
	return &meter{progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(to), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true), progressbar.OptionSetDescription("starting"))}
}

// Step completes a step and names the next one.
func (b *meter) Step(what string) {
	if b.b != nil {
		b.b.Describe(fmt.Sprintf("%-20s", what))
		_ = b.b.Add(1)
	}
}

func (b *meter) Finish() {
	if b.b != nil {
		_ = b.b.Finish()
		b.b = nil
	}
}

// TenantName returns the name of the i-th tenant; 0 is the high-priority one.
func TenantName(i int) string {
	if i == 0 {
		return "high"
	}
	return fmt.Sprintf("low%d", i)
}

// Micros formats a kernel's duration.
func Micros(us int) string {
	if us >= 1000 {
		return fmt.Sprintf("%g ms", float64(us)/1000)
	}
	return fmt.Sprintf("%d µs", us)
}

func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Monotonic reads the clock of the tenants, the daemon and the device.
func Monotonic() int64 { return int64(clock.Now()) }

// Until calls try every pace until it reports true or fails, for at most limit. It returns whether try
// reported true.
func Until(ctx context.Context, limit, pace time.Duration, try func() (bool, error)) (bool, error) {
	for end := time.Now().Add(limit); ; {
		if ok, err := try(); ok || err != nil {
			return ok, err
		}
		if time.Now().After(end) {
			return false, nil
		}
		if err := Sleep(ctx, pace); err != nil {
			return false, err
		}
	}
}
