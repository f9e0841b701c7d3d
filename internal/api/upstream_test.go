// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// TestUpstreamXcli sends every request of XSched's own xcli over TCP, byte for byte. Handles are
// hexadecimal with 0x. A configuration has all three parameters, 0 and -1 for no change. Some posts
// have neither a body nor a content type.
func TestUpstreamXcli(t *testing.T) {
	w := newWorld()
	for i := range w.list.Processes {
		w.list.Processes[i].UID = os.Getuid() // so that any user may run the test
	}
	addr := serveTCP(t, w, HTTPOptions{})
	send := func(method, target, body string) (int, string) {
		t.Helper()
		conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		var b strings.Builder
		fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\nUser-Agent: cpp-httplib/0.19.0\r\n", method, target, addr)
		if method == http.MethodPost {
			if body != "" {
				b.WriteString("Content-Type: application/json\r\n")
			}
			fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
		}
		if _, err := io.WriteString(conn, b.String()+"Connection: close\r\n\r\n"+body); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		if kind := answer.Header.Get("Content-Type"); kind != "application/json" {
			t.Errorf("%s %s: content type %q", method, target, kind)
		}
		return answer.StatusCode, strings.TrimSpace(string(text))
	}
	const success = `{"info":"success"}`
	for _, c := range []struct {
		what, method, target, body string
		answer, did                string
	}{
		{"list, top", "GET", "/xqueues", "", `{"xqueues":[{"handle":65536,"device":8589934848,"level":3,"pid":101,`, ""},
		{"config -l", "POST", "/config/0x10000?level=2&threshold=-1&batch_size=-1", "", success, "hint 101 level=2"},
		{"config -t -b", "POST", "/config/0x20000?level=0&threshold=32&batch_size=16", "", success, "hint 202 in_flight=32 batch=16"},
		{"config of nothing", "POST", "/config/0x10000?level=0&threshold=-1&batch_size=-1", "", `{"warning":"no change"}`, ""},
		{"policy -q", "GET", "/policy", "", `{"policy":1,"name":"HPF"}`, ""},
		{"policy -s -n UP", "POST", "/policy?policy=4", "", success, "policy UP 0"},
		{"hint -x -p", "POST", "/hint", "{\n\t\"handle\" : 65536,\n\t\"hint_type\" : 1,\n\t\"priority\" : -3\n}", success, "hint 101 priority=-3"},
		{"hint -x -u", "POST", "/hint", "{\n\t\"handle\" : 131072,\n\t\"hint_type\" : 2,\n\t\"pid\" : 0,\n\t\"utilization\" : 75\n}", success, "hint 202 utilization=75"},
		{"hint --pid -u", "POST", "/hint", "{\n\t\"handle\" : 0,\n\t\"hint_type\" : 2,\n\t\"pid\" : 202,\n\t\"utilization\" : 25\n}", success, "hint 202 utilization=25"},
		{"hint -t", "POST", "/hint", "{\n\t\"hint_type\" : 3,\n\t\"timeslice\" : 5000\n}", success, "policy  5000"},
		{"active window", "POST", "/hint", "{\n\t\"display\" : 7,\n\t\"hint_type\" : 7,\n\t\"pid\" : 101\n}", success, "hint 101 window=true"},
	} {
		if strings.HasPrefix(c.did, "policy") && os.Getuid() != 0 {
			continue // owned by root here
		}
		status, answer := send(c.method, c.target, c.body)
		if did := w.taken(); status != http.StatusOK || !strings.HasPrefix(answer, c.answer) || did != c.did {
			t.Errorf("%s: %d %s\ndid %q, want %s and %q", c.what, status, answer, did, c.answer, c.did)
		}
	}
}
