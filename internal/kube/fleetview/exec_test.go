// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// server is the part of the API server that the view uses: the list of pods, and exec over a web socket
// with the protocol of Kubernetes. run is the command in the container of a pod.
type server struct {
	mu   sync.Mutex
	pods []corev1.Pod
	run  func(pod string, args []string, c *channels)
}

// channels are the streams of a command.
type channels struct {
	conn *websocket.Conn
	ctx  context.Context //nolint:containedctx // the life of the connection
}

// The channels of the protocol.
const (
	stdout = 1
	stderr = 2
	status = 3
)

func (c *channels) print(channel byte, text string) {
	_ = c.conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, text...))
}

func (c *channels) exit(code int) {
	s := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		s = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code)}},
		}}
	}
	text, _ := json.Marshal(s)
	c.print(status, string(text))
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const pods = "/api/v1/namespaces/xsched-system/pods"
	s.mu.Lock()
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: s.pods}
	s.mu.Unlock()
	if r.URL.Path == pods {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	pod := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, pods+"/"), "/exec")
	if pod == "forbidden" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Message: "pods \"forbidden\" is forbidden", Code: http.StatusForbidden})
		return
	}
	query := r.URL.Query()
	if query.Get("container") != "daemon" || query["command"][0] != program {
		http.Error(w, "wrong container or command", http.StatusBadRequest)
		return
	}
	conn, err := (&websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() { // notices that the client is gone
		defer cancel()
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
		}
	}()
	s.run(pod, query["command"][1:], &channels{conn, ctx})
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
}

func (s *server) start(t *testing.T) *Daemons {
	t.Helper()
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	config := &rest.Config{Host: h.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &Daemons{Config: config, Client: client, Namespace: "xsched-system"}
}

func daemonPod(name, node string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "xsched-system"}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
}

func line(policy string, pods ...string) string {
	text, _ := json.Marshal(snapshot(policy, pods...))
	return string(text) + "\n"
}

// TestOnce asks more nodes than are asked at once. One fails, one prints rubbish, one is forbidden.
func TestOnce(t *testing.T) {
	s := &server{pods: []corev1.Pod{daemonPod("bad", "n98"), daemonPod("rubbish", "n99"), daemonPod("forbidden", "n97")}}
	for i := range 3 * concurrent {
		s.pods = append(s.pods, daemonPod(fmt.Sprintf("p%02d", i), fmt.Sprintf("n%02d", i)))
	}
	running, most := 0, 0
	s.run = func(pod string, args []string, c *channels) {
		s.mu.Lock()
		running++
		most = max(most, running)
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			running--
			s.mu.Unlock()
		}()
		if got := strings.Join(args, " "); got != "top --once --json" {
			t.Errorf("command %q", got)
		}
		switch pod {
		case "bad":
			c.print(stderr, "xsched: no daemon answers;\nstart it\n")
			c.exit(1)
		case "rubbish":
			c.print(stdout, "{]")
			c.exit(0)
		default:
			text := line("HPF", "red/"+pod)
			c.print(stdout, text[:10]) // an answer comes in pieces
			c.print(stdout, text[10:])
			c.exit(0)
		}
	}
	d := s.start(t)
	targets, err := d.Targets(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	fleet := d.Once(t.Context(), targets)
	if n := len(fleet.Tenants()); n != 3*concurrent {
		t.Errorf("%d tenants, want %d", n, 3*concurrent)
	}
	if most > concurrent {
		t.Errorf("%d commands at once, want at most %d", most, concurrent)
	}
	want := map[string]string{"n97": "ask for the role xsched-viewer", "n98": "no daemon answers; start it", "n99": "unreadable"}
	for _, n := range fleet.Errors() {
		if !strings.Contains(n.Error, want[n.Name]) || want[n.Name] == "" || strings.Contains(n.Error, "\n") {
			t.Errorf("node %s: %q", n.Name, n.Error)
		}
		delete(want, n.Name)
	}
	if len(want) != 0 {
		t.Errorf("no error for %v", want)
	}
	var command *CommandError
	if err := d.Exec(t.Context(), "bad", &bytes.Buffer{}, "top", "--once", "--json"); !errors.As(err, &command) || command.Code != 1 {
		t.Errorf("exit code lost: %v", err)
	}
}

// TestWatch follows two nodes: one stream breaks and is opened again, and a node leaves.
func TestWatch(t *testing.T) {
	s := &server{pods: []corev1.Pod{daemonPod("p1", "n1"), daemonPod("p2", "n2")}}
	opened := map[string]int{}
	ended := make(chan string, 10)
	s.run = func(pod string, args []string, c *channels) {
		if got := strings.Join(args, " "); got != "top --json --interval 1s" {
			t.Errorf("command %q", got)
		}
		s.mu.Lock()
		opened[pod]++
		n := opened[pod]
		s.mu.Unlock()
		if pod == "p2" && n == 1 {
			c.print(stderr, "xsched: the daemon is gone; start it\n")
			c.exit(1)
			return
		}
		c.print(stdout, line("HPF", "red/first")+line("HPF", "red/"+pod))
		<-c.ctx.Done()
		ended <- pod
	}
	w := &Watch{Daemons: s.start(t), Interval: time.Second, Retry: 200 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	until := func(what string, ok func(Fleet) bool) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			fleet, err := w.Fleet()
			if err == nil && ok(fleet) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: not reached: %+v, %v", what, fleet, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	until("the error of a broken stream", func(f Fleet) bool {
		return len(f.Nodes) == 2 && f.Nodes[1].Error == "the daemon is gone; start it"
	})
	until("both nodes, the newest lines", func(f Fleet) bool {
		all := f.Tenants()
		return len(all) == 2 && all[0].Pod == "p1" && all[1].Pod == "p2" && len(f.Errors()) == 0
	})
	s.mu.Lock()
	s.pods = s.pods[:1]
	s.mu.Unlock()
	targets, err := w.Daemons.Targets(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	w.mu.Lock()
	w.follow(ctx, targets, make(chan struct{}, concurrent), &all) // what Run does every few seconds
	w.mu.Unlock()
	if pod := <-ended; pod != "p2" {
		t.Errorf("the stream of %s ended", pod)
	}
	until("one node", func(f Fleet) bool { return len(f.Nodes) == 1 && f.Nodes[0].Name == "n1" })
	cancel()
	<-done
	if pod := <-ended; pod != "p1" {
		t.Errorf("the stream of %s ended", pod)
	}
}

func TestNoDaemons(t *testing.T) {
	d := (&server{}).start(t)
	for node, want := range map[string]string{"": "install the chart", "n1": "node n1 has no daemon"} {
		if _, err := d.Targets(t.Context(), node); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("node %q: %v", node, err)
		}
	}
}
