// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func get(t *testing.T, path string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

// TestPage reads the page as built here: the dashboard, or the page that says how to build it.
func TestPage(t *testing.T) {
	reply := get(t, "/")
	var b strings.Builder
	if err := reply.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "make web"
	if Built() {
		want = Assets + "app.js"
	}
	if reply.StatusCode != http.StatusOK || !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
	for _, inline := range []string{"<style", " style=", " onclick", "http://", "https://"} {
		if strings.Contains(b.String(), inline) {
			t.Errorf("the page has %q, which its policy forbids", inline)
		}
	}
}

// TestHeaders checks that every answer forbids other hosts, inline code and frames.
func TestHeaders(t *testing.T) {
	for _, path := range []string{"/", Assets + "app.js", Assets + "none"} {
		h := get(t, path).Header
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'self'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: no %q in %q", path, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") || strings.Contains(csp, "*") {
			t.Errorf("%s: %q", path, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("%s: %v", path, h)
		}
	}
}

func TestUnchangedPageIsNotSentAgain(t *testing.T) {
	tag := get(t, "/").Header.Get("Etag")
	if tag == "" {
		t.Fatal("no tag")
	}
	if reply := get(t, "/", "If-None-Match", tag); reply.StatusCode != http.StatusNotModified {
		t.Errorf("status %d", reply.StatusCode)
	}
}

func TestOnlyThePageIsServed(t *testing.T) {
	for _, path := range []string{Assets, Assets + "README", Assets + "index.html", Assets + "../dashboard.go", "/index.html", "/files/app.js"} {
		if reply := get(t, path); reply.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d", path, reply.StatusCode)
		}
	}
}
