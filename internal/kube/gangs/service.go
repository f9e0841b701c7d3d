// SPDX-License-Identifier: Apache-2.0

package gangs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/kube/gang"
)

// Source names the holds of this service at the daemon.
const Source = "gang"

// Daemon is the part of the daemon's control interface that the service uses.
type Daemon interface {
	Events(ctx context.Context, r control.EventsRequest, f func(name string, data []byte) error) error
	SetHolds(ctx context.Context, r control.HoldsRequest) (control.HoldsReply, error)
}

// Options configure a Service.
type Options struct {
	Node string // name in the cluster
	gang.Config
	// Threshold is how long a rank must be kept from running until its group is held.
	Threshold time.Duration
	Log       *slog.Logger
	// Health gets the service's part; may be nil.
	Health *health.Monitor
}

// Periods of the service.
const (
	// samplePeriod is that of the daemon's programs on a node with ranks of a group; idlePeriod is how long a
	// node may take to find its first one.
	samplePeriod = 250 * time.Millisecond
	idlePeriod   = 2 * time.Second
	retryPeriod  = time.Second
	// ahead is how far holds at the daemon reach at most, and renewPeriod how often they are sent again. A
	// service that has died leaves nobody held for longer.
	ahead       = 6 * time.Second
	renewPeriod = 2 * time.Second

	sendTimeout  = 2 * time.Second
	writeTimeout = 5 * time.Second
	// stepLimit without a step: the service counts as dead. Its longest pause is renewPeriod.
	stepLimit = 15 * renewPeriod
	// leaveAfter is how long a group without ranks is remembered: a rank may be starting again.
	leaveAfter = 10 * time.Second
	// unused is the age after which a lease of nobody is deleted.
	unused = 10 * time.Minute
	// unusedPeriod is that of looking for such leases; each node adds as much at random.
	unusedPeriod = time.Hour

	// maxGroups bounds the groups of a node, each of which costs the API server a watch and writes.
	maxGroups = 32
)

// began makes monotonic times.
var began = time.Now()

func now() gang.Moment {
	t := time.Now()
	return gang.Moment{Wall: t.UnixNano(), Mono: int64(t.Sub(began))}
}

// Service coordinates the groups of a node. One goroutine owns its state; others post functions to it.
type Service struct {
	options Options
	leases  coordinationclient.LeaseInterface
	daemon  Daemon

	inbox  chan func()
	ranks  gang.Ranks
	groups map[gang.Key]*group

	sent    []control.Hold // without the bound of their ends
	sentAt  int64
	unsent  bool  // the daemon may not have them
	reach   int64 // monotonic; the daemon has no hold that ends later
	sending bool

	quietHolds, quietGroups quiet
}

// quiet bounds the messages about one problem to one a minute. A failure may last for hours, and is tried
// again several times a second.
type quiet struct{ next int64 }

const quietPeriod = int64(time.Minute)

func (q *quiet) due(at gang.Moment) bool {
	if at.Mono < q.next {
		return false
	}
	q.next = at.Mono + quietPeriod
	return true
}

// group is a group with ranks on this node.
type group struct {
	*gang.Machine
	end     context.CancelFunc // of its watch
	present int64              // when ranks were seen last
	asks    bool               // as logged
	told    gang.Stats         // as logged

	quietStep, quietWrite, quietRead quiet
}

// New returns a service. The leases are those of XSched's own namespace, which no tenant can write.
func New(o Options, leases coordinationclient.LeaseInterface, d Daemon) *Service {
	return &Service{
		options: o, leases: leases, daemon: d, inbox: make(chan func(), 64),
		ranks: gang.Ranks{Threshold: o.Threshold}, groups: map[gang.Key]*group{},
	}
}

// Run works until the context ends.
func (s *Service) Run(ctx context.Context) {
	go s.sample(ctx)
	go s.tidy(ctx)
	var part *health.Part
	if s.options.Health != nil {
		part = s.options.Health.Add("groups of pods", stepLimit, true)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-s.inbox:
			f()
		case <-timer.C:
		}
		part.Beat()
		timer.Reset(s.step(ctx))
	}
}

