// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bounds of a bucket. A row has a few hundred bytes, see docs/operations.md.
const (
	maxRows         = 128 // without that of the users beyond
	maxRowsPerOwner = 16  // with a program; those of an owner's other programs come on top
	maxGPUs         = 16  // that no driver lists; further ones have one name
	maxText         = 64  // bytes of a part of a key
)

// OtherGPU stands for the GPUs beyond the bound.
const OtherGPU = "other"

// Key is whom a row is about. Without Pod and Program it has an owner's other programs, on any GPU without one.
// The zero Key has all other users.
type Key struct {
	Owner   string `json:"owner,omitempty"`
	Pod     string `json:"pod,omitempty"`
	Program string `json:"program,omitempty"`
	GPU     string `json:"gpu,omitempty"`
}

// clean makes the parts printable and short. Of a long one, a hash tells it apart.
func (k Key) clean() Key {
	return Key{cleanText(k.Owner), cleanText(k.Pod), cleanText(k.Program), cleanText(k.GPU)}
}

func cleanText(s string) string {
	if validText(s) {
		return s
	}
	hash := fmt.Sprintf("~%x", sha256.Sum256([]byte(s)))[:17]
	s = strings.Map(func(r rune) rune {
		if !plain(r) {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), maxText-len(hash))] + hash
}

func validText(all ...string) bool {
	return !slices.ContainsFunc(all, func(s string) bool {
		return len(s) > maxText || strings.ContainsFunc(s, func(r rune) bool { return !plain(r) })
	})
}

// plain reports whether a character is printable, and one byte in the files, which have a bounded size.
func plain(r rune) bool { return r >= ' ' && r <= '~' && r != '"' && r != '\\' }

func (k Key) other() Key { return Key{Owner: k.Owner, GPU: k.GPU} }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Program, b.Program), cmp.Compare(a.GPU, b.GPU))
}

// Amounts are what programs used. Times are nanoseconds.
type Amounts struct {
	Ran      int64 `json:"ran"`    // on the GPU
	Open     int64 `json:"open"`   // of programs that have used the GPU, with work or without
	Waited   int64 `json:"waited"` // with work, while others had the GPU or it was suspended
	Requests int64 `json:"requests,omitempty"`
	Judged   int64 `json:"judged,omitempty"` // requests with a latency target
	Met      int64 `json:"met,omitempty"`    // of those
}

// maxAmount keeps sums from overflowing: 36 years.
const maxAmount = 1 << 60

func sum(a, b int64) int64 { return min(a+b, maxAmount) }

// Add adds amounts.
func (a *Amounts) Add(b Amounts) {
	a.Ran, a.Open, a.Waited = sum(a.Ran, b.Ran), sum(a.Open, b.Open), sum(a.Waited, b.Waited)
	a.Requests, a.Judged, a.Met = sum(a.Requests, b.Requests), sum(a.Judged, b.Judged), sum(a.Met, b.Met)
}

// bucket has the rows of an hour or a day.
type bucket struct {
	start    int64 // Unix seconds, a multiple of length
	length   int64 // seconds
	watched  int64 // nanoseconds that a daemon ran
	capacity int64 // the same, times the number of GPUs
	rows     map[Key]Amounts
}

func newBucket(at, length int64) *bucket {
	return &bucket{start: at - ((at%length)+length)%length, length: length, rows: map[Key]Amounts{}}
}

func (b *bucket) clone() *bucket {
	out := *b
	out.rows = maps.Clone(b.rows)
	return &out
}

func (b *bucket) empty() bool { return b.watched == 0 && len(b.rows) == 0 }

// add adds amounts to a row, or to one of "other" if the bounds leave no row of its own. It never loses any.
func (b *bucket) add(key Key, a Amounts) {
	if _, known := b.rows[key]; !known && key.Owner != "" {
		key = b.place(key)
	}
	row := b.rows[key]
	row.Add(a)
	b.rows[key] = row
}

// place returns the row for a new key.
func (b *bucket) place(key Key) Key {
	named := 0
	for k := range b.rows {
		if k.Owner == key.Owner && k != k.other() {
			named++
		}
	}
	if named >= maxRowsPerOwner {
		key = key.other()
	}
	if _, known := b.rows[key]; known {
		return key
	}
	if len(b.rows) >= maxRows && !b.shrink() {
		return Key{}
	}
	return key
}

// shrink makes room: the owner with most rows loses the names of its programs, else of its GPUs. So nobody
// displaces others with many programs or GPUs.
func (b *bucket) shrink() bool {
	counts := map[string]int{}
	for k := range b.rows {
		counts[k.Owner]++
	}
	most, owner := 1, ""
	for name, n := range counts {
		if n > most || n == most && n > 1 && name < owner {
			most, owner = n, name
		}
	}
	before := len(b.rows)
	for _, short := range []func(Key) Key{Key.other, func(k Key) Key { return Key{Owner: k.Owner} }} {
		for k, a := range maps.Clone(b.rows) {
			if k.Owner == owner && k != short(k) {
				delete(b.rows, k)
				rest := b.rows[short(k)]
				rest.Add(a)
				b.rows[short(k)] = rest
			}
		}
		if len(b.rows) < before {
			return true
		}
	}
	return false
}

// merge adds the rows of another bucket, in the same order each time.
func (b *bucket) merge(o *bucket) {
	b.watched, b.capacity = sum(b.watched, o.watched), sum(b.capacity, o.capacity)
	for _, k := range slices.SortedFunc(maps.Keys(o.rows), compareKeys) {
		b.add(k, o.rows[k])
	}
}
