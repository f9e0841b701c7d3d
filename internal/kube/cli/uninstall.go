// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/uninstall"
)

// uninstallCommand runs as a job before the chart is uninstalled.
func (a *app) uninstallCommand() *cobra.Command {
	var kubeconfig, cleanup, owner string
	var force, labels bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove files on nodes, slices and leases before the chart goes (for its hook)",
		Long: `End the DaemonSet, run the cleanup on each node, and delete the driver's
ResourceSlices and leases. The chart runs it as a hook of ` + "`helm uninstall`" + `. It refuses while
pods use claims of the driver: without the plugin the kubelet can't end such pods.`,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := os.ReadFile(cleanup)
			if err != nil {
				return fmt.Errorf("read the cleanup's manifest: %w", err)
			}
			var set appsv1.DaemonSet
			if err := yaml.UnmarshalStrict(text, &set); err != nil {
				return fmt.Errorf("read the cleanup's manifest: %w", err)
			}
			config, err := cluster.Config(kubeconfig)
			if err != nil {
				return err
			}
			client, err := cluster.Connect(config)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return (&uninstall.Cluster{
				Client: client, Namespace: cluster.Namespace(""), Cleanup: &set, Owner: owner, Force: force, LabelsOnly: labels, Log: slog.New(slog.NewTextHandler(a.stderr, nil)),
			}).Run(ctx)
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`FILE` with the API server's address (default in a pod: its service account)")
	c.Flags().StringVar(&cleanup, "cleanup", "", "`FILE` with the DaemonSet that cleans the nodes")
	c.Flags().StringVar(&owner, "owner", "", "`NAME` of the ConfigMap that owns this DaemonSet")
	c.Flags().BoolVar(&force, "force", false, "continue although pods use claims")
	c.Flags().BoolVar(&labels, "labels-only", false, "the release has no claims and no slices")
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "give up after `T`")
	return c
}

// cleanupCommand runs on each node.
func (a *app) cleanupCommand() *cobra.Command {
	var files uninstall.Files
	var hold bool
	c := &cobra.Command{
		Use:    "cleanup",
		Short:  "Remove XSched's files from a node (for the chart's hook)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hold {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
				defer stop()
				<-ctx.Done()
				return nil
			}
			if files.CDI == "" && files.Kubelet == "" && len(files.Whole) == 0 {
				return errors.New("nothing to remove; give --cdi-dir, --kubelet-dir or --remove")
			}
			n, err := files.Remove()
			fmt.Fprintf(a.stdout, "removed %d files and folders\n", n)
			return err
		},
	}
	c.Flags().StringVar(&files.CDI, "cdi-dir", "", "remove the driver's specifications in `FOLDER`")
	c.Flags().StringVar(&files.Kubelet, "kubelet-dir", "", "remove the driver's sockets in plugins and plugins_registry of `FOLDER`")
	c.Flags().StringArrayVar(&files.Whole, "remove", nil, "remove `FOLDER`")
	c.Flags().BoolVar(&hold, "hold", false, "do nothing until a signal, to show that the cleanup is done")
	return c
}
