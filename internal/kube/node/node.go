// SPDX-License-Identifier: Apache-2.0

// Package node is the node's part of XSched in Kubernetes: a DRA kubelet plugin that publishes the
// daemon's GPUs and prepares claims of them. The daemon gets the hints of a claim's pods as grants,
// and finds the pod of a program by its cgroup: nothing that a tenant sends takes part.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/kube/cdi"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/edits"
)

// grantSource names this plugin's grants at the daemon.
const grantSource = "dra"

// DefaultTenants is the most claims of one GPU. More programs than that seldom fit into a GPU's memory.
const DefaultTenants = 16

// Daemon is the part of the daemon's control interface that the plugin uses.
type Daemon interface {
	Version(ctx context.Context) (control.Version, error)
	Devices(ctx context.Context) (control.Devices, error)
	Stats(ctx context.Context) (control.Stats, error)
	Journal(ctx context.Context, r control.JournalRequest) (control.Journal, error)
	SetGrants(ctx context.Context, r control.GrantsRequest) (control.GrantsReply, error)
}

// Options configure a Node. Paths must be the same inside and outside of the plugin's container.
type Options struct {
	Name     string // of the node in the cluster
	Data     string // the plugin's folder in the kubelet's folder plugins
	Registry string // the kubelet's folder plugins_registry
	CDI      string // the container runtime's folder of CDI specifications
	// StaticCDI is its other folder of such specifications, which is read only; empty: none.
	StaticCDI string
	// Memory of GPUs whose driver does not report it, which claims consume; zero: not published.
	Memory resource.Quantity
	// Tenants is the most claims of one GPU; 0: the default.
	Tenants int
	// LabelsOnly serves pods that ask by label only: neither the kubelet nor the API server needs to know
	// ResourceClaims.
	LabelsOnly bool
	// Every is the period at which the daemon's GPUs are read.
	Every time.Duration
	Log   *slog.Logger
	// Health gets the plugin's parts; nil: a monitor of its own.
	Health *health.Monitor
}

// Node publishes the GPUs of a node and prepares claims of them.
type Node struct {
	options Options
	daemon  Daemon
	client  kubernetes.Interface
	store   *store
	plugin  *plugin
	events  Events
	cancel  context.CancelCauseFunc
	looks   looks
	tending tending
	demand  demand
	libs    libraries
	parts   parts
	report  reporter
	// changed is called when the claims may have changed.
	changed func()
	wake    chan struct{} // has an element if the GPUs shall be published soon
	// tendSoon has an element if the API server shall be asked soon.
	tendSoon chan struct{}
}

// New reads the checkpoint of an earlier run. It waits until an earlier process has ended, because the
// state of the node has one owner.
func New(ctx context.Context, o Options, daemon Daemon, client kubernetes.Interface) (*Node, error) {
	if err := os.MkdirAll(o.Data, 0o750); err != nil {
		return nil, fmt.Errorf("create the plugin's folder: %w", err)
	}
	if err := lock(ctx, filepath.Join(o.Data, "lock")); err != nil {
		return nil, err
	}
	o.Tenants = cmp.Or(o.Tenants, DefaultTenants)
	if o.Health == nil {
		o.Health = &health.Monitor{}
	}
	n := &Node{
		options: o, daemon: daemon, client: client, changed: func() {}, wake: make(chan struct{}, 1), tendSoon: make(chan struct{}, 1), parts: newParts(o.Health, periodicLimit(o.Every), kubeletLimit, answerAge(o.Every)),
		looks: looks{places: places{}, limit: answerLimit, spread: spread{most: o.Tenants}},
	}
	n.report = reporter{node: o.Name, events: func() Events { return n.plugin.events }}
	n.store = &store{
		file: filepath.Join(o.Data, "checkpoint.json"), specs: cdi.Dir{Path: o.CDI, Prefix: cluster.Driver + "-"},
		surroundings: n.surroundings,
		send: func(ctx context.Context, grants []control.Grant) error {
			_, err := daemon.SetGrants(ctx, control.GrantsRequest{Source: grantSource, Grants: grants})
			return err
		},
	}
	n.plugin = &plugin{
		store: n.store, report: &n.report, log: o.Log, calls: n.parts.kubelet, told: map[types.UID]string{},
		changed: func() { n.changed(); n.lookSoon() }, stop: func(err error) { n.cancel(err) },
	}
	return n, n.store.open()
}

// lock takes a lock that the process holds until it ends.
func lock(ctx context.Context, file string) error {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	for {
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return nil
		} else if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = unix.Close(fd)
			return fmt.Errorf("lock %s: %w", file, err)
		}
		select {
		case <-ctx.Done():
			_ = unix.Close(fd)
			return fmt.Errorf("another xsched-kube node holds %s; end it first", file)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// OnChange sets what is called when the prepared claims may have changed. Call it before Run.
func (n *Node) OnChange(f func()) { n.changed = f }

// Edits returns what a container needs to be scheduled, for containers without a claim.
func (n *Node) Edits(ctx context.Context) (edits.Edits, error) { return n.edits(ctx) }

// ClaimGrants returns the grants of a prepared claim by the name of its CDI device, without a pod.
func (n *Node) ClaimGrants(device string) []control.Grant {
	if g, ok := n.store.grantOf(device); ok {
		return []control.Grant{g}
	}
	return nil
}

// Run serves the kubelet until the context ends.
func (n *Node) Run(ctx context.Context) error {
	ctx, n.cancel = context.WithCancelCause(ctx)
	defer n.cancel(nil)
	if n.options.LabelsOnly {
		n.runLabels(ctx)
		return nil
	}
	if n.plugin.events = n.events; n.plugin.events == nil {
		broadcaster := record.NewBroadcaster(record.WithContext(ctx))
		defer broadcaster.Shutdown()
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: n.client.CoreV1().Events("")})
		n.plugin.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "xsched-kube", Host: n.options.Name})
	}
	helper, err := kubeletplugin.Start(ctx, n.plugin,
		kubeletplugin.DriverName(cluster.Driver), kubeletplugin.NodeName(n.options.Name), kubeletplugin.KubeClient(n.client),
		kubeletplugin.PluginDataDirectoryPath(n.options.Data), kubeletplugin.RegistrarDirectoryPath(n.options.Registry),
		kubeletplugin.Serialize(false)) // the store does that
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w; check that %s and %s exist and are writable", err, n.options.Data, n.options.Registry)
	}
	defer helper.Stop()
	n.watchRegistration(func() bool { s := helper.RegistrationStatus(); return s != nil && s.PluginRegistered })
	n.watch(ctx, helper)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
