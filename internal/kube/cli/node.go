// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/health"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/gangs"
	"xsched/internal/kube/node"
	"xsched/internal/kube/nri"
	"xsched/internal/version"
)

// nodeFlags are the flags of `node`.
type nodeFlags struct {
	dir, kubeconfig, kubelet, memory string
	o                                node.Options
	nri                              nri.Options
	gangs                            gangs.Options
	viewPort                         int
}

func (a *app) nodeCommand() *cobra.Command {
	var f nodeFlags
	c := &cobra.Command{
		Use:   "node",
		Short: "Publish this node's GPUs and prepare claims of them",
		Long: `Serve the kubelet as the DRA driver gpu.xsched.dev: publish the GPUs of the
scheduling daemon on this node, and prepare the claims of pods. A prepared claim
gives its containers the shim and the daemon's socket, and gives the daemon the
priority of the claim's device class.

Pods without a claim ask for a class with the label xsched.dev/priority-class.
An NRI plugin of the container runtime prepares their containers. With
--labels-only there are no claims: the GPUs come from a device plugin, and the
cluster may be older than Kubernetes 1.34.

Without the daemon the plugin waits, and new pods avoid the GPUs.`,
		Example: `  xsched-kube node --node-name "$NODE_NAME"
  xsched-kube node --node-name worker-1 --kubeconfig admin.conf --memory 80Gi`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer cancel()
			return a.node(ctx, f)
		},
	}
	c.Flags().StringVar(&f.o.Name, "node-name", os.Getenv("NODE_NAME"), "name of this node in the cluster (default $NODE_NAME)")
	c.Flags().StringVar(&f.dir, "dir", "", "use the daemon's sockets in `DIR` (default $XSCHED_DIR, else /run/xsched)")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` with the address of the API server (default: as a pod)")
	kubeletFlag(c, &f.kubelet)
	c.Flags().StringVar(&f.o.CDI, "cdi-dir", "/var/run/cdi", "the container runtime's `DIR` of CDI specifications")
	c.Flags().StringVar(&f.o.StaticCDI, "static-cdi-dir", "/etc/cdi", "another `DIR` of CDI specifications, which the vendors' tools may write to")
	c.Flags().StringVar(&f.nri.Socket, "nri-socket", "/var/run/nri/nri.sock", "the container runtime's NRI `SOCKET`; empty: labels do not count")
	c.Flags().BoolVar(&f.o.LabelsOnly, "labels-only", false, "serve labels and no claims: do not register with the kubelet, publish no GPUs")
	c.Flags().StringVar(&f.nri.Classes, "classes", "", "`FILE` with the classes of labels (default: latency and batch)")
	c.Flags().StringVar(&f.memory, "memory", "", "memory of GPUs whose driver does not report it, such as 80Gi (default: not published)")
	c.Flags().IntVar(&f.o.Tenants, "tenants", node.DefaultTenants, "most claims of one GPU")
	c.Flags().DurationVar(&f.gangs.Threshold, "gang-after", 250*time.Millisecond, "hold a group on all nodes after one of its pods is kept from running for `T`; 0: never")
	c.Flags().IntVar(&f.viewPort, "view-port", 0, "show the tenants to viewers on this `PORT` of the loopback interface; 0: to nobody")
	c.Flags().DurationVar(&f.o.Every, "every", 5*time.Second, "period at which the daemon's GPUs are read")
	return c
}

func kubeletFlag(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's `DIR`, the same path as on the host")
}

// pluginFolder is the plugin's own folder.
func pluginFolder(kubelet string) string { return filepath.Join(kubelet, "plugins", cluster.Driver) }

// check reports flags that can't be used.
func (f *nodeFlags) check() error {
	if f.o.Name == "" {
		return errors.New("the name of this node is not known; give --node-name or set NODE_NAME")
	}
	if f.o.Every < 100*time.Millisecond {
		return fmt.Errorf("--every %s is too short; use 100ms or more", f.o.Every)
	}
	if f.o.Tenants < 1 {
		return fmt.Errorf("--tenants %d is not possible; use 1 or more", f.o.Tenants)
	}
	if f.o.LabelsOnly && f.nri.Socket == "" {
		return errors.New("--labels-only needs the container runtime's plugin interface; give --nri-socket")
	}
	if f.viewPort < 0 || f.viewPort > 65535 {
		return fmt.Errorf("--view-port %d is not possible; use %d", f.viewPort, cluster.ViewPort)
	}
	if f.memory != "" {
		var err error
		if f.o.Memory, err = resource.ParseQuantity(f.memory); err != nil || f.o.Memory.Sign() <= 0 {
			return fmt.Errorf("--memory %q is not a quantity; use for example 80Gi", f.memory)
		}
	}
	return nil
}

func (a *app) node(ctx context.Context, f nodeFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.dir == "" {
		f.dir = control.DefaultDir(os.Getuid(), os.Getenv)
	}
	f.o.Data, f.o.Registry = pluginFolder(f.kubelet), filepath.Join(f.kubelet, filepath.Base(kubeletplugin.KubeletRegistryDir))
	f.o.Health = &health.Monitor{}
	f.o.Log = slog.New(slog.NewTextHandler(a.stderr, nil))
	klog.SetSlogLogger(f.o.Log) // the libraries' own messages

	config, err := cluster.Config(f.kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = "xsched-kube/" + version.String()
	api, err := cluster.Connect(config)
	if err != nil {
		return err
	}
	daemon := client.New(filepath.Join(f.dir, control.ControlSocket))
	defer daemon.Close()
	stopGangs, err := startGangs(ctx, f, config, daemon)
	if err != nil {
		return err
	}
	defer stopGangs()
	stopView, err := startView(ctx, f, config, daemon)
	if err != nil {
		return err
	}
	defer stopView()
	n, err := node.New(ctx, f.o, daemon, api)
	if err != nil {
		return err
	}
	labels := func(ctx context.Context) {
		nri.Clear(ctx, daemon, f.o.Log)
		n.WatchPods(ctx)
	}
	if f.nri.Socket != "" {
		f.nri.Node, f.nri.Log, f.nri.Health = f.o.Name, f.o.Log, f.o.Health
		s, err := nri.Open(f.nri, api, n, daemon)
		if err != nil {
			return err
		}
		n.OnChange(s.Changed)
		labels = s.Run
	}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { labels(ctx) })
	err = n.Run(ctx)
	cancel()
	wait.Wait()
	return err
}
