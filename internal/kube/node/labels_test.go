// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"xsched/internal/health"
)

// TestLabelsOnly runs a node without claims: it asks the API server for nothing, serves no kubelet, and is ready as soon
// as the daemon answers.
func TestLabelsOnly(t *testing.T) {
	api, d, f := fake.NewClientset(), &daemon{down: true}, newFolders(t)
	o := Options{Name: "n1", Data: f.data, Registry: t.TempDir() + "/none", CDI: f.cdi, LabelsOnly: true, Every: 10 * time.Millisecond, Log: quiet(), Health: &health.Monitor{}}
	n, err := New(t.Context(), o, d, api)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	late := func() (out []string) {
		states := o.Health.States()
		for i := range states {
			if states[i].Late() {
				out = append(out, states[i].Name)
			}
		}
		return out
	}
	until := func(what string, reached func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !reached(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: late are %v", what, late())
			}
		}
	}
	until("without a daemon the node is not ready", func() bool { return len(late()) == 1 })
	d.set(func() { d.down = false })
	until("with a daemon it is ready", func() bool { return len(late()) == 0 })
	if e, err := n.Edits(t.Context()); err != nil || e.Preload == "" {
		t.Errorf("a container gets %+v, %v", e, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if asked := api.Actions(); len(asked) > 0 {
		t.Errorf("asked the API server: %v", asked)
	}
}
