// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// world is a cluster in virtual time: nodes with wrong clocks, a store with conditional writes, and watches
// that are late, stop and start again.
type world struct {
	t      *testing.T
	random *rand.Rand
	config Config
	now    int64 // ns
	step   int64

	record   Record
	commits  []int64
	versions int
	down     bool // the API server
	nodes    []*worldNode
}

type worldNode struct {
	*Machine
	offset  int64 // of its clock
	dead    bool
	cut     bool // its watch
	feed    []delivery
	answers []answer

	held      bool
	began     []int64 // starts of holds
	ended     []int64
	needUntil int64
}

type delivery struct {
	at     int64
	record Record
}

type answer struct {
	at     int64
	record Record
	err    error
}

const maxOffset = 20 * ms // of two clocks

func (n *worldNode) moment(now int64) Moment { return Moment{Wall: 1e18 + now + n.offset, Mono: now} }

func (w *world) delay() int64 {
	d := w.random.Int64N(40 * ms)
	if w.random.IntN(20) == 0 {
		d += w.random.Int64N(400 * ms)
	}
	return d
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 6)), config: Default(), step: 5 * ms, now: int64(time.Hour)}
	for i := range 2 + w.random.IntN(4) {
		n := &worldNode{Machine: New(w.config, fmt.Sprint("n", i)), offset: w.random.Int64N(maxOffset+1) - maxOffset/2}
		n.Observe(n.moment(w.now), w.record)
		w.nodes = append(w.nodes, n)
	}
	return w
}

// publish sends the record to the watches, in order for each.
func (w *world) publish(n *worldNode) {
	at := w.now + w.delay()
	if len(n.feed) > 0 {
		at = max(at, n.feed[len(n.feed)-1].at)
	}
	n.feed = append(n.feed, delivery{at, w.record})
}

// write is the API server: it takes a write if the version is the present one. An answer may be lost.
func (w *world) write(n *worldNode, r Record) {
	at := w.now + w.delay()
	switch {
	case w.down:
		n.answers = append(n.answers, answer{at, r, errors.New("refused")})
		return
	case r.Version != w.record.Version:
		n.answers = append(n.answers, answer{at, r, errors.New("conflict")})
		return
	}
	w.versions++
	r.Version = fmt.Sprint(w.versions)
	w.record = r
	w.commits = append(w.commits, w.now)
	for _, o := range w.nodes {
		if !o.cut {
			w.publish(o)
		}
	}
	if w.random.IntN(10) == 0 {
		n.answers = append(n.answers, answer{w.now + 2*int64(time.Second), r, errors.New("timeout")})
	} else {
		n.answers = append(n.answers, answer{at, r, nil})
	}
}

// disturb changes needs, cuts watches, and stops and starts the server and nodes.
func (w *world) disturb() {
	if w.random.IntN(400) == 0 {
		w.down = !w.down
		for _, n := range w.nodes {
			n.cut = w.down
			if !w.down {
				w.publish(n)
			}
		}
	}
	for _, n := range w.nodes {
		switch w.random.IntN(600) {
		case 0, 1, 2:
			n.needUntil = w.now + w.random.Int64N(int64(8*time.Second))
		case 3:
			n.cut = true
		case 4:
			if n.cut && !w.down {
				n.cut = false
				w.publish(n)
			}
		case 5:
			if w.random.IntN(10) == 0 {
				n.dead = true
			}
		}
	}
}

func (w *world) tick() {
	w.now += w.step
	for _, n := range w.nodes {
		if n.dead { // its daemon goes on with what it was told
			w.check(n)
			continue
		}
		for len(n.feed) > 0 && n.feed[0].at <= w.now {
			n.Observe(n.moment(w.now), n.feed[0].record)
			n.feed = n.feed[1:]
		}
		for len(n.answers) > 0 && n.answers[0].at <= w.now {
			a := n.answers[0]
			n.answers = n.answers[1:]
			n.Wrote(n.moment(w.now), a.record, a.err)
		}
		n.Need(w.now < n.needUntil, 0)
		if r, ok, _ := n.Write(n.moment(w.now)); ok {
			w.write(n, r)
		}
		w.check(n)
	}
}

