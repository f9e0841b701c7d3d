// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// TestManyNodes asks hundreds of nodes. One is dead: it does not delay the rest, as it answers only after all
// others. Nodes that fail alike share a line.
func TestManyNodes(t *testing.T) {
	const count, broken = 300, 20
	s := &server{pods: []corev1.Pod{daemonPod("dead", "n0000")}}
	for i := 1; i < count; i++ {
		s.pods = append(s.pods, daemonPod(fmt.Sprintf("p%d", i), fmt.Sprintf("n%04d", i)))
	}
	answer := line("HPF", "red/a", "red/b", "blue/c")
	left, others := count-1, make(chan struct{})
	s.run = func(pod string, _ []string, c *channels) {
		if pod == "dead" {
			<-others
			c.print(stderr, "xsched: the daemon is dead\n")
			c.exit(1)
			return
		}
		s.mu.Lock()
		last := left == 1
		bad := left <= broken
		left--
		s.mu.Unlock()
		if bad {
			c.print(stderr, "xsched: no daemon answers\n")
			c.exit(1)
		} else {
			c.print(stdout, answer)
			c.exit(0)
		}
		if last {
			close(others)
		}
	}
	d := s.start(t)
	d.Timeout = time.Hour
	targets, err := d.Targets(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	fleet := d.Once(t.Context(), targets)
	if n := len(fleet.Tenants()); n != 3*(count-1-broken) {
		t.Errorf("%d tenants, want %d", n, 3*(count-1-broken))
	}
	lost := fleet.Merged().Fleet.Lost
	if len(lost) != 2 || lost[0] != "node n0000: the daemon is dead" || !strings.HasPrefix(lost[1], "20 nodes (n") || !strings.HasSuffix(lost[1], ", ...): no daemon answers") {
		t.Errorf("nodes that do not answer: %q", lost)
	}
}

// TestSilentNode checks that a node which never answers ends with an error, asked once or followed.
func TestSilentNode(t *testing.T) {
	s := &server{pods: []corev1.Pod{daemonPod("p1", "n1")}}
	s.run = func(_ string, _ []string, c *channels) { <-c.ctx.Done() }
	d := s.start(t)
	d.Timeout = 10 * time.Millisecond
	targets, err := d.Targets(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	const want = "no answer within 10ms"
	if got := d.Once(t.Context(), targets).Nodes[0].Error; got != want {
		t.Errorf("asked once: %q, want %q", got, want)
	}
	for _, streams := range []int{1, -1} { // a stream, or in turn
		w := &Watch{Daemons: d, Interval: time.Second, Streams: streams}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		await(t, w, want, func(f Fleet) bool { return len(f.Nodes) == 1 && f.Nodes[0].Error == want })
		cancel()
		<-done
	}
}

// TestWatchInTurn follows more nodes than may have a stream.
func TestWatchInTurn(t *testing.T) {
	s := &server{}
	for i := range 3 {
		s.pods = append(s.pods, daemonPod(fmt.Sprintf("p%d", i), fmt.Sprintf("n%d", i)))
	}
	s.run = func(pod string, args []string, c *channels) {
		if got := strings.Join(args, " "); got != "top --once --json" {
			t.Errorf("command %q", got)
		}
		c.print(stdout, line("HPF", "red/"+pod))
		c.exit(0)
	}
	w := &Watch{Daemons: s.start(t), Interval: time.Second, Streams: 2}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	await(t, w, "all nodes", func(f Fleet) bool { return len(f.Tenants()) == 3 && len(f.Errors()) == 0 })
	cancel()
	<-done
}

// await waits for a state of the view.
func await(t *testing.T, w *Watch, what string, ok func(Fleet) bool) {
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
		await(t, w, what, ok)
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

// TestLimited checks the bound of an answer, also as io.Copy fills it, and that nothing comes after it was taken.
func TestLimited(t *testing.T) {
	l := limited{most: 10}
	if _, err := io.Copy(&l, strings.NewReader("0123456789")); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(&l, strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "more than 10 bytes") {
		t.Errorf("error %v", err)
	}
	if got := string(l.take()); got != "0123456789" {
		t.Errorf("answer %q", got)
	}
	if _, err := l.Write(nil); err == nil {
		t.Error("it takes more after its end")
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
