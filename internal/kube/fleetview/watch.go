// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/top"
)

// MaxStreams bounds the nodes of a live view. Each has a stream through the API server.
const MaxStreams = 250

// relist is the time between two lists of the nodes.
const relist = 10 * time.Second

func now() int64 { return time.Now().UnixNano() }

// Watch keeps one stream open to each daemon. It is the source of the view.
type Watch struct {
	Daemons  *Daemons
	Node     string // empty: all nodes
	Interval time.Duration
	// Retry is the time before a broken stream is opened again; 0: two seconds.
	Retry  time.Duration
	Filter func(context.Context) (Filter, error)

	mu      sync.Mutex
	nodes   map[string]*stream
	filter  Filter
	failure error // of the last list of nodes
	listed  bool
}

// stream is a node with its own goroutine.
type stream struct {
	node   Node
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
	for i, t := range targets {
		if i >= MaxStreams {
			t.Problem = fmt.Sprintf("not watched: a live view has at most %d nodes; use --node or --once", MaxStreams)
		}
		wanted[t.Node] = true
		old := w.nodes[t.Node]
		if old != nil && old.node.Pod == t.Pod && (t.Problem == "") == (old.cancel != nil) {
			if t.Problem != "" {
				old.node.Error = t.Problem
			}
			continue
		}
		old.end()
		s := &stream{node: Node{Name: t.Node, Pod: t.Pod, Error: t.Problem}}
		w.nodes[t.Node] = s
		if t.Problem != "" {
			continue
		}
		s.node.Error = "connecting"
		var streaming context.Context
		streaming, s.cancel = context.WithCancel(ctx)
		all.Go(func() { w.stream(streaming, s, slots) })
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
		r, out := io.Pipe()
		go func() {
			err := w.Daemons.Exec(ctx, s.node.Pod, out, "top", "--json", "--interval", w.Interval.String())
			if err == nil {
				err = errors.New("the daemon ended the stream")
			}
			_ = out.CloseWithError(err)
		}()
		err := w.read(s, r, opened)
		_ = r.Close()
		opened()
		w.set(s, nil, err)
		select {
		case <-ctx.Done():
		case <-time.After(cmp.Or(w.Retry, 2*time.Second)):
		}
	}
}

func (w *Watch) read(s *stream, r io.Reader, first func()) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		first()
		snapshot, err := parse(lines.Bytes())
		if err != nil {
			return err
		}
		w.set(s, snapshot, nil)
	}
	return lines.Err()
}

func (w *Watch) set(s *stream, snapshot *top.Snapshot, err error) {
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
func (w *Watch) Fetch(context.Context) (top.Snapshot, error) {
	fleet, err := w.Fleet()
	if err != nil {
		return top.Snapshot{}, err
	}
	return fleet.Merged(), nil
}

// errReadOnly: PIDs repeat among nodes, and a view of many nodes is no place to steer one program.
var errReadOnly = errors.New("this view only shows; use `kubectl exec` in the daemon's pod of the node")

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
