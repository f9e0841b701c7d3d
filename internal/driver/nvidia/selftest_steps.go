// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// find duplicates the program's control files and finds its channels as an attach does.
func (t *selfTest) find(ctx context.Context) (string, error) {
	fds, err := t.program.files(ctx)
	if err != nil {
		return "", err
	}
	var files []*File
	for _, fd := range fds {
		if t.driver.Accept(fd) != nil {
			closeAll([]int{fd})
			continue
		}
		files = append(files, NewFile(fd))
	}
	defer closeFiles(files)
	if len(files) == 0 {
		return "", fmt.Errorf("%w: no control file is open", ErrNoContext)
	}
	t.objects = NewObjects(t.driver, Limits{Clients: maxFiles, Objects: maxHandles}, &driver.Metrics{})
	t.objects.everyChannel = true
	w := &walk{driver: t.driver, files: files, into: t.objects, budget: searchTime}
	if err := w.clients(ctx); err != nil {
		return "", err
	}
	caps, err := t.objects.Resolve(ctx)
	if err != nil {
		return "", err
	}
	if caps[t.gpu].MaxLevel < model.LevelInterrupt {
		return "", w.nothing(caps[t.gpu].Reason)
	}
	t.target = t.objects.Target(t.gpu)
	queues, err := t.objects.HardwareQueues(ctx)
	groups := slices.DeleteFunc(slices.Clone(queues), func(q driver.HardwareQueue) bool { return q.Kind != "group" })
	return fmt.Sprintf("%d channels, %d compute groups; %d other processes use this GPU", len(queues)-len(groups), len(groups), t.others), err
}

// reference calibrates the work to the target duration and records its result.
func (t *selfTest) reference(ctx context.Context) (string, error) {
	t.work = firstWork
	for range 8 {
		start := time.Now()
		if err := t.program.launch(ctx, t.work); err != nil {
			return "", err
		}
		if err := t.finish(ctx, kernelMost); err != nil {
			return "", err
		}
		t.wall = time.Since(start)
		if t.wall >= t.length/2 || t.work >= mostWork {
			break
		}
		growth := min(mostGrowth, max(2, float64(t.length)/float64(t.wall)))
		t.work = uint32(min(mostWork, float64(t.work)*growth))
	}
	if t.wall < t.length/2 {
		return "", fmt.Errorf("%d iterations took only %v", t.work, t.wall)
	}
	var err error
	t.want, err = t.program.result(ctx)
	return fmt.Sprintf("%d iterations in %.1f ms, result %x", t.work, milliseconds(t.wall), t.want), err
}

// read returns the kernel's progress. The preceding request makes the virtual GPU update its
// memory.
func (t *selfTest) read(ctx context.Context) (progress, error) {
	if _, err := t.slices(ctx); err != nil {
		return progress{}, err
	}
	return t.program.read(ctx)
}

// finish waits for the end of the kernel.
func (t *selfTest) finish(ctx context.Context, limit time.Duration) error {
	var first, last progress
	for start := time.Now(); time.Since(start) < limit; time.Sleep(pollPause) {
		p, err := t.read(ctx)
		if err != nil || p.done {
			return err
		}
		if last = p; first == (progress{}) {
			first = p
		}
	}
	if last == first {
		return observed("the kernel made no progress within %v (stays at %x)", limit, last.words)
	}
	return fmt.Errorf("the kernel did not end within %v (last progress %x)", limit, last.words)
}

// units returns the objects under test.
func (t *selfTest) units() []unit {
	t.objects.mu.Lock()
	defer t.objects.mu.Unlock()
	return t.objects.units(t.gpu)
}

// slices reads the timeslices of all compute groups.
func (t *selfTest) slices(ctx context.Context) ([]time.Duration, error) {
	var out []time.Duration
	for _, u := range t.units() {
		for _, g := range u.compute {
			var p abi.Timeslice
			if err := t.driver.control(ctx, u.client.file, u.client.handle, g.handle, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, abi.Bytes(&p)); err != nil {
				return nil, fmt.Errorf("read timeslice of group %#x: %w", g.handle, err)
			}
			out = append(out, time.Duration(p.TimesliceUs)*time.Microsecond)
		}
	}
	return out, nil
}

// timeslice sets a timeslice, restores the original, and reads both back.
func (t *selfTest) timeslice(ctx context.Context) (string, error) {
	own, err := t.slices(ctx)
	if err != nil {
		return "", err
	}
	if err := t.target.Apply(ctx, model.Desired{Slice: testSlice}); err != nil {
		return "", err
	}
	set, err := t.slices(ctx)
	if err == nil && slices.ContainsFunc(set, func(s time.Duration) bool { return s != testSlice }) {
		err = observed("set to %v, reads back as %v", testSlice, set)
	}
	if e := t.target.Apply(ctx, model.Desired{}); e != nil {
		return "", errors.Join(err, e)
	}
	if err != nil {
		return "", err
	}
	again, err := t.slices(ctx)
	if err == nil && !slices.Equal(own, again) {
		err = observed("was %v, restored it reads back as %v", own, again)
	}
	return fmt.Sprintf("%v, set to %v and restored", own, testSlice), err
}

