// SPDX-License-Identifier: Apache-2.0

// Package nri is the node's plugin in the container runtime (NRI). It injects the shim into containers
// of pods that ask for a class by a label or an annotation, and tells the daemon which container belongs
// to which pod. A container is never delayed beyond a bound and never fails because of the plugin:
// without an answer it starts natively.
package nri

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/kube/classes"
	"xsched/internal/kube/edits"
)

// Source is the name of the plugin's grants at the daemon.
const Source = "nri"

// editsTimeout bounds the question to the daemon while a container is created. With lookupTimeout it
// stays below the 2 s after which a runtime drops a plugin.
const editsTimeout = 500 * time.Millisecond

// Reasons of events on pods.
const (
	reasonApplied  = "PriorityClassApplied"
	reasonRefused  = "PriorityClassRefused"
	reasonPending  = "PriorityClassPending"
	reasonConflict = "ShimNotInjected"
	reasonPreload  = "PreloadReplaced"
)

// Events records an event on a pod, as record.EventRecorder does.
type Events interface {
	Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any)
}

// Config is what a plugin needs.
type Config struct {
	// Edits returns what a container needs to be scheduled. It asks the daemon.
	Edits   func(ctx context.Context) (edits.Edits, error)
	Classes func() *classes.File
	// Claims returns the grants of a claim by the name of its CDI device.
	Claims func(device string) []control.Grant
	// Variables returns the variables that list the GPUs of these CDI devices together, if their claims are in
	// the namespace.
	Variables func(namespace string, devices []string) map[string]string
	Cluster   *Cluster
	Events    Events
	// Send replaces the grants of Source at the daemon.
	Send func(ctx context.Context, grants []control.Grant) error
	Log  *slog.Logger
	// Health gets the plugin's part; may be nil.
	Health *health.Monitor
}

// Plugin handles the runtime's events.
type Plugin struct {
	Config
	dirty        chan struct{} // has an element if the grants may have changed
	startTimeout time.Duration // for registration and configuration
	retry        time.Duration // after grants could not be sent
	part         *health.Part  // the publisher of grants
	dial         func(ctx context.Context, network, address string) (net.Conn, error)

	mu         sync.Mutex
	containers map[string]*container // by id
	known      bool                  // containers has all of the runtime's
	edits      *edits.Edits          // last that were known
}

// New returns a plugin. Call Run.
func New(c Config) *Plugin {
	p := &Plugin{
		Config: c, dirty: make(chan struct{}, 1), containers: map[string]*container{},
		startTimeout: 15 * time.Second, retry: time.Second, dial: (&net.Dialer{Timeout: dialTimeout}).DialContext,
	}
	if c.Health != nil {
		p.part = c.Health.Add("grants of labels", publishLimit, true)
		p.part.End()
	}
	return p
}

// Changed makes the plugin compute its grants again: the classes, the claims or the pods changed.
func (p *Plugin) Changed() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// Synchronize implements the stub's interface: the runtime lists all its containers when the plugin
// connects.
func (p *Plugin) Synchronize(_ context.Context, sandboxes []*api.PodSandbox, list []*api.Container) (_ []*api.ContainerUpdate, _ error) {
	defer p.guard("Synchronize", nil)
	byID := make(map[string]*api.PodSandbox, len(sandboxes))
	for _, s := range sandboxes {
		byID[s.GetId()] = s
	}
	found := make(map[string]*container, len(list))
	for _, c := range list {
		s := byID[c.GetPodSandboxId()]
		if s == nil || c.GetState() == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		one := newContainer(s, c)
		one.listed = true
		found[one.id] = one
	}
	p.mu.Lock()
	p.containers, p.known = found, true
	p.mu.Unlock()
	p.Changed()
	p.Log.Info("connected with the container runtime", "containers", len(found))
	return nil, nil
}

// CreateContainer implements the stub's interface. An error would fail the container, so there is none.
func (p *Plugin) CreateContainer(ctx context.Context, s *api.PodSandbox, c *api.Container) (out *api.ContainerAdjustment, _ []*api.ContainerUpdate, _ error) {
	defer p.guard("CreateContainer", func() { out = nil })
	if s == nil || c == nil {
		return nil, nil, nil
	}
	one := newContainer(s, c)
	out = p.adjust(ctx, one, c)
	one.edited = one.edited || out != nil && len(out.Mounts) > 0
	p.mu.Lock()
	p.containers[one.id] = one
	p.mu.Unlock()
	p.Changed()
	return out, nil, nil
}

