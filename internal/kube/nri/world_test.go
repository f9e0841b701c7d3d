// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cachetesting "k8s.io/client-go/tools/cache/testing"

	"xsched/internal/control"
	"xsched/internal/kube/classes"
	"xsched/internal/kube/edits"
)

// world has what surrounds a plugin: API server, daemon and the administrator's file.
type world struct {
	pods    *cachetesting.FakeControllerSource
	cluster *Cluster
	plugin  *Plugin
	file    *classes.File

	mu         sync.Mutex
	namespaces map[string]map[string]string
	down       bool // the API server does not answer requests
	asked      int  // requests about pods and namespaces
	daemon     []control.Grant
	sends      int
	refuse     error             // of the daemon
	noEdits    error             // of the daemon
	variables  map[string]string // of claims
	events     []string
	conn       net.Conn // with the runtime
}

func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func newWorld(t *testing.T, file string) *world {
	t.Helper()
	f, err := classes.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{pods: cachetesting.NewFakeControllerSource(), file: f, namespaces: map[string]map[string]string{}}
	answer := func(ctx context.Context, kind, name string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asked++
		if _, limited := ctx.Deadline(); !limited {
			t.Error("a request without a time limit")
		}
		if w.down {
			return errors.New("connection refused")
		}
		return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
	}
	w.cluster = newCluster(w.pods,
		func(ctx context.Context, _, name string) (*corev1.Pod, error) { return nil, answer(ctx, "pods", name) },
		func(ctx context.Context, name string) (*corev1.Namespace, error) {
			err := answer(ctx, "namespaces", name)
			w.mu.Lock()
			defer w.mu.Unlock()
			if labels, ok := w.namespaces[name]; ok && !w.down {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, nil
			}
			return nil, err
		})
	w.plugin = New(Config{
		Cluster: w.cluster, Events: w, Log: slog.New(slog.DiscardHandler),
		Edits: func(ctx context.Context) (edits.Edits, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if _, limited := ctx.Deadline(); !limited {
				t.Error("a question to the daemon without a time limit")
			}
			return testEdits(), w.noEdits
		},
		Classes: func() *classes.File { w.mu.Lock(); defer w.mu.Unlock(); return w.file },
		Claims: func(device string) []control.Grant {
			return []control.Grant{{ID: device, Namespace: "team", Pod: "pod", PodUID: testUID, Class: "gpu-batch"}}
		},
		Variables: func(string, []string) map[string]string { return w.variables },
		Send: func(_ context.Context, grants []control.Grant) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sends++
			if w.refuse == nil {
				w.daemon = grants
			}
			return w.refuse
		},
	})
	dial := w.plugin.dial
	w.plugin.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		w.locked(func() { w.conn = conn })
		return conn, err
	}
	return w
}

// Eventf implements Events.
func (w *world) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	w.locked(func() {
		w.events = append(w.events, fmt.Sprintf("%s %s %s: ", object.(*corev1.Pod).Name, kind, reason)+fmt.Sprintf(format, args...))
	})
}

// run starts the plugin until the test ends.
func (w *world) run(t *testing.T, socket string) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.plugin.Run(ctx, socket)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// classesOf lists the daemon's grants as container:class.
func (w *world) classesOf() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, g := range w.daemon {
		out = append(out, g.Container+":"+g.Class)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

const testFile = `
classes:
  latency: {priority: 10, namespaceSelector: {matchLabels: {allow: latency}}}
  batch: {priority: -10, namespaceSelector: {}}
priorityClasses: {high: latency}
`

func want(class string) map[string]string {
	return map[string]string{"xsched.dev/priority-class": class}
}
