// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"time"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// Time limits of a self-test. The kernel is short to disturb other tenants little. Every wait is
// bounded, so that a faulty GPU delays only the test.
const (
	testTime   = 60 * time.Second      // per GPU
	openTime   = 30 * time.Second      // to create a context and compile the kernel
	answerTime = 5 * time.Second       // for any other answer
	stopTime   = 2 * time.Second       // until a killed program has ended
	kernelTime = 60 * time.Millisecond // target kernel duration
	kernelMost = 5 * time.Second       // until a kernel ends, excluding suspensions
	pollPause  = time.Millisecond
	settleTime = 5 * time.Millisecond   // for the kernel's outstanding writes
	sliceTime  = 100 * time.Millisecond // for Lv2: until the current timeslice ends
	holdTime   = 50 * time.Millisecond  // how long a suspended kernel must make no progress
	testSlice  = 3 * time.Millisecond   // differs from the driver's default of 2 ms

	firstWork  = 20000 // iterations, or microseconds on the virtual GPU
	mostGrowth = 32    // of the work per calibration step
	rivalWork  = 20    // of the second program, in multiples of the first's kernel
	mostWork   = 1 << 31
	testSeed   = 7

	missedTries  = 2 // retries after a kernel that ended too early
	missedGrowth = 4 // growth of its duration
)

// errMissed reports a kernel that may have ended before the suspension took effect.
var errMissed = errors.New("the kernel ended before it was suspended")

// observation is an error that the GPU or its driver showed. All other errors, such as those of the
// test program, leave the test inconclusive.
type observation struct{ error }

func observed(format string, args ...any) error { return observation{fmt.Errorf(format, args...)} }

// isObservation reports whether an error is evidence against the GPU. An RM status is, unless RM was
// busy or the object has gone with the test program.
func isObservation(err error) bool {
	if errors.As(err, new(observation)) {
		return true
	}
	st, ok := statusOf(err)
	return ok && st != NV_ERR_BUSY_RETRY && !st.gone()
}

// selfTest is a test in progress.
type selfTest struct {
	driver  *Driver
	gpu     model.DeviceID
	program *testProgram
	rival   *testProgram // the second program of the Lv2 step; nil: none
	objects *Objects
	target  driver.Target
	onStep  func(driver.SelfTestStep)
	result  driver.SelfTest
	others  int // other processes on the GPU

	start func(context.Context) (*testProgram, string, error) // starts another copy of the program

	length time.Duration // target kernel duration
	work   uint32        // iterations for that duration
	want   kernelResult
	wall   time.Duration // duration of the undisturbed kernel
}

// selfTestOne tests one GPU within testTime and leaves nothing suspended.
func (d *Driver) selfTestOne(ctx context.Context, gpu model.DeviceID, o driver.SelfTestOptions) driver.SelfTest {
	t := &selfTest{driver: d.ungatedCopy(), gpu: gpu, length: kernelTime}
	t.result = driver.SelfTest{Outcome: driver.OutcomeInconclusive, When: time.Now().UTC().Truncate(time.Second)}
	t.onStep = func(s driver.SelfTestStep) {
		if o.OnStep != nil {
			o.OnStep(gpu, s)
		}
	}
	t.others = len(d.allUsers()[gpu])
	ctx, cancel := context.WithTimeout(ctx, testTime)
	defer cancel()
	if why := d.MPSReason(); why != "" {
		t.step("start", func() (string, error) {
			return "", fmt.Errorf("%s: suspending the test would suspend all its clients", why)
		})
		return t.result
	}
	t.start = func(ctx context.Context) (*testProgram, string, error) { return startTest(ctx, gpu, o.Program) }
	started := t.step("start", func() (detail string, err error) {
		t.program, detail, err = t.start(ctx)
		return detail, err
	})
	if t.program == nil {
		return t.result
	}
	// A driver call can't be interrupted, so the test is abandoned with it.
	done := make(chan struct{})
	go func() {
		defer close(done)
		if started {
			t.run(ctx)
		}
	}()
	select {
	case <-done:
		t.program.stop()
		t.close()
		return t.result
	case <-ctx.Done():
	}
	t.program.kill() // pending answers fail, which ends the test
	select {
	case <-done:
		t.program.stop()
		t.close()
		return t.result
	case <-time.After(answerTime):
	}
	return driver.SelfTest{
		Outcome: driver.OutcomeInconclusive, When: t.result.When,
		Reason: fmt.Sprintf("the driver did not answer within %v; the process of the test was killed", testTime),
	}
}

