// SPDX-License-Identifier: Apache-2.0

package gangs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"xsched/internal/control"
	"xsched/internal/kube/gang"
)

var leaseKind = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// store is the API server's leases, with conditional writes and watches.
type store struct {
	coordinationclient.LeaseInterface // other methods are not called

	mu      sync.Mutex
	version int
	leases  map[string]*coordinationv1.Lease
	watches map[string][]*watch.RaceFreeFakeWatcher // by the name of the lease
	broken  error                                   // of writes
	writes  int
}

func newStore() *store {
	return &store{leases: map[string]*coordinationv1.Lease{}, watches: map[string][]*watch.RaceFreeFakeWatcher{}}
}

// selected returns the name of the only lease that a request is about; empty: all of them.
func selected(o metav1.ListOptions) string {
	return strings.TrimPrefix(o.FieldSelector, "metadata.name=")
}

func (s *store) put(l *coordinationv1.Lease, event watch.EventType) *coordinationv1.Lease {
	s.version++
	l = l.DeepCopy()
	l.ResourceVersion = strconv.Itoa(s.version)
	s.leases[l.Name] = l
	for _, w := range s.watches[l.Name] {
		w.Action(event, l.DeepCopy())
	}
	return l.DeepCopy()
}

func (s *store) Create(_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writes++; s.broken != nil {
		return nil, s.broken
	}
	if s.leases[l.Name] != nil {
		return nil, apierrors.NewAlreadyExists(leaseKind, l.Name)
	}
	return s.put(l, watch.Added), nil
}

func (s *store) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writes++; s.broken != nil {
		return nil, s.broken
	}
	if old := s.leases[l.Name]; old == nil || old.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(leaseKind, l.Name, errors.New("another version"))
	}
	return s.put(l, watch.Modified), nil
}

func (s *store) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, name)
	return nil
}

func (s *store) List(_ context.Context, o metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, name := range slices.Sorted(maps.Keys(s.leases)) {
		if one := selected(o); one == "" || one == name {
			out.Items = append(out.Items, *s.leases[name].DeepCopy())
		}
	}
	return out, nil
}

func (s *store) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil { // as of a server without them: the library lists
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := watch.NewRaceFreeFake()
	context.AfterFunc(ctx, w.Stop)
	s.watches[selected(o)] = append(s.watches[selected(o)], w)
	return w, nil
}

// record returns what the lease of a group says.
func (s *store) record(t *testing.T, k gang.Key) gang.Record {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[Name(k)]
	if l == nil {
		return gang.Record{}
	}
	r, err := read(k, l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// node is a daemon with ranks of groups and a program of higher priority, which uses the GPU alone.
type node struct {
	mu      sync.Mutex
	silent  bool  // it sends nothing, as a process that is stopped
	refuses error // of holds
	groups  []string
	holds   []control.Hold // as sent last
	sent    int
	ran     time.Duration
}

// sample returns the programs of a node that keeps its ranks from running.
func (n *node) sample(period time.Duration) control.List {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ran += period
	queue := func(state string, ran time.Duration) []control.Queue {
		return []control.Queue{{Device: "gpu", Busy: true, State: state, RanNS: int64(ran)}}
	}
	list := control.List{Processes: []control.Process{{Session: 1, Priority: 10, Queues: queue("running", n.ran)}}}
	for i, group := range n.groups {
		list.Processes = append(list.Processes, control.Process{Session: uint64(i + 2), Namespace: "ml", Group: group, Priority: -10, GroupPriority: -10, Queues: queue("suspended", 0)})
	}
	return list
}

func (n *node) Events(ctx context.Context, r control.EventsRequest, f func(name string, data []byte) error) error {
	period := time.Duration(r.EveryMS) * time.Millisecond
	for {
		n.mu.Lock()
		silent := n.silent
		n.mu.Unlock()
		if silent {
			<-ctx.Done()
			return ctx.Err()
		}
		data, err := json.Marshal(n.sample(period))
		if err == nil {
			err = f(control.PartSnapshot, data)
		}
		if err != nil {
			return err
		}
		if pause(ctx, period); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (n *node) SetHolds(_ context.Context, r control.HoldsRequest) (control.HoldsReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent++
	if n.refuses != nil {
		return control.HoldsReply{}, n.refuses
	}
	n.holds = r.Holds
	return control.HoldsReply{}, nil
}

// set changes the node.
func (n *node) set(f func(n *node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

// lines counts log messages by their text.
type lines struct {
	slog.Handler
	mu    sync.Mutex
	count map[string]int
}

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[r.Message]++
	return nil
}

func (l *lines) of(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[message]
}

// virtual runs a service in virtual time.
func virtual(t *testing.T, groups []string, f func(t *testing.T, s *store, n *node, log *lines)) {
	synctest.Test(t, func(t *testing.T) {
		began = time.Now() // as of a process that starts now
		s, n := newStore(), &node{groups: groups}
		log := &lines{Handler: slog.Default().Handler(), count: map[string]int{}}
		service := New(Options{Node: "a", Config: gang.Default(), Threshold: 250 * time.Millisecond, Log: slog.New(log)}, s, n)
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() { service.Run(ctx) })
		f(t, s, n, log)
		cancel()
		wait.Wait()
	})
}

// until waits for a condition in virtual time.
func until(t *testing.T, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !f(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
