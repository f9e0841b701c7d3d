// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

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

// startGangs coordinates the groups of the node until the returned function is called.
func startGangs(ctx context.Context, f nodeFlags, api kubernetes.Interface, daemon gangs.Daemon) (stop func()) {
	if f.gangs.Threshold <= 0 {
		return func() {}
	}
	f.gangs.Node, f.gangs.Log, f.gangs.Config = f.o.Name, f.o.Log, gang.Default()
	service := gangs.New(f.gangs, api.CoordinationV1().Leases(cluster.Namespace), daemon)
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { service.Run(ctx) })
	return func() {
		cancel()
		wait.Wait()
	}
}

func (a *app) suspendCommand() *cobra.Command {
	var f groupFlags
	c := &cobra.Command{
		Use:   "suspend GROUP",
		Short: "Suspend a group of pods on all nodes together",
		Long: `Suspend the GPU work of all pods of a namespace with the same label
xsched.dev/group, or group of their claims, on all nodes at the same moment. The
suspension ends by itself after --for. It needs the right to write leases in
the namespace xsched-system.`,
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
			return a.group(cmd.Context(), &f, args[0], gang.Default().Resume, "resumed")
		},
	}
	f.register(c)
	return c
}

// group changes the record of a group. Nodes may write at the same time.
func (a *app) group(ctx context.Context, f *groupFlags, name string, change func(r gang.Record, now int64) gang.Record, done string) error {
	config, err := cluster.ConfigOf(f.kubeconfig, f.context)
	if err != nil {
		return err
	}
	api, err := cluster.Connect(config)
	if err != nil {
		return err
	}
	leases, k := api.CoordinationV1().Leases(cluster.Namespace), gang.Key{Namespace: f.namespace, Group: name}
	for range 10 {
		r, err := gangs.Get(ctx, leases, k)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read the state of group %s: %w", k, err)
		}
		_, err = gangs.Put(ctx, leases, k, gang.Operator, change(r, time.Now().UnixNano()))
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write the state of group %s: %w", k, err)
		}
		fmt.Fprintf(a.stdout, "group %s %s\n", k, done)
		return nil
	}
	return fmt.Errorf("nodes change the state of group %s all the time; try again", k)
}
