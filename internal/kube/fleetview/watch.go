// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/kube/view"
)

// maxStreams bounds the streams through the API server. More nodes than that are asked in turn.
const maxStreams = 250

const (
	relist = 10 * time.Second // between two lists of the nodes
	round  = 10 * time.Second // between two answers of a node that has no stream
	// opening is how long a new stream that is silent keeps others from being opened: dead nodes must not
	// delay the rest.
	opening = time.Second
)

func now() int64 { return time.Now().UnixNano() }

// Watch keeps one stream open to each daemon, or asks many daemons in turn. It is the source of the view.
type Watch struct {
	Daemons  *Daemons
	Node     string // empty: all nodes
	Interval time.Duration
	// Retry is the time before a broken stream is opened again; 0: two seconds.
	Retry time.Duration
	// Streams is the number of nodes up to which each has a stream; 0: 250.
	Streams int
	Filter  func(context.Context) (Filter, error)

	mu      sync.Mutex
	nodes   map[string]*stream
	filter  Filter
	failure error // of the last list of nodes
	listed  bool
}

// stream is a node with its own goroutine.
type stream struct {
	node   Node
	asked  bool // in turn
	cancel context.CancelFunc
}

// Run follows the nodes until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	slots := make(chan struct{}, concurrent)
	var all sync.WaitGroup
	defer all.Wait()
	for {
		targets, filter, err := w.look(ctx)
		w.mu.Lock()
		if w.failure = err; err == nil {
			w.listed, w.filter = true, filter
			w.follow(ctx, targets, slots, &all)
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(relist):
		}
	}
}

func (w *Watch) look(ctx context.Context) ([]Target, Filter, error) {
	targets, err := w.Daemons.Targets(ctx, w.Node)
	if err != nil || w.Filter == nil {
		return targets, Filter{}, err
	}
	filter, err := w.Filter(ctx)
	return targets, filter, err
}

// follow starts and ends streams so that each target has one.
//
// Precondition: w.mu is held.
func (w *Watch) follow(ctx context.Context, targets []Target, slots chan struct{}, all *sync.WaitGroup) {
	if w.nodes == nil {
		w.nodes = map[string]*stream{}
	}
	wanted := map[string]bool{}
	inTurn := len(targets) > cmp.Or(w.Streams, maxStreams)
	for _, t := range targets {
		wanted[t.Node] = true
		old := w.nodes[t.Node]
		if old != nil && old.node.Pod == t.Pod && (t.Problem == "") == (old.cancel != nil) && old.asked == inTurn {
			if t.Problem != "" {
				old.node.Error = t.Problem
			}
			continue
		}
		old.end()
		s := &stream{node: Node{Name: t.Node, Pod: t.Pod, Error: t.Problem}, asked: inTurn}
		w.nodes[t.Node] = s
		if t.Problem != "" {
			continue
		}
		s.node.Error = "connecting"
		var streaming context.Context
		streaming, s.cancel = context.WithCancel(ctx)
		if inTurn {
			all.Go(func() { w.askAgain(streaming, s, slots) })
		} else {
			all.Go(func() { w.stream(streaming, s, slots) })
		}
	}
	for name, s := range w.nodes {
		if !wanted[name] {
			s.end()
			delete(w.nodes, name)
		}
	}
}

func (s *stream) end() {
	if s != nil && s.cancel != nil {
		s.cancel()
	}
}

// stream reads snapshots of one node, and opens the stream again when it ends.
func (w *Watch) stream(ctx context.Context, s *stream, slots chan struct{}) {
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		opened := sync.OnceFunc(func() { <-slots }) // bounds the streams that are being opened
		slow := time.AfterFunc(opening, opened)
		streaming, cancel := context.WithCancelCause(ctx)
		silent := w.Daemons.whenSilent(cancel)
		err := w.read(streaming, s, func() {
			silent.Reset(w.Daemons.patience() + w.Interval)
			opened()
		})
		slow.Stop()
		silent.Stop()
		cancel(nil)
		opened()
		pause := w.Interval // a stream has a longest time
		if err != nil {
			w.set(s, nil, err)
			pause = cmp.Or(w.Retry, 2*time.Second)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// askAgain asks one node for a snapshot, and again after a while.
func (w *Watch) askAgain(ctx context.Context, s *stream, slots chan struct{}) {
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		var snapshot *control.Snapshot
		answer, err := w.Daemons.ask(ctx, s.node.Pod, view.SnapshotPath)
		<-slots
		if err == nil {
			snapshot, err = parse(answer)
		}
		w.set(s, snapshot, err)
		pause := max(round, w.Interval)
		if err != nil {
			pause *= 3 // dead nodes must not take the turns of the rest
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// read follows the stream of a node. It returns without an error if the node ended it after a snapshot.
func (w *Watch) read(ctx context.Context, s *stream, each func()) error {
	body, err := w.Daemons.Get(ctx, s.node.Pod, view.SnapshotPath, url.Values{"interval": {w.Interval.String()}})
	some := false
	if err == nil {
		defer func() { _ = body.Close() }()
		err = eachLine(body, func(line []byte) error {
			each()
			snapshot, err := parse(line)
			if err == nil {
				some = true
				w.set(s, snapshot, nil)
			}
			return err
		})
		if err == nil && !some {
			err = errors.New("the node ended the stream")
		}
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

func (w *Watch) set(s *stream, snapshot *control.Snapshot, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.node.Snapshot, s.node.Error = snapshot, ""
	if err != nil {
		s.node.Error = oneLine(err.Error())
	}
}

// Fleet returns the present state.
func (w *Watch) Fleet() (Fleet, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.listed && w.failure != nil {
		return Fleet{}, w.failure
	}
	fleet := Fleet{TimeNS: now(), Nodes: make([]Node, 0, len(w.nodes))}
	for _, s := range w.nodes {
		fleet.Nodes = append(fleet.Nodes, s.node)
	}
	sortNodes(fleet.Nodes)
	return w.filter.Apply(fleet), nil
}

// Fetch returns the fleet as one snapshot.
func (w *Watch) Fetch(context.Context) (control.Snapshot, error) {
	fleet, err := w.Fleet()
	if err != nil {
		return control.Snapshot{}, err
	}
	return fleet.Merged(), nil
}

// errReadOnly: PIDs repeat among nodes, and a view of many nodes is no place to steer one program.
var errReadOnly = errors.New("this view only shows; whoever is root on the node can run `xsched` there")

// Policies refuses: nodes may differ.
func (*Watch) Policies(context.Context) (control.PolicyReply, error) {
	return control.PolicyReply{}, errReadOnly
}

// SetPriority refuses.
func (*Watch) SetPriority(context.Context, int, int32) (string, error) { return "", errReadOnly }

// Suspend refuses.
func (*Watch) Suspend(context.Context, int) (string, error) { return "", errReadOnly }

// Resume refuses.
func (*Watch) Resume(context.Context, int) (string, error) { return "", errReadOnly }

// SetPolicy refuses.
func (*Watch) SetPolicy(context.Context, string) (string, error) { return "", errReadOnly }
