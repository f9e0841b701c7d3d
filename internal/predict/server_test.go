// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// answer submits a prompt, and tokens that are graphs. No order of their numbers repeats soon.
func (c *chain) answer(i, launches int, tokens int) {
	c.part(launches, time.Duration(launches)*20*us, 100*us)
	c.tokens(tokens+i*i%7, 2, 80*us, 2800*us)
}

// TestClassOfLongAnswers: however long the answers are, a server is launch-bound soon.
func TestClassOfLongAnswers(t *testing.T) {
	for _, before := range []int{0, 10} {
		for _, tokens := range []int{10, 70, 100, 200, 500} {
			c := chain{now: model.Time(time.Hour)}
			for range before { // GPU-bound
				c.part(1000, ms, 20*ms)
				c.now = c.now.Add(30 * ms)
			}
			for i := range 100 {
				c.answer(i, 1000, tokens)
				c.now = c.now.Add(30 * ms)
			}
			if c.s.class.Is != model.ClassLaunchBound {
				t.Errorf("%d tokens, GPU-bound before: %v: %v", tokens, before > 0, c.s.class.Is)
			}
		}
	}
}

// TestLongFollowers: a long part that follows short ones is known from the requests before.
func TestLongFollowers(t *testing.T) {
	c := chain{now: model.Time(time.Hour)}
	for i := range 200 {
		if i == 40 {
			c.s.counts = model.SegmentCounts{}
		}
		c.part(1000, 20*ms, 100*us)
		for range 2 + i*i%7 {
			c.now = c.now.Add(100 * us)
			c.part(10, 200*us, 300*us)
		}
		c.now = c.now.Add(100 * us)
		c.part(400, 8*ms, 100*us)
		c.now = c.now.Add(30 * ms)
	}
	if n := c.s.counts; n.InTime < 310 {
		t.Errorf("%+v", n)
	}
}

// TestQueuedPromptsChange: a server that is never idle runs another model.
func TestQueuedPromptsChange(t *testing.T) {
	for _, tokens := range []int{3, 50} {
		for _, size := range []int{300, 450, 3000, 5000} {
			c := chain{now: model.Time(time.Hour)}
			for i := range 30 {
				c.answer(i, 1000, tokens)
				c.now = c.now.Add(30 * ms)
			}
			c.s.counts = model.SegmentCounts{}
			for i := range 300 {
				c.answer(i, size, tokens)
				c.now = c.now.Add(120 * us)
			}
			if n := c.s.counts; n.InTime < 200 {
				t.Errorf("%d launches, %d tokens: %+v, %d expected", size, tokens, n, c.s.first.median())
			}
		}
	}
}

// TestWarmUp: what a server did before it was never idle again is no measure of its prompts.
func TestWarmUp(t *testing.T) {
	c := chain{now: model.Time(time.Hour)}
	for range 20 {
		c.part(2, 80*us, 2800*us)
		c.now = c.now.Add(30 * ms)
	}
	for i := range 300 {
		c.answer(i, 1000, 3)
		c.now = c.now.Add(120 * us)
	}
	if n := c.s.counts; n.InTime < 200 {
		t.Errorf("%+v, %d expected", n, c.s.first.median())
	}
}

// TestOneLongerPart: one longer part per answer doesn't end the protection of the prompts.
func TestOneLongerPart(t *testing.T) {
	c := chain{now: model.Time(time.Hour)}
	for i := range 200 {
		c.answer(i, 1000, 20)
		c.now = c.now.Add(70 * us)
		c.part(300, 6*ms, 100*us)
		c.tokens(20, 2, 80*us, 2800*us)
		c.now = c.now.Add(30 * ms)
	}
	if state := c.s.State(); !state.Predicted || state.Counts.InTime < 150 {
		t.Errorf("%+v", state)
	}
}
