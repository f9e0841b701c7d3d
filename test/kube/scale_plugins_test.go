// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"xsched/internal/control"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/node"
	"xsched/internal/kube/nri"
)

// fleetOrder tells the process of the plugins what to run.
type fleetOrder struct {
	Config string            // kubeconfig with the address of the API server
	Folder string            // for the kubelets' folders
	GPUs   int               // of each node
	Memory string            // of each GPU
	Tokens map[string]string // by node: each names its node
}

// fleetReply has the requests that the plugins have sent, by verb and resource.
type fleetReply struct{ Requests map[string]int }

// fleet is a process that runs the node plugin of many nodes: the DRA plugin, which publishes the GPUs,
// and the watch of the node's pods for labels. They are those of `xsched-kube node`, one for each node, with
// a connection and a token of its own. The daemons behind them are simulated, and no kubelet calls.
type fleet struct {
	t   testing.TB
	pid int
	in  io.WriteCloser
	out *bufio.Reader
}

func startFleet(t testing.TB, order *fleetOrder) *fleet {
	t.Helper()
	log, err := os.Create(path("log", "fleet.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := again(stageFleet, "GOGC=100", "HTTP2_PING_TIMEOUT_SECONDS=120") // one machine plays all nodes
	cmd.Stderr, cmd.Stdout = log, nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		t.Cleanup(func() {
			_ = in.Close() // ends it
			_ = cmd.Wait()
		})
		err = json.NewEncoder(in).Encode(order)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &fleet{t: t, pid: cmd.Process.Pid, in: in, out: bufio.NewReader(out)}
}

// requests returns what the plugins have asked the API server for so far.
func (f *fleet) requests() map[string]int {
	f.t.Helper()
	_, err := io.WriteString(f.in, "\n")
	var reply fleetReply
	if err == nil {
		var line []byte
		if line, err = f.out.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &reply)
		}
	}
	if err != nil {
		f.t.Fatalf("the plugins' process does not answer: %v; its log: %s", err, lastLines(path("log", "fleet.log"), 5))
	}
	return reply.Requests
}

// runFleet is the process: it reads its order, then answers each line with a reply until its input ends.
func runFleet() int {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	klog.SetSlogLogger(slog.Default())
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var order fleetOrder
	if err == nil {
		err = json.Unmarshal(line, &order)
	}
	if err != nil {
		return complain(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	counter := &requestCounter{}
	go startPlugins(ctx, &order, counter)
	for {
		if _, err := in.ReadBytes('\n'); err != nil {
			return 0
		}
		if err := json.NewEncoder(os.Stdout).Encode(fleetReply{counter.copy()}); err != nil {
			return complain(err)
		}
	}
}

// starting bounds the plugins that have not published yet: on one machine, a thousand that start in the same
// second would only wait for each other.
const starting = 32

func startPlugins(ctx context.Context, order *fleetOrder, counter *requestCounter) {
	slots := make(chan struct{}, starting)
	for name, token := range order.Tokens {
		slots <- struct{}{}
		published := sync.OnceFunc(func() { <-slots })
		go func() {
			defer published()
			if err := runPlugin(ctx, order, name, token, countingTransport{counter: counter, published: published}); err != nil && ctx.Err() == nil {
				complain(fmt.Errorf("node %s: %w", name, err))
			}
		}()
	}
}

// runPlugin does what `xsched-kube node` does.
func runPlugin(ctx context.Context, order *fleetOrder, name, token string, counting countingTransport) error {
	config, err := cluster.Config(order.Config)
	if err != nil {
		return err
	}
	config.BearerToken = token
	config.Dial = (&net.Dialer{}).DialContext // else all nodes would share one connection
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		counting.next = next
		return counting
	}
	var api kubernetes.Interface
	if api, err = cluster.Connect(config); err != nil {
		return err
	}
	folder := filepath.Join(order.Folder, name)
	options := node.Options{
		Name: name, Data: filepath.Join(folder, "p"), Registry: filepath.Join(folder, "r"), CDI: filepath.Join(folder, "c"),
		Memory: resource.MustParse(order.Memory), Every: 5 * time.Second, Log: slog.Default(),
	}
	for _, folder := range []string{options.Registry, options.CDI} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	daemon := simulatedDaemon{order.GPUs}
	n, err := node.New(ctx, options, daemon, api)
	if err != nil {
		return err
	}
	labels, err := nri.Open(nri.Options{Node: name, Socket: filepath.Join(folder, "nri.sock"), Log: slog.New(slog.DiscardHandler)}, api, n, daemon)
	if err != nil {
		return err
	}
	n.OnChange(labels.Changed)
	go labels.Run(ctx)
	return n.Run(ctx)
}

// simulatedDaemon is a healthy daemon with idle GPUs.
type simulatedDaemon struct{ gpus int }

func (d simulatedDaemon) Version(context.Context) (control.Version, error) {
	return control.Version{Version: "simulated", StartedNS: 1, Dir: daemonDir}, nil
}

func (d simulatedDaemon) Devices(context.Context) (control.Devices, error) {
	var out control.Devices
	for i := range d.gpus {
		out.Devices = append(out.Devices, control.Device{
			ID: fmt.Sprintf("0000:%02x:00.0", 0x10+i), Driver: "nvidia", Name: "Simulated GPU", MaxLevel: 3, Probed: true, Virtual: true,
			Access: &control.DeviceAccess{Nodes: []string{"/dev/null"}},
		})
	}
	return out, nil
}

func (simulatedDaemon) Stats(context.Context) (control.Stats, error) { return control.Stats{}, nil }
func (simulatedDaemon) Journal(context.Context, control.JournalRequest) (control.Journal, error) {
	return control.Journal{}, nil
}

func (simulatedDaemon) SetGrants(context.Context, control.GrantsRequest) (control.GrantsReply, error) {
	return control.GrantsReply{}, nil
}

var _ node.Daemon = simulatedDaemon{}

// requestCounter counts requests by verb and resource.
type requestCounter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *requestCounter) copy() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

type countingTransport struct {
	counter   *requestCounter
	next      http.RoundTripper
	published func() // is called after a slice was created
}

func (t countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := t.next.RoundTrip(r)
	outcome := "failed"
	var refused net.Error
	if err == nil {
		outcome = fmt.Sprint(reply.StatusCode)
	} else if errors.As(err, &refused) && refused.Timeout() {
		outcome = "late"
	}
	verb := r.Method
	if r.URL.Query().Get("watch") != "" {
		verb = "WATCH"
	}
	kind := resourceOf(r.URL.Path)
	if verb == http.MethodPost && kind == "resourceslices" && outcome == "201" {
		t.published()
	}
	t.counter.mu.Lock()
	defer t.counter.mu.Unlock()
	if t.counter.counts == nil {
		t.counter.counts = map[string]int{}
	}
	t.counter.counts[verb+" "+kind+" "+outcome]++
	return reply, err
}

// resourceOf returns the kind of objects that a path of the API names.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" && len(parts) > 3 {
		parts = parts[3:]
	} else if parts[0] == "api" && len(parts) > 2 {
		parts = parts[2:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	return parts[0]
}
