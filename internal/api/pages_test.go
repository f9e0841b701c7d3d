// SPDX-License-Identifier: Apache-2.0

package api

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestPagesAreOpenAndDataIsNot: a browser opens the page without a token, by any name and from any
// link. What the page reads passes the guard.
func TestPagesAreOpenAndDataIsNot(t *testing.T) {
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page "+r.URL.Path) })
	addr := "http://" + serveTCP(t, newWorld(), HTTPOptions{Pages: pages})
	foreign := func(r *http.Request) {
		r.Host = "gpu.example:50000"
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}
	for _, path := range []string{"/", "/assets/app.js"} {
		if status, text := do1(t, "GET", addr+path, "", foreign); status != http.StatusOK || text != "page "+path {
			t.Errorf("GET %s: %d %s", path, status, text)
		}
		if status, text := do1(t, "POST", addr+path, "", nil); status == http.StatusOK || strings.HasPrefix(text, "page") {
			t.Errorf("POST %s: %d %s", path, status, text)
		}
	}
	for _, path := range []string{"/api/v1/processes", "/api/v1/history", "/other", "/metrics", "/assets/../api/v1/processes"} {
		status, text := do1(t, "GET", addr+path, "", foreign)
		if status == http.StatusOK || strings.HasPrefix(text, "page /api") {
			t.Errorf("GET %s: %d %s", path, status, text)
		}
	}
}

// TestNoPages: without a dashboard the root is a route that does not exist.
func TestNoPages(t *testing.T) {
	addr := "http://" + serveTCP(t, newWorld(), HTTPOptions{})
	if status, text := do1(t, "GET", addr+"/", "", nil); status != http.StatusNotFound || !strings.Contains(text, "no route") {
		t.Errorf("%d %s", status, text)
	}
}
