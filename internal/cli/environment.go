// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"path/filepath"
	"slices"
	"strings"

	"xsched/internal/control/upstream"
	"xsched/internal/embedded"
)

// environment is an ordered list of NAME=VALUE. The first of duplicate names counts, as in getenv.
type environment struct{ pairs []string }

func newEnvironment(pairs []string) *environment {
	return &environment{slices.Clone(pairs)}
}

func (e *environment) list() []string { return e.pairs }

func (e *environment) get(name string) string {
	for _, pair := range e.pairs {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

func (e *environment) set(name, value string) {
	e.pairs = slices.DeleteFunc(e.pairs, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	e.pairs = append(e.pairs, name+"="+value)
}

// prepend puts paths in front of a list for the dynamic loader and removes older entries with the
// same file name, so that a nested `xsched run` of another version does not load two shims.
func (e *environment) prepend(name string, paths ...string) {
	list := slices.Clone(paths)
	for old := range strings.FieldsFuncSeq(e.get(name), func(r rune) bool { return r == ':' || (name == "LD_PRELOAD" && r == ' ') }) {
		same := func(path string) bool {
			return path == old || (name == "LD_PRELOAD" && preloadName(path) == preloadName(old))
		}
		if !slices.ContainsFunc(paths, same) {
			list = append(list, old)
		}
	}
	e.set(name, strings.Join(list, ":"))
}

// preloadName is a library's file name, or the shim's for its other names (deploy/install.mk).
func preloadName(path string) string {
	name := filepath.Base(path)
	if strings.HasPrefix(name, embedded.Shim+".") || slices.Contains(upstream.Preloads(), name) {
		return embedded.Shim
	}
	return name
}