// preempt suspends the running kernel, verifies that it makes no progress, resumes it and compares
// its result with the reference.
func (t *selfTest) preempt(ctx context.Context, level model.Level) (err error) {
	suspended := t.step(fmt.Sprintf("suspend at level %d", level), func() (detail string, e error) {
		detail, e = t.suspend(ctx, level)
		if isObservation(e) && t.alone(ctx) {
			// Not wrapped: it is no longer an observation about the GPU.
			e = fmt.Errorf("%w: the second program ended first: %s", errMissed, e.Error())
		}
		err = e
		return detail, e
	})
	// Always resume, because the next step needs running channels.
	resumed := t.step(fmt.Sprintf("resume from level %d", level), func() (detail string, e error) {
		detail, e = t.resume(ctx)
		if err == nil {
			err = e
		}
		return detail, e
	})
	if !suspended || !resumed {
		return err
	}
	return nil
}

func (t *selfTest) suspend(ctx context.Context, level model.Level) (string, error) {
	launched := time.Now()
	if err := t.program.launch(ctx, t.work); err != nil {
		return "", err
	}
	before, err := t.underway(ctx)
	if err != nil {
		return "", err
	}
	start := time.Now()
	if err := t.target.Apply(ctx, model.Desired{Suspend: level}); err != nil {
		return "", err
	}
	took := time.Since(start)
	at, err := t.settled(ctx, level, time.Since(launched))
	if err != nil {
		return fmt.Sprintf("the call took %.2f ms", milliseconds(took)), err
	}
	hold := holdTime
	if t.others > 0 {
		hold = max(hold, 3*t.wall) // other tenants may explain the stall
	}
	for start := time.Now(); time.Since(start) < hold; time.Sleep(settleTime) {
		p, err := t.read(ctx)
		if err != nil {
			return "", err
		}
		if p != at {
			return "", observed("the kernel made progress while suspended: %x, then %x", at.words, p.words)
		}
	}
	return fmt.Sprintf("the call took %.2f ms; no progress for %v at %x, before %x", milliseconds(took), hold.Round(time.Millisecond), at.words, before.words), nil
}

// underway waits for the kernel's first progress.
func (t *selfTest) underway(ctx context.Context) (progress, error) {
	for start := time.Now(); time.Since(start) < kernelMost; time.Sleep(pollPause) {
		p, err := t.read(ctx)
		switch {
		case err != nil:
			return p, err
		case p.done:
			return p, errMissed
		case p.words[0] != 0:
			return p, nil
		}
	}
	return progress{}, fmt.Errorf("the kernel made no progress within %v", kernelMost)
}

// settled waits until the kernel stops: at level 3 at once, at level 2 after the timeslice. The
// kernel may have run for the time ran before the suspend call returned.
func (t *selfTest) settled(ctx context.Context, level model.Level, ran time.Duration) (progress, error) {
	limit := settleTime
	if level == model.LevelDeactivate {
		limit = sliceTime
	}
	var last progress
	for start := time.Now(); ; {
		time.Sleep(settleTime)
		late := time.Since(start) > limit
		p, err := t.read(ctx)
		switch {
		case err != nil:
			return p, err
		case p.done && ran > t.wall/2:
			return p, errMissed // the kernel may have ended during the call
		case p.done:
			return p, observed("the kernel ran to its end although the driver reported it suspended")
		case p == last:
			return p, nil
		case late && last != progress{}:
			return p, observed("the kernel still makes progress %v after the call: %x, then %x", time.Since(start).Round(time.Millisecond), last.words, p.words)
		}
		last = p
	}
}

func (t *selfTest) resume(ctx context.Context) (string, error) {
	start := time.Now()
	if err := t.target.Apply(ctx, model.Desired{}); err != nil {
		return "", err
	}
	took := time.Since(start)
	if err := t.finish(ctx, kernelMost); err != nil {
		return "", err
	}
	ended := time.Since(start)
	detail := fmt.Sprintf("the call took %.2f ms, the kernel ended %.1f ms later", milliseconds(took), milliseconds(ended-took))
	got, err := t.program.result(ctx)
	if err != nil {
		return detail, err
	}
	if got != t.want {
		return detail, observed("the result is %x, undisturbed %x", got, t.want)
	}
	return detail + " with the same result", nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
