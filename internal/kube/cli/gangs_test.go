// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// leaseServer is an API server with leases, whose clock may differ.
type leaseServer struct {
	offset time.Duration

	mu     sync.Mutex
	leases map[string]*coordinationv1.Lease
	posts  int
}

func (s *leaseServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(s.offset).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	name := filepath.Base(r.URL.Path)
	if r.Method != http.MethodGet {
		body, err := io.ReadAll(r.Body)
		l := &coordinationv1.Lease{}
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, l)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if r.Method == http.MethodPost {
			s.posts++
			name = l.Name
		}
		l.ResourceVersion = fmt.Sprint(len(s.leases) + 1)
		s.leases[name] = l
	}
	var answer any = s.leases[name]
	if s.leases[name] == nil {
		w.WriteHeader(http.StatusNotFound)
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// TestSuspendCommand checks suspend and resume of a group: names that no group has, a resume of what nobody
// suspended, and a clock that differs from the server's.
func TestSuspendCommand(t *testing.T) {
	s := &leaseServer{leases: map[string]*coordinationv1.Lease{}}
	server := httptest.NewServer(s)
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, output string
		offset       time.Duration
		leases       int
	}{
		{args: "resume job -n ml", output: "group ml/job is not suspended"},
		{args: "suspend job -n M/L", output: "is not a namespace"},
		{args: "suspend " + strings.Repeat("x", 200) + " -n ml", output: "is not the name of a group"},
		{args: "suspend job -n ml", offset: -20 * time.Second, output: "differs by"},
		{args: "suspend job -n ml", offset: 20 * time.Second, output: "differs by"},
		{args: "suspend job -n ml --for 25h", output: "out of range"},
		{args: "suspend job -n ml --for 5m", output: "group ml/job suspended for 5m0s\n", leases: 1},
		{args: "resume job -n ml", offset: -20 * time.Second, output: "group ml/job resumed\n", leases: 1},
	} {
		s.mu.Lock()
		s.offset = c.offset
		s.mu.Unlock()
		var output bytes.Buffer
		a := &app{stdout: &output, stderr: &output}
		a.run(a.plugin(), append(strings.Fields(c.args), "--kubeconfig", kubeconfig))
		s.mu.Lock()
		posts := s.posts
		s.mu.Unlock()
		if !strings.Contains(output.String(), c.output) || posts != c.leases {
			t.Errorf("%s, offset %s: %q, %d leases created", c.args, c.offset, output.String(), posts)
		}
	}
}

// TestGangsAPI checks that gangs have a limit of requests of their own.
func TestGangsAPI(t *testing.T) {
	config := &rest.Config{Host: "http://127.0.0.1:1", QPS: 50, Burst: 100}
	api, err := ownAPI(config)
	if err != nil {
		t.Fatal(err)
	}
	if got := api.CoordinationV1().RESTClient().GetRateLimiter().QPS(); got != 20 || config.QPS != 50 {
		t.Errorf("%g requests a second, others %g", got, config.QPS)
	}
}