// post runs f on the service's goroutine.
func (s *Service) post(ctx context.Context, f func()) {
	select {
	case s.inbox <- f:
	case <-ctx.Done():
	}
}

// Reasons that end a stream of samples.
var (
	errPeriod = errors.New("another period")
	errSilent = errors.New("the daemon sends no samples; see `xsched doctor`")
)

// patience is how long a stream may send nothing. A daemon that is stuck says nothing about its ranks any
// more, so nobody may be held for them.
func patience(period time.Duration) time.Duration { return max(4*period, 2*time.Second) }

// sample follows the daemon's programs.
func (s *Service) sample(ctx context.Context) {
	fast, failed := false, ""
	for ctx.Err() == nil {
		period := idlePeriod
		if fast {
			period = samplePeriod
		}
		err := s.follow(ctx, period, func(list control.List) error {
			failed = ""
			done := make(chan bool, 1)
			s.post(ctx, func() { done <- s.see(ctx, list.Processes) })
			select {
			case groups := <-done:
				if groups != fast {
					fast = groups
					return errPeriod
				}
			case <-ctx.Done():
			}
			return nil
		})
		if errors.Is(err, errPeriod) || ctx.Err() != nil {
			continue
		}
		// Without a daemon programs run natively, so there is no reason to hold others.
		s.post(ctx, s.blind)
		if err != nil && err.Error() != failed {
			failed = err.Error()
			s.options.Log.Info("gangs wait for the daemon", "err", err)
		}
		pause(ctx, retryPeriod)
	}
}

// follow passes samples on until the stream ends, is silent, or f returns an error.
func (s *Service) follow(ctx context.Context, period time.Duration, f func(list control.List) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience(period), func() { cancel(errSilent) })
	defer silent.Stop()
	err := s.daemon.Events(ctx, control.EventsRequest{EveryMS: int(period.Milliseconds()), With: control.PartSnapshot}, func(name string, data []byte) error {
		if name != control.PartSnapshot {
			return nil
		}
		var list control.List
		if err := json.Unmarshal(data, &list); err != nil {
			return err
		}
		silent.Reset(patience(period))
		return f(list)
	})
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// see takes a sample, and reports whether there are groups.
func (s *Service) see(ctx context.Context, all []control.Process) bool {
	at := now()
	found := s.ranks.See(at.Mono, all)
	for k, rank := range found {
		g := s.groups[k]
		if g == nil && len(s.groups) >= maxGroups {
			if s.quietGroups.due(at) {
				s.options.Log.Warn("gang not coordinated: the node has too many groups", "group", k.String(), "groups", len(found), "at_most", maxGroups)
			}
			continue
		}
		if g == nil {
			g = &group{Machine: gang.New(s.options.Config, s.options.Node)}
			watching, end := context.WithCancel(ctx)
			g.end = end
			s.groups[k] = g
			go s.watch(watching, k, g)
		}
		g.present = at.Mono
		g.Need(rank.Need, rank.Priority)
		if g.asks != rank.Need {
			g.asks = rank.Need
			s.options.Log.Info("gang", "group", k.String(), "kept_from_running", rank.Need)
		}
	}
	for k, g := range s.groups {
		if _, ok := found[k]; ok {
			continue
		}
		g.Need(false, 0)
		if at.Mono-g.present > int64(leaveAfter) {
			g.end()
			delete(s.groups, k)
		}
	}
	return len(s.groups) > 0
}

// blind forgets the daemon's programs, and what the daemon was told.
func (s *Service) blind() {
	s.ranks = gang.Ranks{Threshold: s.options.Threshold}
	for _, g := range s.groups {
		g.Need(false, 0)
	}
	s.unsent = true
}

