// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// shimLayers orders the parts of shim/core. A part is a header with the source of the same name. A part
// includes parts of its own layer or of lower ones.
var shimLayers = [][]string{
	{"compat", "base", "clock", "environment", "log", "hints_gen", "hint_fields", "options", "page", "fd", "elf", "real", "annotate", "lock", "teardown", "thread", "per_thread"},
	{"wake", "doorbell", "counters", "gate", "queue", "request", "hint", "memory"},
	{"frame", "driver", "liveness", "session", "private", "helper", "fork", "init"},
	{"work", "work_internal", "work_batch", "work_busy", "work_event", "work_limit", "work_owner", "work_queue", "work_shut", "work_table", "work_watch"},
	{"move", "move_internal", "move_block", "move_back", "move_gate", "move_host", "move_out", "move_thread", "move_want"},
}

// shimFolders orders the folders of libxsched.so. A folder includes itself and those before it; drivers
// and runtimes do not include each other.
var shimFolders = map[string][]string{
	"core":    {},
	"driver":  {"core"},
	"api":     {"core"},
	"runtime": {"core", "api"},
}

var (
	includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)
	vendorWord  = regexp.MustCompile(`(?i)nvidia|\bamd|cuda|\bhip\b|hip[A-Z]|opencl|\bkfd|\brm_|xsi_rm|xsi_cu\b|xsi_cu_|xsi_kfd|xsi_hip|xsi_cl_`)
	workWord    = regexp.MustCompile(`(?i)xsi_work|xsi_thread\.work`)
	cComment    = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
)

// shimFile is a source or header of libxsched.so, by its path below shim/.
type shimFile struct {
	path     string
	text     string
	includes []string // below shim/, without generated files and the public headers
}

func (f shimFile) folder() string { folder, _, _ := strings.Cut(f.path, "/"); return folder }

// sibling says whether a path is in another driver's or another runtime's folder.
func (f shimFile) sibling(path string) bool {
	mine, theirs := strings.Split(f.path, "/"), strings.Split(path, "/")
	return len(mine) == 3 && len(theirs) == 3 && mine[0] == theirs[0] && mine[1] != theirs[1]
}

func (f shimFile) part() string { return strings.TrimSuffix(f.path, filepath.Ext(f.path)) }

func shimFiles(t *testing.T) []shimFile {
	t.Helper()
	base := filepath.Join(root, "shim")
	var files []shimFile
	err := filepath.WalkDir(base, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), "test_") || !guest(name) ||
			!slices.Contains([]string{".c", ".h", ".inc"}, filepath.Ext(name)) {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		path, err := filepath.Rel(base, name)
		if err != nil {
			return err
		}
		f := shimFile{path: filepath.ToSlash(path), text: string(text)}
		for _, match := range includeLine.FindAllStringSubmatch(f.text, -1) {
			for _, candidate := range []string{filepath.Join(filepath.Dir(path), match[1]), match[1]} {
				if _, err := os.Stat(filepath.Join(base, candidate)); err == nil {
					f.includes = append(f.includes, filepath.ToSlash(candidate))
					break
				}
			}
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestShimLayers checks the order of the C sources by their #include lines.
func TestShimLayers(t *testing.T) {
	layerOf := map[string]int{}
	for layer, parts := range shimLayers {
		for _, part := range parts {
			layerOf["core/"+part] = layer
		}
	}
	graph := map[string][]string{}
	for _, f := range shimFiles(t) {
		mine, known := layerOf[f.part()]
		if f.folder() == "core" && !known {
			t.Errorf("%s: which layer of the core is it? See shimLayers", f.path)
		}
		for _, include := range f.includes {
			folder, _, _ := strings.Cut(include, "/")
			if folder != f.folder() && folder != "include" && !slices.Contains(shimFolders[f.folder()], folder) {
				t.Errorf("%s includes %s: %s may not depend on %s", f.path, include, f.folder(), folder)
			}
			if f.sibling(include) {
				t.Errorf("%s includes %s: drivers and runtimes do not know each other", f.path, include)
			}
			part := strings.TrimSuffix(include, filepath.Ext(include))
			if other, ok := layerOf[part]; ok && f.folder() == "core" && other > mine {
				t.Errorf("%s includes %s: from a higher layer", f.path, include)
			}
			if part != f.part() {
				graph[f.part()] = append(graph[f.part()], part)
			}
		}
		if f.folder() == "core" {
			code := cComment.ReplaceAllString(f.text, "")
			if word := vendorWord.FindString(code); word != "" {
				t.Errorf("%s: %q in code; the core knows no driver and no runtime", f.path, word)
			}
			// per_thread.h is the layout of what all layers keep for a thread.
			if word := workWord.FindString(code); word != "" && mine < layerOf["core/work"] && f.path != "core/per_thread.h" {
				t.Errorf("%s: %q in code; that is a higher layer", f.path, word)
			}
		}
	}
	if len(graph) < 30 {
		t.Fatalf("found only %d parts with includes", len(graph))
	}
	if circle := findCircle(graph); circle != nil {
		t.Errorf("include circle: %s", strings.Join(circle, " -> "))
	}
}

// TestShimVendorWords checks what counts as a vendor's name in the core.
func TestShimVendorWords(t *testing.T) {
	for text, want := range map[string]string{
		"xsi_rm_lock()": "xsi_rm", "xsi_kfd_lock()": "xsi_kfd", "xsi_hip_look()": "xsi_hip", "xsi_cl_status(event)": "xsi_cl_",
		"xsi_cu_enter()": "xsi_cu_", "hipSetDevice(0)": "hipS", "/dev/kfd": "kfd",
		"xsi_clock_now()": "", "xsi_clear_used()": "", "ship_it()": "", "damd": "", "form_a": "",
	} {
		if got := vendorWord.FindString(text); got != want {
			t.Errorf("%q: have %q, want %q", text, got, want)
		}
	}
}

// TestFindCircle checks that a circle is found.
func TestFindCircle(t *testing.T) {
	graph := map[string][]string{"a": {"b"}, "b": {"c", "d"}, "d": {"b"}}
	if circle := findCircle(graph); !slices.Equal(circle, []string{"b", "d", "b"}) && !slices.Equal(circle, []string{"d", "b", "d"}) {
		t.Errorf("have circle %v", circle)
	}
	delete(graph, "d")
	if circle := findCircle(graph); circle != nil {
		t.Errorf("have circle %v, want none", circle)
	}
}

// findCircle returns the nodes of a circle, the first one repeated at its end, or nil.
func findCircle(graph map[string][]string) []string {
	done := map[string]bool{}
	var walk func(path []string) []string
	walk = func(path []string) []string {
		node := path[len(path)-1]
		if at := slices.Index(path[:len(path)-1], node); at >= 0 {
			return path[at:]
		}
		if done[node] {
			return nil
		}
		for _, next := range graph[node] {
			if circle := walk(append(slices.Clone(path), next)); circle != nil {
				return circle
			}
		}
		done[node] = true
		return nil
	}
	for node := range graph {
		if circle := walk([]string{node}); circle != nil {
			return circle
		}
	}
	return nil
}