// adjust returns the edits for a new container; nil: none.
func (p *Plugin) adjust(ctx context.Context, one *container, c *api.Container) *api.ContainerAdjustment {
	log := p.Log.With("namespace", one.pod.Namespace, "pod", one.pod.Name, "container", one.name)
	pod := one.pod
	file := p.Classes()
	// Most pods ask for nothing. Only a default by PriorityClass needs more than the runtime knows.
	if asked := request(pod).Class; len(one.claims) == 0 && (asked == classes.None || asked == "" && len(file.PriorityClasses) == 0) {
		return nil
	}
	lookup, cancel := context.WithTimeout(ctx, lookupTimeout) // for all questions to the API server together
	defer cancel()
	if found, err := p.Cluster.Pod(lookup, pod); err == nil {
		pod = found
	} else {
		log.Warn("pod not found; only its labels count", "err", err)
	}
	if len(one.claims) > 0 { // the claim's CDI device made the other edits
		out := bindVariables(p.Variables(one.pod.Namespace, one.claims), c)
		e, err := p.lastEdits(ctx)
		if err != nil {
			return out
		}
		if getenv(c.Env, preloadVariable) == e.Preload && referenced(pod, one.name, preloadVariable) {
			p.Events.Eventf(pod, corev1.EventTypeWarning, reasonPreload,
				"container %s: the shim replaced LD_PRELOAD, whose value comes from another object; write the value into the pod", one.name)
		}
		return keepPreload(out, e, pod, c)
	}
	d := p.decide(lookup, file, pod)
	if d.Outcome == classes.Nothing || one.disabled || !selected(pod, one, d.Outcome) {
		return nil
	}
	if d.Outcome == classes.Refused {
		log.Info("class refused", "class", d.Name, "reason", d.Reason)
		p.tell(one, pod, d)
		return nil
	}
	e, err := p.lastEdits(ctx)
	var out *api.ContainerAdjustment
	if err == nil {
		out, err = adjustment(e, c)
	}
	if err != nil {
		log.Warn("shim not injected", "err", err)
		p.Events.Eventf(pod, corev1.EventTypeWarning, reasonConflict, "container %s: %v", one.name, err)
		return nil
	}
	log.Info("shim injected", "class", d.Name)
	p.tell(one, pod, d)
	return out
}

// lastEdits returns the edits for the present daemon, else the last known ones: a shim whose daemon is
// away lets its program run and connects later.
func (p *Plugin) lastEdits(ctx context.Context) (edits.Edits, error) {
	ctx, cancel := context.WithTimeout(ctx, editsTimeout)
	defer cancel()
	e, err := p.Edits(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.edits = &e
	case p.edits != nil:
		return *p.edits, nil
	}
	return e, err
}

func (p *Plugin) decide(ctx context.Context, file *classes.File, pod *corev1.Pod) classes.Decision {
	return file.Decide(request(pod), func(namespace string) (map[string]string, error) {
		return p.Cluster.NamespaceLabels(ctx, namespace)
	})
}

// tell records a decision as an event on the pod, unless it is the container's last one.
func (p *Plugin) tell(c *container, pod *corev1.Pod, d classes.Decision) {
	kind, reason, text := words(d)
	if c.told == text {
		return
	}
	if c.told = text; text != "" {
		p.Events.Eventf(pod, kind, reason, "container %s: %s", c.name, text)
	}
}

// words returns the event of a decision.
func words(d classes.Decision) (kind, reason, text string) {
	switch d.Outcome {
	case classes.Granted, classes.Default:
		return corev1.EventTypeNormal, reasonApplied, "GPU work has the class " + d.Name
	case classes.Refused:
		return corev1.EventTypeWarning, reasonRefused, "GPU work has no class: " + d.Reason
	case classes.Unknown:
		return corev1.EventTypeWarning, reasonPending, d.Reason
	case classes.Nothing:
	}
	return "", "", ""
}

// StopContainer implements the stub's interface.
func (p *Plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.remove(func(one *container) bool { return one.id == c.GetId() })
	return nil, nil
}

// RemoveContainer implements the stub's interface.
func (p *Plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.remove(func(one *container) bool { return one.id == c.GetId() })
	return nil
}

// StopPodSandbox implements the stub's interface. A container whose creation failed after the plugin
// saw it ends here.
func (p *Plugin) StopPodSandbox(_ context.Context, s *api.PodSandbox) error {
	p.remove(func(one *container) bool { return one.sandbox == s.GetId() })
	return nil
}

func (p *Plugin) remove(gone func(*container) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, one := range p.containers {
		if gone(one) {
			delete(p.containers, id)
			p.Changed()
		}
	}
}

// guard turns a panic into a container that starts natively.
func (p *Plugin) guard(where string, then func()) {
	if v := recover(); v != nil {
		p.Log.Error("internal error; please report it", "where", where, "err", fmt.Sprint(v), "stack", string(debug.Stack()))
		if then != nil {
			then()
		}
	}
}
