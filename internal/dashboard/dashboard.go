// SPDX-License-Identifier: Apache-2.0

// Package dashboard contains the built web page of the daemon and serves it.
//
// `make web` writes the page into files/ before the binary is built. Without it the package still
// compiles, and the daemon serves a page that says how to build the dashboard.
package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed missing.html files
var content embed.FS

// policy allows what the daemon itself serves and nothing else: no other host, no inline code or
// style, no frame around the page.
const policy = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// asset is one file of the page.
type asset struct {
	content []byte
	kind    string
	tag     string
}

// Built reports whether the binary contains the dashboard.
func Built() bool {
	_, err := fs.Stat(content, "files/index.html")
	return err == nil
}

// Assets is the folder of the page's files.
const Assets = "/assets/"

// Handler serves the page at "/" and its files under Assets. Its content is public.
func Handler() http.Handler {
	assets := map[string]asset{}
	add := func(url, file string) {
		text, err := content.ReadFile(file)
		if err != nil {
			return // not built
		}
		sum := sha256.Sum256(text)
		assets[url] = asset{content: text, kind: kinds[path.Ext(file)], tag: `"` + hex.EncodeToString(sum[:8]) + `"`}
	}
	if Built() {
		add("/", "files/index.html")
	} else {
		add("/", "missing.html")
	}
	names, _ := fs.Glob(content, "files/*")
	for _, name := range names {
		if base := path.Base(name); base != "README" && base != "index.html" {
			add(Assets+base, name)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		a, ok := assets[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		header.Set("Content-Type", a.kind)
		header.Set("Cache-Control", "no-cache") // a new daemon may have a new page
		header.Set("Etag", a.tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.content))
	})
}

// kinds are the content types by extension, independent of the machine's tables.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}
