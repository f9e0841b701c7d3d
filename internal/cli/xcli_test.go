// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// TestXcliRequests checks the requests and output of every xcli command against upstream's formats,
// so that an upstream server accepts our xcli.
func TestXcliRequests(t *testing.T) {
	const list = `{"xqueues":[
		{"handle":65536,"device":8589934848,"level":3,"pid":11,"threshold":16,"batch_size":8,"ready":true,"suspended":false},
		{"handle":65537,"device":12884902144,"level":1,"pid":11,"threshold":4,"batch_size":2,"ready":false,"suspended":true},
		{"handle":131072,"device":8589934848,"level":2,"pid":22,"threshold":16,"batch_size":8,"ready":true,"suspended":true}],
		"processes":[{"pid":11,"cmdline":"python serve.py"},{"pid":22,"cmdline":"train"}]}`
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		asked = append(asked, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.URL.RequestURI(), body)))
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/xqueues":
			_, _ = io.WriteString(w, list)
		case r.Method == http.MethodGet && r.URL.Path == "/policy":
			_, _ = io.WriteString(w, `{"policy":4}`)
		default:
			_, _ = io.WriteString(w, `{"info":"success"}`)
		}
	}))
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, requests, shows string }{
		{"list", "GET /xqueues", "PID DEV XQUEUE STAT SCHED LV CMD"},
		{"list", "GET /xqueues", "11 GPU(0x200000100) 0x10000 RDY RUN 3 python serve.py"},
		{"list", "GET /xqueues", "11 NPU(0x300000100) 0x10001 IDL SUS 1 python serve.py"},
		{"list", "GET /xqueues", "22 GPU(0x200000100) 0x20000 RDY SUS 2 train"},
		{"config -x 0x10000 -l 2", "POST /config/0x10000?level=2; GET /xqueues", ""},
		{"config -x 65536 -t 32 -b 16", "POST /config/0x10000?batch_size=16&threshold=32; GET /xqueues", ""},
		{"config -x 0x10000 -l 1 -t 8 -b 4", "POST /config/0x10000?batch_size=4&level=1&threshold=8; GET /xqueues", ""},
		{"policy -q", "GET /policy", "UP"},
		{"policy -s -n KEDF", "POST /policy?policy=7", ""},
		{"policy -s -n mlfq", "POST /policy?policy=11", ""},
		{"policy -s -n SLO", "POST /policy?policy=103", ""},
		{"hint -x 0x10000 -p 10", `POST /hint {"hint_type":1,"handle":65536,"priority":10}`, "set to 10"},
		{"hint -x 0x10000 -p -256", `POST /hint {"hint_type":1,"handle":65536,"priority":-256}`, "set to -256"},
		{"hint --pid 11 -p 3", `GET /xqueues; POST /hint {"hint_type":1,"handle":65536,"priority":3}; POST /hint {"hint_type":1,"handle":65537,"priority":3}`, "0x10001 set to 3"},
		{"hint -x 0x20000 -u 75", `POST /hint {"hint_type":2,"handle":131072,"pid":0,"utilization":75}`, "set to 75"},
		{"hint --pid 22 -u 0", `POST /hint {"hint_type":2,"handle":0,"pid":22,"utilization":0}`, "set to 0"},
		{"hint -t 100", `POST /hint {"hint_type":3,"timeslice":100}`, "set to 100us"},
		{"hint -t 10000000", `POST /hint {"hint_type":3,"timeslice":10000000}`, "set to 10000000us"},
	} {
		var out bytes.Buffer
		asked = nil
		root := xcliRoot(&app{stdout: &out, stderr: &out})
		root.SetArgs(append([]string{"-a", host, "-p", port}, strings.Fields(c.args)...))
		root.SetOut(&out)
		root.SetErr(&out)
		if err := root.ExecuteContext(context.Background()); err != nil {
			t.Errorf("xcli %s: %v", c.args, err)
			continue
		}
		if got := strings.Join(asked, "; "); got != c.requests {
			t.Errorf("xcli %s asks\n%s, want\n%s", c.args, got, c.requests)
		}
		if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, c.shows) {
			t.Errorf("xcli %s shows %q, not %q", c.args, text, c.shows)
		}
	}
}
