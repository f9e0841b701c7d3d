// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer is as much of a Kubernetes API server as the node plugin needs to publish GPUs: one kind
// of object, in memory. It can answer late.
type apiServer struct {
	http *http.Server
	url  string

	mu      sync.Mutex
	slices  map[string]map[string]any // by name
	version int
	events  []apiEvent
	changed chan struct{} // closed and replaced after each change
	delay   time.Duration
}

// apiEvent is one change, for watches.
type apiEvent struct {
	version int
	Type    string         `json:"type"`
	Object  map[string]any `json:"object"`
}

func startAPI() (*apiServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	a := &apiServer{url: "http://" + l.Addr().String(), slices: map[string]map[string]any{}, version: 1, changed: make(chan struct{})}
	mux := http.NewServeMux()
	const path = "/apis/resource.k8s.io/v1/resourceslices"
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, map[string]any{"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": r.PathValue("name"), "uid": "chaos"}})
	})
	mux.HandleFunc("GET "+path, a.list)
	mux.HandleFunc("POST "+path, a.put)
	mux.HandleFunc("PUT "+path+"/{name}", a.put)
	mux.HandleFunc("DELETE "+path+"/{name}", a.remove)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})
	})
	a.http = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		delay := a.delay
		a.mu.Unlock()
		select {
		case <-time.After(delay):
			mux.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})}
	go func() { _ = a.http.Serve(l) }()
	return a, nil
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func (a *apiServer) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	var items []any
	for _, s := range a.slices {
		items = append(items, s)
	}
	version := a.version
	a.mu.Unlock()
	if r.URL.Query().Get("watch") != "" {
		a.watch(w, r)
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1",
		"metadata": map[string]any{"resourceVersion": fmt.Sprint(version)}, "items": items,
	})
}

// watch sends the changes after a version until the client leaves.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	seen, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	out := http.NewResponseController(w)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		seen = a.initial(w)
	}
	for {
		a.mu.Lock()
		changed, all := a.changed, a.events
		a.mu.Unlock()
		for _, e := range all {
			if e.version > seen {
				seen = e.version
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		if out.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// initial sends all objects and a mark, and returns their version.
func (a *apiServer) initial(w http.ResponseWriter) int {
	a.mu.Lock()
	version, all := a.version, maps.Clone(a.slices)
	a.mu.Unlock()
	for _, s := range all {
		_ = json.NewEncoder(w).Encode(apiEvent{Type: "ADDED", Object: s})
	}
	_ = json.NewEncoder(w).Encode(apiEvent{Type: "BOOKMARK", Object: map[string]any{
		"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(version), "annotations": map[string]any{"k8s.io/initial-events-end": "true"},
		},
	}})
	return version
}

// change gives an object a new version and tells the watches. Objects are never changed afterwards.
// Preconditions: a.mu is held.
func (a *apiServer) change(what string, object map[string]any) {
	a.version++
	object = maps.Clone(object)
	meta, _ := object["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	name, _ := meta["name"].(string)
	if name == "" {
		name = fmt.Sprintf("%v%d", meta["generateName"], a.version)
	}
	meta["name"], meta["uid"], meta["resourceVersion"] = name, "uid-"+name, strconv.Itoa(a.version)
	object["metadata"], object["kind"], object["apiVersion"] = meta, "ResourceSlice", "resource.k8s.io/v1"
	if a.slices[name] = object; what == "DELETED" {
		delete(a.slices, name)
	}
	a.events = append(a.events, apiEvent{a.version, what, object})
	close(a.changed)
	a.changed = make(chan struct{})
}

// decode reads an object, which clients send as protobuf.
func decode(from io.Reader) (out map[string]any, err error) {
	body, err := io.ReadAll(io.LimitReader(from, 1<<20))
	if err != nil {
		return nil, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out, err
}

func (a *apiServer) put(w http.ResponseWriter, r *http.Request) {
	s, err := decode(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if _, ok := s["metadata"].(map[string]any); !ok {
		http.Error(w, "no metadata", http.StatusBadRequest)
		return
	}
	what := "ADDED"
	if r.Method == http.MethodPut {
		what = "MODIFIED"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.change(what, s)
	answer(w, http.StatusCreated, a.events[len(a.events)-1].Object)
}

func (a *apiServer) remove(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.slices[r.PathValue("name")]; s != nil {
		a.change("DELETED", s)
	}
	answer(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
}

// devices counts the published GPUs.
func (a *apiServer) devices() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slices {
		spec, _ := s["spec"].(map[string]any)
		list, _ := spec["devices"].([]any)
		n += len(list)
	}
	return n
}

func (a *apiServer) setDelay(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.delay = d
}

// startNode runs the node plugin against an API server of the world's own.
func (w *world) startNode() (err error) {
	if w.api, err = startAPI(); err != nil {
		return err
	}
	kubelet := filepath.Join(w.base, "k")
	if err := errors.Join(os.MkdirAll(filepath.Join(kubelet, "plugins_registry"), 0o755), os.MkdirAll(filepath.Join(kubelet, "cdi"), 0o755)); err != nil {
		return err
	}
	config := filepath.Join(kubelet, "config")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + w.api.url +
		`"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	w.node = startService(w, func() *exec.Cmd {
		cmd := exec.Command(w.tools.kube, "node", "--node-name", "worker", "--dir", w.dir, "--kubeconfig", config, "--kubelet-dir", kubelet,
			"--cdi-dir", filepath.Join(kubelet, "cdi"), "--nri-socket", "", "--gang-after", "0", "--every", "200ms")
		cmd.Env = w.env()
		return cmd
	})
	return nil
}

// publishTime is how long the node plugin may take to publish GPUs: it reads them every 0.2 s, and its
// library waits up to 5 s after a failed request.
const publishTime = 15 * time.Second

// checkNode checks that all GPUs are published. A removed one would come back only after the 30 s
// that the plugin's library waits before it repairs anything: too long for a check.
func (w *world) checkNode(say func(rule, role, format string, args ...any)) {
	if w.node == nil {
		return
	}
	if !w.eventually(publishTime, func() bool { return w.api.devices() == w.setup.Devices }) {
		say("published", "node", "%d of %d GPUs are published %v after the faults: %s",
			w.api.devices(), w.setup.Devices, publishTime, strings.Join(w.node.log.Lines(3), " | "))
	}
}

// nodeStop freezes the node plugin. Nobody but the kubelet may notice.
func nodeStop(w *world, f Fault) error {
	if w.node == nil || !w.node.signal(syscall.SIGSTOP) {
		return errors.New("no node plugin")
	}
	time.Sleep(f.duration())
	w.node.signal(syscall.SIGCONT)
	return nil
}

// nodeKill ends the node plugin, which starts again.
func nodeKill(w *world, f Fault) error {
	if w.node == nil || !w.node.signal(syscall.SIGKILL) {
		return errors.New("no node plugin")
	}
	time.Sleep(f.duration())
	return nil
}

// apiSlow makes the API server answer late, up to never within the fault.
func apiSlow(w *world, f Fault) error {
	if w.api == nil {
		return errors.New("no API server")
	}
	w.api.setDelay(time.Duration(f.Number%6) * 500 * time.Millisecond)
	time.Sleep(f.duration())
	w.api.setDelay(0)
	return nil
}
