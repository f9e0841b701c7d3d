// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"sync"

	"xsched/internal/identity"
)

// maxUserQueues bounds the queues that the programs of one user announce: 64 for each program that a
// user may have. A queue takes about 0.2 kB.
const maxUserQueues = 1 << 16

// shares counts the announced queues of each user.
type shares struct {
	mu   sync.Mutex
	used map[identity.User]int // by account
}

// share is the part of one process.
type share struct {
	shares *shares
	user   identity.User
}

func (s *shares) of(user identity.User) *share { return &share{s, user.Account()} }

// take takes a place for a queue, if the user has one left. nil is unbounded.
func (s *share) take() bool {
	if s == nil {
		return true
	}
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	if s.shares.used == nil {
		s.shares.used = map[identity.User]int{}
	}
	if s.shares.used[s.user] >= maxUserQueues {
		return false
	}
	s.shares.used[s.user]++
	return true
}

// give gives places back.
func (s *share) give(n int) {
	if s == nil || n == 0 {
		return
	}
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	if s.shares.used[s.user] -= n; s.shares.used[s.user] <= 0 {
		delete(s.shares.used, s.user)
	}
}