func (t *selfTest) close() {
	if t.objects != nil {
		t.objects.Close()
	}
}

// step runs one step and records it.
func (t *selfTest) step(name string, do func() (string, error)) bool {
	start := time.Now()
	detail, err := do()
	s := driver.SelfTestStep{Name: name, OK: err == nil, Detail: detail, MS: float64(time.Since(start).Microseconds()) / 1000}
	if err != nil {
		s.Detail = err.Error()
		if detail != "" {
			s.Detail += " (" + detail + ")"
		}
		if t.result.Reason == "" {
			t.result.Reason = name + ": " + err.Error()
		}
	}
	t.result.Steps = append(t.result.Steps, s)
	t.onStep(s)
	return err == nil
}

// run performs the steps on an open GPU. The test fails only by an observation about the GPU, and
// is otherwise inconclusive.
func (t *selfTest) run(ctx context.Context) {
	if !t.step("find channels", func() (string, error) { return t.find(ctx) }) {
		return
	}
	if !t.step("undisturbed run", func() (string, error) { return t.reference(ctx) }) {
		return
	}
	var err error
	t.result.Slices = t.step("timeslice", func() (detail string, e error) {
		detail, err = t.timeslice(ctx)
		return detail, err
	})
	if err != nil && !isObservation(err) {
		return
	}
	t.result.Stop = true
	for _, level := range []model.Level{model.LevelInterrupt, model.LevelDeactivate} {
		reason := t.result.Reason
		err := t.attempt(ctx, level)
		for try := 0; errors.Is(err, errMissed) && try < missedTries; try++ {
			// A busy host was late, so the next kernel runs longer.
			t.length, t.result.Reason = missedGrowth*t.length, reason
			if !t.step("longer undisturbed run", func() (string, error) { return t.reference(ctx) }) {
				t.result.Stop = false
				return
			}
			err = t.attempt(ctx, level)
		}
		if err != nil && !isObservation(err) || ctx.Err() != nil {
			t.result.Stop = false
			return // inconclusive
		}
		if err != nil {
			t.result.Stop = false
			break
		}
	}
	t.result.Outcome = driver.OutcomeFailed
	if t.result.Stop && t.result.Slices {
		t.result.Outcome = driver.OutcomePassed
	}
}

// attempt tests one level. Lv2 takes effect at the end of a timeslice. A program alone on its GPU
// has none, so its kernel runs to the end (H200, 580.159.04). The Lv2 test therefore needs a rival.
func (t *selfTest) attempt(ctx context.Context, level model.Level) error {
	if level == model.LevelDeactivate {
		err := t.compete(ctx)
		if t.rival != nil {
			defer func() {
				t.rival.stop()
				t.rival = nil
			}()
		}
		if err != nil {
			return err
		}
	}
	return t.preempt(ctx, level)
}

// compete starts a second copy with a kernel that outlasts the Lv2 steps.
func (t *selfTest) compete(ctx context.Context) (err error) {
	t.step("start a second program", func() (detail string, e error) {
		t.rival, detail, err = t.start(ctx)
		if err == nil {
			err = t.rival.launch(ctx, uint32(min(mostWork, float64(t.work)*rivalWork)))
		}
		return detail, err
	})
	return err
}

// alone reports whether the second program no longer uses the GPU, so that Lv2 can't take effect.
func (t *selfTest) alone(ctx context.Context) bool {
	if t.rival == nil {
		return false
	}
	p, err := t.rival.read(ctx)
	return err != nil || p.done
}
