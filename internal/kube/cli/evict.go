// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/evict"
	"xsched/internal/version"
)

func (a *app) evictCommand() *cobra.Command {
	var kubeconfig string
	o := evict.Options{}
	c := &cobra.Command{
		Use:   "evict",
		Short: "Evict best-effort pods for pods that wait for a GPU",
		Long: `Look for pods that no node takes because no GPU has room for their claim, and
evict pods whose claims have a priority below 0 and below that of the waiting pod,
if their share or memory suffices. Kubernetes' scheduler evicts none for claims.

Evicted pods have a lower PriorityClass than the waiting pod and a controller that
makes them again. PodDisruptionBudgets count. One waiting pod is served at a time,
three times at most. Pods that ask for several GPUs, with selectors, or with
affinities are not served.

Run one process per cluster.`,
		Example: `  xsched-kube evict
  xsched-kube evict --kubeconfig admin.conf --after 1m --most 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Every < time.Second || o.Most < 1 {
				return errors.New("--every must be 1s or more, and --most 1 or more")
			}
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer cancel()
			return a.evict(ctx, kubeconfig, o)
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`FILE` with the address of the API server (default: as a pod)")
	c.Flags().DurationVar(&o.Every, "every", 10*time.Second, "period at which waiting pods are looked for")
	c.Flags().DurationVar(&o.After, "after", 30*time.Second, "evict for pods that have waited for `T`")
	c.Flags().DurationVar(&o.Wait, "wait", 2*time.Minute, "time for a pod to start before the next one is served")
	c.Flags().IntVar(&o.Most, "most", 4, "most `PODS` that are evicted for one pod at once")
	return c
}

func (a *app) evict(ctx context.Context, kubeconfig string, o evict.Options) error {
	o.Log = slog.New(slog.NewTextHandler(a.stderr, nil))
	klog.SetSlogLogger(o.Log)
	config, err := cluster.Config(kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = "xsched-kube/" + version.String()
	api, err := cluster.Connect(config)
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: api.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "xsched-evict"})
	evict.New(o, api, events).Run(ctx)
	return nil
}
