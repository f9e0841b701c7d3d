// SPDX-License-Identifier: Apache-2.0

package window_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"

	"xsched/internal/window"
)

// slowScheduler has one program. One of its answers is late.
type slowScheduler struct {
	late           string // the call whose answer is late
	began, release chan struct{}
	active, lost   bool // the program is marked; there is no connection
}

// answer returns what a caller gets whose context has ended meanwhile.
func (s *slowScheduler) answer(ctx context.Context, call string) error {
	if call != s.late {
		return nil
	}
	s.late = ""
	close(s.began)
	<-s.release
	return ctx.Err()
}

func (s *slowScheduler) Programs(ctx context.Context) ([]window.Program, error) {
	if s.active {
		if err := s.answer(ctx, "Programs"); err != nil {
			s.lost = true
			return nil, err
		}
	}
	return []window.Program{{PID: 7, Active: s.active}}, nil
}

func (s *slowScheduler) SetActive(ctx context.Context, _ int, active bool) error {
	if s.lost {
		return nil
	}
	s.active = active
	return s.answer(ctx, "SetActive")
}

// TestEndDuringARequest: a follower that is told to end while it waits for the scheduler leaves no mark.
func TestEndDuringARequest(t *testing.T) {
	for _, call := range []string{"Programs", "SetActive"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slowScheduler{late: call, began: make(chan struct{}), release: make(chan struct{})}
				lines, input := io.Pipe()
				f := window.Follower{
					Displays: func() []string { return nil }, PIDs: lines, Scheduler: s, Log: slog.New(slog.DiscardHandler),
					Processes: window.Processes{Parent: func(int) int { return 0 }, Getenv: func(int, string) string { return "" }},
				}
				ctx, end := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					f.Run(ctx)
				}()
				if _, err := io.WriteString(input, "7\n"); err != nil {
					t.Fatal(err)
				}
				<-s.began
				if !s.active {
					t.Fatal("the program is not marked")
				}
				end()
				synctest.Wait()
				close(s.release)
				<-ended
				if s.active {
					t.Error("the program is still marked")
				}
				_ = input.Close()
			})
		})
	}
}
