// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"xsched/internal/control"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/gang"
	"xsched/internal/kube/gangs"
)

// groupFlags name a group.
type groupFlags struct {
	fleetFlags
	duration time.Duration
}

func (f *groupFlags) register(c *cobra.Command) {
	f.connection(c)
	c.Flags().StringVarP(&f.namespace, "namespace", "n", "default", "`NAMESPACE` of the group's pods")
}

// ownAPI returns a client with a limit of its own: neither do many groups or viewers delay claims, nor claims a hold.
func ownAPI(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS, config.Burst = nil, 20, 40
	return cluster.Connect(config)
}

// startGangs coordinates the groups of the node until the returned function is called.
func startGangs(ctx context.Context, f nodeFlags, config *rest.Config, daemon gangs.Daemon) (stop func(), err error) {
	if f.gangs.Threshold <= 0 {
		return func() {}, nil
	}
	api, err := ownAPI(config)
	if err != nil {
		return nil, err
	}
	f.gangs.Node, f.gangs.Log, f.gangs.Config = f.o.Name, f.o.Log, gang.Default()
	f.gangs.Health = f.o.Health
	service := gangs.New(f.gangs, api.CoordinationV1().Leases(cluster.Namespace("")), daemon)
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { service.Run(ctx) })
	return func() {
		cancel()
		wait.Wait()
	}, nil
}

// serverClock compares this machine's clock with that of the API server, which has seconds in its answers.
// Nodes act by their clocks, so a group would be suspended early, late or not at all.
type serverClock struct {
	http.RoundTripper
	offset atomic.Int64 // of this machine at least, in nanoseconds
}

func (c *serverClock) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := time.Now()
	answer, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		ahead, behind := sent.Sub(date.Add(time.Second)), time.Until(date)
		c.offset.Store(int64(max(ahead, 0) - max(behind, 0)))
	}
	return answer, nil
}

// maxOffset is the largest offset between this machine's clock and that of the API server.
const maxOffset = time.Second

func (c *serverClock) check() error {
	if offset := time.Duration(c.offset.Load()); offset.Abs() > maxOffset {
		return fmt.Errorf("the clock of this machine differs by %s or more from that of the API server; set it, for example with NTP", offset.Abs().Truncate(100*time.Millisecond))
	}
	return nil
}

func (a *app) suspendCommand() *cobra.Command {
	var f groupFlags
	c := &cobra.Command{
		Use:   "suspend GROUP",
		Short: "Suspend a group of pods on all nodes together",
		Long: `Suspend the GPU work of all pods of a namespace with the same label
xsched.dev/group, or group of their claims, on all nodes at the same moment. The
suspension ends by itself after --for. It needs the right to write leases in
the namespace of XSched.`,
		Example: `  kubectl xsched suspend training -n research --for 10m`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.duration < time.Second || f.duration > gang.MaxSuspension {
				return fmt.Errorf("--for %s is out of range; use 1s to %s", f.duration, gang.MaxSuspension)
			}
			return a.group(cmd.Context(), &f, args[0], func(r gang.Record, now int64) gang.Record {
				return gang.Default().Suspend(r, now, f.duration)
			}, fmt.Sprintf("suspended for %s", f.duration))
		},
	}
	f.register(c)
	c.Flags().DurationVar(&f.duration, "for", 10*time.Minute, "end the suspension after `T`")
	return c
}

func (a *app) resumeCommand() *cobra.Command {
	var f groupFlags
	c := &cobra.Command{
		Use:   "resume GROUP",
		Short: "Resume a group of pods on all nodes together",
		Long: `Resume a group that is suspended on all nodes, by hand or because one of its
pods is kept from running. In the latter case it may be suspended again a second
later.`,
		Example: `  kubectl xsched resume training -n research`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.group(cmd.Context(), &f, args[0], gang.Default().Resume, "")
		},
	}
	f.register(c)
	return c
}

// group changes the record of a group. Nodes may write at the same time.
func (a *app) group(ctx context.Context, f *groupFlags, name string, change func(r gang.Record, now int64) gang.Record, suspended string) error {
	named := control.HoldsRequest{Source: gangs.Source, Holds: []control.Hold{{Namespace: f.namespace, Group: name}}}
	if err := named.Check(time.Now()); err != nil {
		return err
	}
	config, err := cluster.ConfigOf(f.kubeconfig, f.context)
	if err != nil {
		return err
	}
	clock := &serverClock{}
	config.Wrap(func(t http.RoundTripper) http.RoundTripper {
		clock.RoundTripper = t
		return clock
	})
	api, err := cluster.Connect(config)
	if err != nil {
		return err
	}
	leases, k := api.CoordinationV1().Leases(cluster.Namespace(f.release)), gang.Key{Namespace: f.namespace, Group: name}
	for range 10 {
		r, err := gangs.Get(ctx, leases, k)
		switch {
		case apierrors.IsNotFound(err) && suspended == "":
			return fmt.Errorf("group %s is not suspended; check its name and namespace", k)
		case err != nil && !apierrors.IsNotFound(err):
			return fmt.Errorf("read the state of group %s: %w", k, err)
		}
		if err := clock.check(); err != nil && suspended != "" { // a resume has its effect with any clock
			return err
		}
		_, err = gangs.Put(ctx, leases, k, gang.Operator, change(r, time.Now().UnixNano()))
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write the state of group %s: %w", k, err)
		}
		fmt.Fprintf(a.stdout, "group %s %s\n", k, cmp.Or(suspended, "resumed"))
		return nil
	}
	return fmt.Errorf("nodes change the state of group %s all the time; try again", k)
}
