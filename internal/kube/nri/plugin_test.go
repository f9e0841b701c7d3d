// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"

	"xsched/internal/kube/edits"
)

// containerd plays the runtime, with the library that runtimes use.
type containerd struct {
	*adaptation.Adaptation
	mu         sync.Mutex
	sandboxes  []*api.PodSandbox
	containers []*api.Container
	connected  int
}

// quiet switches off the runtime's log, once: earlier runtimes may still write.
var quiet = sync.OnceFunc(func() { nrilog.Set(logger{slog.New(slog.DiscardHandler)}) })

func startRuntime(t *testing.T, socket string, r *containerd) *containerd {
	t.Helper()
	r.connected = -1 // the start synchronizes plugins of the runtime itself
	quiet()
	dir := filepath.Dir(socket)
	var err error
	r.Adaptation, err = adaptation.New("testruntime", "1.0",
		func(ctx context.Context, deliver adaptation.SyncCB) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			_, err := deliver(ctx, r.sandboxes, r.containers)
			r.connected++
			return err
		},
		func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
			return nil, nil
		},
		adaptation.WithPluginPath(filepath.Join(dir, "plugins")), adaptation.WithPluginConfigPath(filepath.Join(dir, "conf")), adaptation.WithSocketPath(socket))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

func (r *containerd) synchronized() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.connected > 0
}

// create asks the plugins about a container. A plugin counts only a moment after it was synchronized.
func (r *containerd) create(t *testing.T, s *api.PodSandbox, c *api.Container) *api.ContainerAdjustment {
	t.Helper()
	reply, err := r.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: s, Container: c})
	if err != nil {
		t.Fatalf("the container failed: %v", err)
	}
	return reply.Adjust
}

// socketDir returns a short path: sockets allow 107 characters.
func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "nri")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "nri.sock")
}

func TestRuntime(t *testing.T) {
	w, socket := newWorld(t, testFile), socketDir(t)
	w.pods.Add(testPod(want("batch"), nil, "app!", "side"))
	// The container was there before the plugin, with the edits.
	old := &api.Container{Id: id(1), PodSandboxId: "s1", Name: "app", State: api.ContainerState_CONTAINER_RUNNING, Mounts: []*api.Mount{{Source: testClient, Destination: edits.Client}}}
	ended := &api.Container{Id: id(2), PodSandboxId: "s1", Name: "app", State: api.ContainerState_CONTAINER_STOPPED, Mounts: old.Mounts}
	first := startRuntime(t, socket, &containerd{sandboxes: []*api.PodSandbox{testSandbox(want("batch"), nil)}, containers: []*api.Container{old, ended}})
	w.run(t, socket)
	eventually(t, "grant of a container that was there", func() bool { return w.classesOf() == "app:batch" })
	w.locked(func() {
		if len(w.events) > 0 {
			t.Errorf("events about containers that were there: %q", w.events)
		}
	})

	// The plugin is one of the runtime's a moment after it was synchronized.
	sandbox := testSandbox(want("batch"), nil)
	var got *api.ContainerAdjustment
	eventually(t, "shim in a new container", func() bool {
		got = first.create(t, sandbox, &api.Container{Id: id(3), PodSandboxId: "s1", Name: "app", Env: []string{"LD_PRELOAD=/a.so"}})
		return len(got.GetMounts()) == 2
	})
	if env := got.GetEnv(); env[len(env)-1].ToOCI() != "LD_PRELOAD=/a.so:"+edits.Shim {
		t.Errorf("environment %v", env)
	}
	if got := first.create(t, sandbox, &api.Container{Id: id(4), PodSandboxId: "s1", Name: "side"}); len(got.GetMounts())+len(got.GetEnv()) > 0 {
		t.Errorf("container without a device: %v", got)
	}
	eventually(t, "grant of the new container", func() bool { return w.classesOf() == "app:batch app:batch" })

	if _, err := first.StopContainer(t.Context(), &api.StopContainerRequest{Container: old}); err != nil { // without its pod
		t.Fatal(err)
	}
	eventually(t, "grant of the stopped container gone", func() bool { return w.classesOf() == "app:batch" })

	// The runtime restarts; the container that it still has keeps its grant.
	first.Stop() // keeps connections: a real runtime is a process
	next := startRuntime(t, socket, &containerd{sandboxes: first.sandboxes, containers: []*api.Container{old}})
	w.locked(func() { _ = w.conn.Close() })
	eventually(t, "connection with the new runtime", next.synchronized)
	eventually(t, "grants of the new runtime's containers", func() bool {
		ok := false
		w.locked(func() { ok = len(w.daemon) == 1 && w.daemon[0].ContainerID == id(1) })
		return ok
	})
}

// TestOtherPlugins: two plugins that set one variable are a conflict, which fails the container.
func TestOtherPlugins(t *testing.T) {
	w, socket := newWorld(t, testFile), socketDir(t)
	w.pods.Add(testPod(want("batch"), nil, "app!"))
	r := startRuntime(t, socket, &containerd{})
	startOther(t, socket)
	w.run(t, socket)
	sandbox := testSandbox(want("batch"), nil)
	value := ""
	eventually(t, "both libraries", func() bool {
		got := r.create(t, sandbox, &api.Container{Id: id(1), PodSandboxId: "s1", Name: "app"})
		for _, v := range got.GetEnv() {
			if v.Key == preloadVariable {
				value = v.Value
			}
		}
		return value == "/other.so:"+edits.Shim
	})
}

// TestRuntimeDiesWhileRegistering: the library's stub would wait for ever.
func TestRuntimeDiesWhileRegistering(t *testing.T) {
	w, socket := newWorld(t, testFile), socketDir(t)
	w.plugin.startTimeout = 50 * time.Millisecond
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	half := registrar{make(chan struct{}, 1000)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			half.serve(t, conn)
		}
	}()
	w.run(t, socket)
	<-half.registered
	<-half.registered // it tries again
	_ = l.Close()
	r := startRuntime(t, socket, &containerd{})
	eventually(t, "connection with the new runtime", r.synchronized)
}

// preloader is a plugin that sets LD_PRELOAD, as profilers do.
type preloader struct{}

func (preloader) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	a.AddEnv(preloadVariable, "/other.so")
	return a, nil, nil
}

func startOther(t *testing.T, socket string) {
	t.Helper()
	s, err := stub.New(preloader{}, stub.WithPluginName("other"), stub.WithPluginIdx("10"), stub.WithSocketPath(socket), stub.WithLogger(logger{slog.New(slog.DiscardHandler)}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
}

// registrar is a runtime that registers plugins and does nothing else.
type registrar struct{ registered chan struct{} }

func (r registrar) RegisterPlugin(context.Context, *api.RegisterPluginRequest) (*api.Empty, error) {
	r.registered <- struct{}{}
	return &api.Empty{}, nil
}

func (registrar) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return &api.UpdateContainersResponse{}, nil
}

func (r registrar) serve(t *testing.T, conn net.Conn) {
	mux := multiplex.Multiplex(conn)
	l, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		t.Error(err)
		return
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		t.Error(err)
		return
	}
	api.RegisterRuntimeService(s, r)
	go func() { _ = s.Serve(context.Background(), l) }()
	t.Cleanup(func() { _ = s.Close(); _ = mux.Close() })
}
