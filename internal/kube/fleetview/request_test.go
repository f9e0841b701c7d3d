// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/view"
)

// server is the part of the API server that the view uses: the list of pods and the tokens of viewers. run is
// the view of a pod's node.
type server struct {
	mu     sync.Mutex
	pods   []corev1.Pod
	run    func(pod string, w http.ResponseWriter, r *http.Request)
	tokens int               // created
	to     map[string]string // pods by the address of a connection to their view
}

const (
	podsPath  = "/api/v1/namespaces/xsched-system/pods"
	tokenPath = "/api/v1/namespaces/xsched-system/serviceaccounts/xsched-viewer/token"
)

func answerJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.URL.Path {
	case podsPath:
		answerJSON(w, http.StatusOK, corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: s.pods})
	case tokenPath:
		var asked authenticationv1.TokenRequest
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || len(asked.Spec.Audiences) != 1 || asked.Spec.Audiences[0] != cluster.ViewAudience {
			http.Error(w, "wrong audience", http.StatusBadRequest)
			return
		}
		s.tokens++
		asked.Status.Token = fmt.Sprintf("token-%d", s.tokens)
		answerJSON(w, http.StatusCreated, asked)
	default:
		answerJSON(w, http.StatusForbidden, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Message: r.URL.Path + " is forbidden", Code: http.StatusForbidden,
		})
	}
}

// serveView answers as the view of the pod that the connection was opened to.
func (s *server) serveView(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	pod, token := s.to[r.RemoteAddr], fmt.Sprintf("Bearer token-%d", s.tokens)
	s.mu.Unlock()
	if r.Header.Get("Authorization") != token {
		answerJSON(w, http.StatusUnauthorized, view.Failure{Error: "no token of a viewer"})
		return
	}
	s.run(pod, w, r)
}