// step writes what is due, and returns the time until the next step.
func (s *Service) step(ctx context.Context) time.Duration {
	at, next := now(), renewPeriod
	for k, g := range s.groups {
		r, ok, wait := g.Write(at)
		if wait > 0 {
			next = min(next, wait)
		}
		if ok {
			go s.write(ctx, k, g, r)
		}
		s.tell(at, k, g)
	}
	s.hold(ctx, at)
	return max(next, time.Millisecond)
}

func (s *Service) write(ctx context.Context, k gang.Key, g *group, r gang.Record) {
	once, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	r, err := Put(once, s.leases, k, s.options.Node, r)
	s.post(ctx, func() {
		at := now()
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && g.quietWrite.due(at) {
			s.options.Log.Warn("gang not written; trying again", "group", k.String(), "err", err)
		}
		g.Wrote(at, r, err)
	})
}

// tell logs leases that came too late to act together, and clocks that differ.
func (s *Service) tell(at gang.Moment, k gang.Key, g *group) {
	stats := g.Stats()
	if stats.Late == g.told.Late && stats.Ahead == g.told.Ahead || !g.quietStep.due(at) {
		return
	}
	s.options.Log.Info("gang out of step", "group", k.String(), "late", stats.Late, "worst_late", time.Duration(stats.LateNS),
		"ahead", stats.Ahead, "worst_ahead", time.Duration(stats.AheadNS))
	g.told = stats
}

// hold sends the holds to the daemon if they have changed, were lost or must be renewed. The latest ones are
// sent when the request under way has ended. Without holds nothing is sent once the daemon has ended all.
func (s *Service) hold(ctx context.Context, at gang.Moment) {
	var holds []control.Hold
	for k, g := range s.groups {
		for _, h := range g.Holds(at) {
			one := control.Hold{Namespace: k.Namespace, Group: k.Group, FromNS: h.From, UntilNS: h.Until}
			if h.Priority != gang.AllPriorities {
				one.Priority = &h.Priority
			}
			holds = append(holds, one)
		}
	}
	sortHolds(holds)
	same := !s.unsent && slices.EqualFunc(holds, s.sent, sameHold)
	if s.sending || same && at.Mono-s.sentAt < int64(renewPeriod) || len(holds) == 0 && at.Mono >= s.reach {
		return
	}
	r := control.HoldsRequest{Source: Source, Holds: make([]control.Hold, 0, len(holds))}
	for _, h := range holds {
		h.FromNS += at.Wall - at.Mono
		h.UntilNS = min(h.UntilNS, at.Mono+int64(ahead)) + at.Wall - at.Mono
		if h.FromNS < h.UntilNS && len(r.Holds) < control.MaxHolds {
			r.Holds = append(r.Holds, h)
			s.reach = at.Mono + int64(ahead)
		}
	}
	s.sending = true
	go func() {
		once, cancel := context.WithTimeout(ctx, sendTimeout)
		defer cancel()
		_, err := s.daemon.SetHolds(once, r)
		if err != nil {
			pause(ctx, samplePeriod)
		}
		s.post(ctx, func() {
			s.sending, s.sent, s.sentAt, s.unsent = false, holds, at.Mono, err != nil
			switch {
			case err == nil && len(holds) == 0:
				s.reach = 0
			case err != nil && s.quietHolds.due(at):
				s.options.Log.Warn("holds not sent to the daemon; trying again", "err", err)
			}
		})
	}()
}

// tidy deletes leases of groups that nobody holds from time to time: jobs end on nodes that are gone.
func (s *Service) tidy(ctx context.Context) {
	for ctx.Err() == nil {
		s.removeUnused(ctx)
		pause(ctx, unusedPeriod+rand.N(unusedPeriod))
	}
}

func (s *Service) removeUnused(ctx context.Context) {
	list, err := s.leases.List(ctx, metav1.ListOptions{LabelSelector: Label})
	if err != nil {
		return // the next time
	}
	for i := range list.Items {
		l := &list.Items[i]
		if l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil ||
			time.Since(l.Spec.RenewTime.Time) < unused+time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second {
			continue
		}
		err := s.leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
		if err == nil {
			s.options.Log.Info("unused lease deleted", "lease", l.Name)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
