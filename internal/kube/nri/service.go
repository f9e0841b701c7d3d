// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/kube/classes"
	"xsched/internal/kube/edits"
)

// Node is the part of the node's DRA plugin that this one needs.
type Node interface {
	Edits(ctx context.Context) (edits.Edits, error)
	ClaimGrants(device string) []control.Grant
	ClaimVariables(namespace string, devices []string) map[string]string
}

// Daemon is the part of the daemon's control interface that the plugin uses.
type Daemon interface {
	SetGrants(ctx context.Context, r control.GrantsRequest) (control.GrantsReply, error)
}

// Options configure a Service.
type Options struct {
	Node    string // name in the cluster
	Socket  string // of the container runtime
	Classes string // the administrator's file; empty: the built-in classes
	Log     *slog.Logger
	Health  *health.Monitor
}

// Service is the plugin with its connections to the cluster.
type Service struct {
	*Plugin
	options Options
	client  kubernetes.Interface
	watcher *classes.Watcher
}

// Open reads the classes. Call Run.
func Open(o Options, client kubernetes.Interface, n Node, d Daemon) (*Service, error) {
	w, err := classes.Open(o.Classes)
	if err != nil {
		return nil, err
	}
	p := New(Config{
		Edits: n.Edits, Classes: w.File, Claims: n.ClaimGrants, Variables: n.ClaimVariables, Cluster: NewCluster(client, o.Node), Log: o.Log, Health: o.Health,
		Send: func(ctx context.Context, grants []control.Grant) error {
			_, err := d.SetGrants(ctx, control.GrantsRequest{Source: Source, Grants: grants})
			return err
		},
	})
	return &Service{Plugin: p, options: o, client: client, watcher: w}, nil
}

// Run serves the container runtime until the context ends.
func (s *Service) Run(ctx context.Context) {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: s.client.CoreV1().Events("")})
	s.Events = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "xsched-kube", Host: s.options.Node})
	var wait sync.WaitGroup
	wait.Go(func() { s.watcher.Run(ctx, s.options.Log, s.Changed) })
	s.Plugin.Run(ctx, s.options.Socket)
	wait.Wait()
}
