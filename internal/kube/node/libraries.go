// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"xsched/internal/kube/edits"
)

// libraryGrace is how long a version of the libraries stays that new containers no longer get. A container
// that is being created may still refer to it. Running containers keep their mounts without the files.
const libraryGrace = 10 * time.Minute

// libraries knows which versions of the libraries are in use.
type libraries struct {
	mu     sync.Mutex
	used   map[string]bool      // names of folders; nil: not known
	unused map[string]time.Time // since when
}

// use notes the versions that new containers get.
func (l *libraries) use(folder string, e *edits.Edits) {
	used := map[string]bool{}
	for _, m := range e.Mounts {
		if rest, ok := strings.CutPrefix(m.Host, folder+"/"); ok {
			version, _, _ := strings.Cut(rest, "/")
			used[version] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = used
}

// prune removes versions of the libraries that have not been in use for a while.
func (n *Node) prune(now time.Time) {
	l := &n.libs
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.used) == 0 {
		return
	}
	entries, err := os.ReadDir(n.libraryFolder())
	if err != nil {
		return
	}
	unused := map[string]time.Time{}
	for _, e := range entries {
		name := e.Name()
		if l.used[name] {
			continue
		}
		since, known := l.unused[name]
		if !known {
			since = now
		}
		if unused[name] = since; now.Sub(since) < libraryGrace {
			continue
		}
		if err := os.RemoveAll(filepath.Join(n.libraryFolder(), name)); err != nil {
			n.options.Log.Warn("old version of the libraries not removed", "err", err)
		}
	}
	l.unused = unused
}
