// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Rates of one message: of each user or process, and of all together.
const (
	userInterval    = time.Second
	userBurst       = 10
	messageInterval = 20 * time.Millisecond
	messageBurst    = 200
	maxKeys         = 4096 // users and messages that have a rate of their own
)

// rate is a token bucket in one word: the time at which the bucket is full again. It has no lock, so
// that a thread of low priority can't delay the engine.
type rate struct{ full atomic.Int64 }

func (r *rate) allow(now, interval time.Duration, burst int) bool {
	for {
		was := r.full.Load()
		from := max(was, int64(now))
		if time.Duration(from)-now > interval*time.Duration(burst-1) {
			return false
		}
		if r.full.CompareAndSwap(was, from+int64(interval)) {
			return true
		}
	}
}

// message is the state of one message text.
type message struct {
	all     rate
	omitted atomic.Uint64 // not yet reported
}

type userKey struct{ message, user string }

// limiter limits the lines of each message by user and in all.
type limiter struct {
	now      func() time.Duration // since any moment, monotonic: a step of the clock changes no rate
	messages sync.Map             // string to *message
	users    sync.Map             // userKey to *rate
	keys     atomic.Int64
	total    atomic.Uint64 // lines suppressed
}

func newLimiter(now func() time.Duration) *limiter { return &limiter{now: now} }

// other stands for messages and users beyond maxKeys.
const other = "(other messages)"

func (l *limiter) allow(text, user string, level slog.Level) bool {
	if level < slog.LevelInfo {
		return true // whoever asked for debug lines wants all of them
	}
	m := lookUp[message](l, &l.messages, text, other)
	now := l.now()
	// The user first: one that is over its limit uses up nothing of the others'.
	if (user == "" || lookUp[rate](l, &l.users, userKey{text, user}, userKey{}).allow(now, userInterval, userBurst)) &&
		m.all.allow(now, messageInterval, messageBurst) {
		return true
	}
	m.omitted.Add(1)
	l.total.Add(1)
	return false
}

// lookUp returns the entry of a key, or the one that all keys beyond maxKeys share.
func lookUp[T any, K comparable](l *limiter, in *sync.Map, key, rest K) *T {
	if v, ok := in.Load(key); ok {
		return v.(*T)
	}
	if l.keys.Load() >= maxKeys {
		key = rest
	}
	v, known := in.LoadOrStore(key, new(T))
	if !known {
		l.keys.Add(1)
	}
	return v.(*T)
}

// omission is how many lines of a message were suppressed.
type omission struct {
	message string
	lines   uint64
}

// takeOmitted returns what was suppressed since the last call, and forgets users that are within
// their limits.
func (l *limiter) takeOmitted() []omission {
	var out []omission
	l.messages.Range(func(k, v any) bool {
		if n := v.(*message).omitted.Swap(0); n > 0 {
			out = append(out, omission{k.(string), n})
		}
		return true
	})
	now := int64(l.now())
	l.users.Range(func(k, v any) bool {
		if v.(*rate).full.Load() < now {
			if _, there := l.users.LoadAndDelete(k); there {
				l.keys.Add(-1)
			}
		}
		return true
	})
	slices.SortFunc(out, func(a, b omission) int { return strings.Compare(a.message, b.message) })
	return out
}