// check compares a node's holds with what the record promises.
func (w *world) check(n *worldNode) {
	here := n.moment(w.now)
	held := n.Held(here)
	if held {
		covered := false
		for _, a := range n.record.Asks {
			covered = covered || a.From <= here.Wall && here.Wall < a.Until
		}
		if !covered {
			w.t.Fatalf("%s is held at %d beyond its record %+v", n.node, here.Wall, n.record)
		}
	}
	switch {
	case held && !n.held:
		n.began = append(n.began, w.now)
	case !held && n.held:
		n.ended = append(n.ended, w.now)
		// A node that misses a release may still be held when the next hold begins.
		if took := w.now - n.began[len(n.began)-1]; took > int64(w.config.MaxHold+w.config.TTL)+maxOffset+2*w.step {
			w.t.Fatalf("%s was held for %v", n.node, time.Duration(took))
		}
	}
	n.held = held
}

// TestProperties disturbs clusters at random. Whatever happens, no node holds its ranks beyond the record's
// end or for longer than the bound, the group runs for its time between two holds, writes keep their gap,
// and everybody runs soon after nobody needs a hold or nobody can write.
func TestProperties(t *testing.T) {
	holds, most := 0, 0
	for seed := range uint64(20) {
		w := newWorld(t, seed)
		for range 12_000 { // a minute
			w.disturb()
			w.tick()
		}
		if seed%2 == 0 {
			w.down = true
		}
		for _, n := range w.nodes {
			n.cut, n.needUntil = w.down, 0
		}
		for end := w.now + int64(w.config.TTL+2*w.config.MaxLead); w.now < end; {
			w.tick()
		}
		for i, n := range w.nodes {
			if n.held {
				t.Fatalf("seed %d: %s stays held: %+v", seed, n.node, n.record)
			}
			holds += len(n.began)
			most = max(most, len(n.began))
			// A watch that was cut may show a hold late, so a node can run for less than the whole group does,
			// but it never stops more often than the group may be held.
			if bound := int(75*time.Second/w.config.MinRun) + 1; len(n.began) > bound {
				t.Errorf("seed %d: node %d was held %d times", seed, i, len(n.began))
			}
		}
		for i := 1; i < len(w.commits); i++ {
			if gap := w.commits[i] - w.commits[i-1]; gap < int64(w.config.Gap)-w.step {
				t.Fatalf("seed %d: two writes within %v", seed, time.Duration(gap))
			}
		}
	}
	if holds < 100 {
		t.Errorf("only %d holds: the test shows nothing", holds)
	}
	t.Logf("%d holds on all nodes, at most %d on one in a minute", holds, most)
}

// TestSkew checks that nodes whose watches show records within the lead start and end a hold together, up to
// the offset of their clocks.
func TestSkew(t *testing.T) {
	rounds := 0
	for seed := range uint64(20) {
		w := newWorld(t, seed)
		for i := range 6_000 {
			w.nodes[0].needUntil = 0
			if i%1_000 < 300 {
				w.nodes[0].needUntil = w.now + 2*w.step
			}
			w.tick()
		}
		var late int64
		for _, n := range w.nodes {
			late = max(late, n.Stats().LateNS)
		}
		first := w.nodes[0]
		for _, n := range w.nodes[1:] {
			if len(n.began) != len(first.began) || len(n.ended) != len(first.ended) {
				t.Fatalf("seed %d: %d and %d holds", seed, len(n.began), len(first.began))
			}
			for i := range n.ended {
				rounds++
				if skew := max(n.began[i], first.began[i]) - min(n.began[i], first.began[i]); skew > maxOffset+late+w.step {
					t.Errorf("seed %d: starts differ by %v, latest %v", seed, time.Duration(skew), time.Duration(late))
				}
				// A late release leaves a node held until it sees it.
				if skew := max(n.ended[i], first.ended[i]) - min(n.ended[i], first.ended[i]); skew > maxOffset+440*ms-int64(w.config.Lead)+w.step {
					t.Errorf("seed %d: ends differ by %v", seed, time.Duration(skew))
				}
			}
		}
	}
	if rounds < 100 {
		t.Errorf("only %d rounds", rounds)
	}
}
