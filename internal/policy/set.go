// SPDX-License-Identifier: Apache-2.0

package policy

import "math/bits"

// Set is a set of queue indices. Policies walk sets instead of queues: 1,000
// queues are 16 words, so a decision that touches two of them reads two.
type Set []uint64

// Has says whether i is in the set.
func (s Set) Has(i int) bool { return s[i>>6]&(1<<(i&63)) != 0 }

// Put makes i a member or not.
func (s Set) Put(i int, in bool) {
	if in {
		s[i>>6] |= 1 << (i & 63)
	} else {
		s[i>>6] &^= 1 << (i & 63)
	}
}

// Next returns the first member that is >= from, or -1.
func (s Set) Next(from int) int {
	w := from >> 6
	if w >= len(s) {
		return -1
	}
	if word := s[w] >> (from & 63); word != 0 {
		return from + bits.TrailingZeros64(word)
	}
	for w++; w < len(s); w++ {
		if s[w] != 0 {
			return w<<6 + bits.TrailingZeros64(s[w])
		}
	}
	return -1
}

// NextIn returns the first member in [from, end), or -1.
func (s Set) NextIn(from, end int) int {
	if i := s.Next(from); i >= 0 && i < end {
		return i
	}
	return -1
}

// Count returns the number of members.
func (s Set) Count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// CountIn returns the number of members in [from, end), counting no further than limit.
func (s Set) CountIn(from, end, limit int) int {
	n := 0
	for i := s.NextIn(from, end); i >= 0 && n < limit; i = s.NextIn(i+1, end) {
		n++
	}
	return n
}

// Reset makes the set empty, with room for n indices, and returns it.
func (s Set) Reset(n int) Set {
	words := (n + 63) >> 6
	if cap(s) < words {
		return make(Set, words, words*2)
	}
	s = s[:words]
	clear(s)
	return s
}

// first is the index of the lowest bit of word w of a set.
func first(w int, word uint64) int { return w<<6 + bits.TrailingZeros64(word) }