func (s *server) start(t *testing.T) *Daemons {
	t.Helper()
	h, views := httptest.NewServer(s), httptest.NewServer(http.HandlerFunc(s.serveView))
	t.Cleanup(h.Close)
	t.Cleanup(views.Close)
	s.to = map[string]string{}
	config := &rest.Config{Host: h.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &Daemons{Config: config, Client: client, Namespace: "xsched-system", Dial: func(ctx context.Context, pod string) (net.Conn, error) {
		if pod == "forbidden" {
			return forward(config, client, "xsched-system", pod)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", views.Listener.Addr().String())
		if err == nil {
			s.to[c.LocalAddr().String()] = pod
		}
		return c, err
	}}
}

// send writes a part of an answer at once.
func send(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

func refuse(w http.ResponseWriter, text string) {
	answerJSON(w, http.StatusBadGateway, view.Failure{Error: text})
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
	s.run = func(pod string, w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		running++
		most = max(most, running)
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			running--
			s.mu.Unlock()
		}()
		if got := r.URL.RequestURI(); got != view.SnapshotPath+"?" {
			t.Errorf("asked for %q", got)
		}
		switch pod {
		case "bad":
			refuse(w, "no daemon answers;\nstart it")
		case "rubbish":
			send(w, "{]")
		default:
			text := line("HPF", "red/"+pod)
			send(w, text[:10]) // an answer comes in pieces
			send(w, text[10:])
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
		t.Errorf("%d requests at once, want at most %d", most, concurrent)
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
	if s.tokens != 1 {
		t.Errorf("%d tokens for one view of the fleet", s.tokens)
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
	s.run = func(pod string, w http.ResponseWriter, _ *http.Request) {
		if pod == "dead" {
			<-others
			refuse(w, "the daemon is dead")
			return
		}
		s.mu.Lock()
		last := left == 1
		bad := left <= broken
		left--
		s.mu.Unlock()
		if bad {
			refuse(w, "no daemon answers")
		} else {
			send(w, answer)
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
	s.run = func(_ string, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
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
	s.run = func(pod string, w http.ResponseWriter, r *http.Request) {
		if got := r.URL.RequestURI(); got != view.SnapshotPath+"?" {
			t.Errorf("asked for %q", got)
		}
		send(w, line("HPF", "red/"+pod))
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
	s.run = func(pod string, w http.ResponseWriter, r *http.Request) {
		if got := r.URL.RequestURI(); got != view.SnapshotPath+"?interval=1s" {
			t.Errorf("asked for %q", got)
		}
		s.mu.Lock()
		opened[pod]++
		n := opened[pod]
		s.mu.Unlock()
		if pod == "p2" && n == 1 {
			send(w, line("HPF", "red/p2"))
			send(w, `{"error":"the daemon is gone; start it"}`+"\n")
			return
		}
		send(w, line("HPF", "red/first")+line("HPF", "red/"+pod))
		<-r.Context().Done()
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

// TestRefusedToken checks that a token which a node refuses is replaced, and that the user's own is not sent.
func TestRefusedToken(t *testing.T) {
	s := &server{pods: []corev1.Pod{daemonPod("p1", "n1")}}
	s.run = func(_ string, w http.ResponseWriter, _ *http.Request) { send(w, "{}") }
	d := s.start(t)
	d.Config.BearerToken = "of-the-user"
	d.viewer = token{text: "token-of-yesterday", renew: time.Now().Add(time.Hour)}
	if _, err := d.ask(t.Context(), "p1", view.StatusPath); err == nil || !strings.Contains(err.Error(), "no token of a viewer") {
		t.Errorf("an old token: %v", err)
	}
	if answer, err := d.ask(t.Context(), "p1", view.StatusPath); err != nil || string(answer) != "{}" {
		t.Errorf("a new token: %q, %v", answer, err)
	}
}

// TestAnswerIsBounded checks that a node can't fill the memory of a viewer.
func TestAnswerIsBounded(t *testing.T) {
	s := &server{}
	s.run = func(_ string, w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			send(w, strings.Repeat("x", 1<<20))
		}
	}
	d := s.start(t)
	if _, err := d.ask(t.Context(), "p1", view.SnapshotPath); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("error %v", err)
	}
	if err := d.Lines(t.Context(), "p1", view.JournalPath, nil, func([]byte) error { return nil }); !errors.Is(err, bufio.ErrTooLong) {
		t.Errorf("error %v", err)
	}
}

// TestTunnel forwards a connection with the protocol of Kubernetes: one with a view behind it, and one without.
func TestTunnel(t *testing.T) {
	upgrader := spdy.NewResponseUpgrader()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if websocket.IsWebSocketUpgrade(r) {
			http.Error(w, "an older API server", http.StatusBadRequest)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		streams := make(chan httpstream.Stream, 2)
		c := upgrader.UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error { streams <- s; return nil })
		if c == nil {
			return
		}
		defer c.Close()
		failures, data := <-streams, <-streams
		if got := data.Headers().Get(corev1.PortHeader); got != fmt.Sprint(cluster.ViewPort) {
			t.Errorf("port %s", got)
		}
		if strings.Contains(r.URL.Path, "/away/") {
			_, _ = io.WriteString(failures, "connection refused")
			_ = failures.Close()
			<-c.CloseChan()
			return
		}
		_ = failures.Close()
		request, err := http.ReadRequest(bufio.NewReader(data))
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(data, "HTTP/1.1 200 OK\r\n\r\n%s %s", request.Method, request.URL)
		_ = data.Close()
		<-c.CloseChan()
	}))
	t.Cleanup(h.Close)
	config := &rest.Config{Host: h.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemons{Config: config, Client: client, Namespace: "xsched-system", viewer: token{text: "t", renew: time.Now().Add(time.Hour)}}
	if answer, err := d.ask(t.Context(), "there", view.StatusPath); err != nil || string(answer) != "GET /v1/status?" {
		t.Errorf("answer %q, %v", answer, err)
	}
	if _, err := d.ask(t.Context(), "away", view.StatusPath); err == nil || !strings.Contains(err.Error(), "log of container node: connection refused") {
		t.Errorf("without a view: %v", err)
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
