// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// mayImport lists the packages of this module that a package may import. Imports point from decisions
// outwards: model <- policy <- engine <- the loop and the simulator. A package without an entry
// fails the test, so that adding a package decides its place. "x/*" stands for the packages in folder x.
var mayImport = map[string][]string{
	"internal/model":            {},
	"internal/clock":            {"internal/model", "internal/planted"},
	"internal/identity":         {},
	"internal/identity/*":       {},
	"internal/config":           {"internal/identity", "internal/model", "internal/policy", "internal/strict"},
	"internal/atomicfile":       {},
	"internal/standin":          {},
	"internal/state":            {"internal/atomicfile"},
	"internal/version":          {},
	"internal/strict":           {},
	"internal/logging":          {},
	"internal/notify":           {},
	"internal/health":           {},
	"internal/sensor":           {"internal/control", "internal/health", "internal/model"},
	"internal/alert":            {"internal/control", "internal/health"},
	"internal/budget":           {"internal/identity"},
	"internal/wire":             {"internal/model"},
	"internal/wire/*":           {},
	"internal/policy":           {"internal/model"},
	"internal/predict":          {"internal/model"},
	"internal/engine":           {"internal/model", "internal/policy", "internal/predict"},
	"internal/residency":        {"internal/model"},
	"internal/planted":          {},
	"internal/quarantine":       {"internal/budget", "internal/seqpacket"},
	"internal/quarantine/*":     {},
	"internal/driver":           {"internal/quarantine", "internal/identity", "internal/model", "internal/planted", "internal/wire"},
	"internal/driver/*":         {"internal/atomicfile", "internal/quarantine", "internal/planted", "internal/clock", "internal/identity", "internal/model", "internal/wire", "internal/seqpacket", "internal/driver", "internal/driver/nvidia/*", "internal/driver/amd/*"},
	"internal/driver/registry":  {"internal/driver", "internal/driver/*"},
	"internal/seqpacket":        {},
	"internal/driver/nvidia/*":  {},
	"internal/driver/amd/*":     {},
	"internal/record":           {"internal/atomicfile", "internal/model", "internal/engine"},
	"internal/sim":              {"internal/model", "internal/strict", "internal/policy", "internal/engine", "internal/virtual/model", "internal/record", "internal/report", "internal/residency"},
	"internal/sim/fleet":        {"internal/model", "internal/sim", "internal/report", "internal/virtual/model"},
	"internal/sim/fleet/traces": {"internal/sim/fleet"},
	"tools/capacity":            {"internal/report", "internal/sim/fleet"},
	"internal/meter":            {"internal/driver", "internal/model", "internal/wire"},
	"internal/terms":            {"internal/identity", "internal/model"},
	"internal/loop":             {"internal/meter", "internal/residency", "internal/terms", "internal/budget", "internal/clock", "internal/identity", "internal/record", "internal/model", "internal/wire", "internal/engine", "internal/policy", "internal/driver", "internal/driver/gate"},
	"internal/session":          {"internal/budget", "internal/quarantine", "internal/health", "internal/clock", "internal/identity", "internal/model", "internal/wire", "internal/driver", "internal/seqpacket", "internal/loop"},
	"internal/session/*":        {"internal/budget", "internal/quarantine", "internal/clock", "internal/identity", "internal/model", "internal/wire", "internal/driver", "internal/seqpacket", "internal/loop", "internal/engine", "internal/session"},
	"internal/guardian":         {"internal/atomicfile", "internal/identity", "internal/clock", "internal/health", "internal/model", "internal/wire", "internal/driver", "internal/seqpacket"},
	"internal/history":          {"internal/identity", "internal/model", "internal/engine", "internal/record", "internal/loop"},
	"internal/ledger":           {"internal/atomicfile", "internal/health", "internal/model", "internal/state"},
	"internal/keeper":           {"internal/control", "internal/health", "internal/identity", "internal/loop", "internal/model", "internal/session", "internal/state"},
	"internal/journal":          {"internal/atomicfile", "internal/identity", "internal/control", "internal/planted"},
	"internal/control":          {"internal/identity", "internal/model"},
	"internal/control/*":        {"internal/identity", "internal/model", "internal/policy", "internal/control"},
	"internal/daemon": {
		"internal/budget", "internal/clock", "internal/config", "internal/control", "internal/identity", "internal/model", "internal/quarantine", "internal/wire", "internal/policy", "internal/engine", "internal/state",
		"internal/driver", "internal/driver/registry", "internal/logging", "internal/loop", "internal/residency", "internal/session", "internal/guardian", "internal/record", "internal/history", "internal/journal",
		"internal/alert", "internal/health", "internal/keeper", "internal/ledger", "internal/sensor",
	},
	"internal/screen":         {},
	"internal/top":            {"internal/control", "internal/control/*", "internal/screen"},
	"internal/top/toptest":    {"internal/control"},
	"internal/api":            {"internal/budget", "internal/health", "internal/quarantine", "internal/identity", "internal/model", "internal/policy", "internal/control", "internal/control/*"},
	"internal/embedded":       {},
	"internal/dashboard":      {},
	"internal/report":         {"internal/atomicfile"},
	"internal/amdlog":         {"internal/report"},
	"internal/doctor":         {"internal/driver"},
	"internal/virtual/model":  {"internal/model"},
	"internal/virtual":        {"internal/embedded", "internal/virtual", "internal/virtual/*"},
	"internal/virtual/device": {"internal/model", "internal/virtual/model"},
	"internal/virtual/*":      {"internal/clock", "internal/model", "internal/seqpacket", "internal/virtual/model", "internal/virtual/device"},
	"internal/virtual/nvidia": {"internal/clock", "internal/model", "internal/seqpacket", "internal/virtual/model", "internal/virtual/device", "internal/driver/nvidia/*"},
	"internal/virtual/amd":    {"internal/clock", "internal/model", "internal/seqpacket", "internal/virtual/model", "internal/virtual/device", "internal/driver/amd/*"},
	"internal/virtual/amd/*":  {"internal/virtual/amd"},
	"internal/bench":          {"internal/clock", "internal/model", "internal/report", "internal/control", "internal/control/*", "internal/embedded", "internal/virtual", "internal/virtual/device", "internal/virtual/model"},
	"internal/bench/*":        {"internal/bench", "internal/bench/benchtest", "internal/clock", "internal/model", "internal/policy", "internal/report", "internal/control", "internal/control/*", "internal/engine", "internal/embedded", "internal/record", "internal/virtual"},
	"internal/window":         {"internal/identity", "internal/model", "internal/strict"},
	"internal/window/*":       {},
	"internal/cli": {
		"internal/alert", "internal/atomicfile", "internal/budget", "internal/sim/fleet", "internal/sim/fleet/traces",
		"internal/config", "internal/engine", "internal/identity", "internal/loop", "internal/state", "internal/model", "internal/wire", "internal/policy", "internal/control", "internal/control/*", "internal/daemon", "internal/guardian", "internal/health",
		"internal/api", "internal/dashboard", "internal/embedded", "internal/bench/*", "internal/doctor", "internal/journal", "internal/amdlog", "internal/logging", "internal/notify",
		"internal/sim", "internal/record", "internal/report", "internal/driver", "internal/driver/registry", "internal/screen", "internal/standin", "internal/top", "internal/virtual", "internal/virtual/device", "internal/version", "internal/window",
	},
	"internal/kube/classes":   {"internal/kube/params"},
	"internal/kube/edits":     {},
	"internal/kube/evict":     {"internal/kube/cluster", "internal/kube/params"},
	"internal/kube/cdi":       {"internal/kube/edits"},
	"internal/kube/nri":       {"internal/control", "internal/health", "internal/kube/classes", "internal/kube/cluster", "internal/kube/edits"},
	"internal/kube/cluster":   {},
	"internal/kube/gang":      {"internal/control"},
	"internal/kube/gangs":     {"internal/control", "internal/health", "internal/kube/gang"},
	"internal/kube/view":      {"internal/control", "internal/kube/cluster", "internal/top"},
	"internal/kube/fleetview": {"internal/control", "internal/kube/cluster", "internal/kube/view"},
	"internal/kube/uninstall": {"internal/kube/cluster", "internal/kube/gangs"},
	"internal/kube/params":    {"internal/model"},
	"internal/kube/node":      {"internal/control", "internal/control/*", "internal/embedded", "internal/health", "internal/kube/*", "internal/virtual"},
	"internal/kube/cli":       {"internal/control", "internal/control/*", "internal/health", "internal/kube/*", "internal/logging", "internal/model", "internal/report", "internal/screen", "internal/top", "internal/version"},
	"cmd/xsched":              {"internal/cli"},
	"cmd/xsched-kube":         {"internal/kube/cli"},
	"tools/apigen":            {},
	"tools/webgen":            {"internal/api", "internal/control", "internal/model"},
	"tools/hintgen":           {"internal/model", "internal/control/upstream"},
	"tools/image":             {},
	"tools/fuzz":              {},
	"tools/site":              {},
	"tools/pictures":          {"internal/model", "internal/sim", "internal/policy", "internal/record", "internal/report", "internal/screen", "internal/top", "internal/top/*"},
	"tools/manual":            {"internal/cli", "tools/manual/pages"},
	"tools/manual/kube":       {"internal/kube/cli", "tools/manual/pages"},
	"tools/manual/pages":      {},
	"tools/wiregen":           {},
	"tools/hookgen":           {},
	"tools/amdloggen":         {},
	"tools/rmlayout":          {"tools/rmlayout/*"},
	"tools/runtests":          {"test/delays"},
	"tools/rmlayout/*":        {},
}

// goFile is a parsed source file.
type goFile struct {
	path    string // from the root, with slashes
	text    string
	ast     *ast.File
	imports []string
}

func (f goFile) isTest() bool      { return strings.HasSuffix(f.path, "_test.go") }
func (f goFile) isGenerated() bool { return ast.IsGenerated(f.ast) }

func sources(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	for _, top := range []string{"cmd", "internal", "tools", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(name, ".go") {
				return nil
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			f := goFile{path: filepath.ToSlash(relative), text: string(text), ast: parsed}
			for _, spec := range parsed.Imports {
				f.imports = append(f.imports, strings.Trim(spec.Path.Value, `"`))
			}
			files = append(files, f)
			return nil
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return files
}

// rule finds the entry of a package, or of its folder.
func rule(pkg string) ([]string, bool) {
	if allowed, ok := mayImport[pkg]; ok {
		return allowed, true
	}
	allowed, ok := mayImport[path.Dir(pkg)+"/*"]
	return allowed, ok
}

func TestImportDirection(t *testing.T) {
	for _, f := range sources(t) {
		pkg := path.Dir(f.path)
		if pkg == "internal" || strings.HasPrefix(pkg, "test/") || f.isTest() {
			continue // tests may import anything
		}
		allowed, ok := rule(pkg)
		if !ok {
			t.Errorf("%s: package %s has no entry in mayImport", f.path, pkg)
			continue
		}
		for _, imported := range f.imports {
			own, ok := strings.CutPrefix(imported, "xsched/")
			if !ok || own == pkg {
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool { return a == own || a == path.Dir(own)+"/*" }) {
				t.Errorf("%s: %s may not import %s", f.path, pkg, own)
			}
		}
	}
}

// TestDaemonImporters holds everything but the command line to package control: a request
// type must not bring the daemon with it. Tests of the daemon itself may import it.
func TestDaemonImporters(t *testing.T) {
	for _, f := range sources(t) {
		pkg := path.Dir(f.path)
		if slices.Contains(f.imports, "xsched/internal/daemon") &&
			!strings.HasPrefix(pkg, "cmd/") && pkg != "internal/cli" && pkg != "internal/daemon" {
			t.Errorf("%s: %s imports the daemon; use internal/control", f.path, pkg)
		}
	}
}

func TestSourceRules(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range sources(t) {
		pkg := path.Dir(f.path)
		for element := range strings.SplitSeq(pkg, "/") {
			if slices.Contains([]string{"util", "utils", "common", "pkg", "helpers", "misc"}, element) {
				t.Errorf("%s: name the package for its content, not %q", f.path, element)
			}
		}
		if !strings.HasPrefix(f.text, "// SPDX-License-Identifier: Apache-2.0\n") {
			t.Errorf("%s: the first line is not the SPDX licence identifier", f.path)
		}
		if slices.Contains(f.imports, "C") {
			t.Errorf("%s: imports C; C code belongs into shim/", f.path)
		}
		if slices.Contains(f.imports, "unsafe") && !f.isTest() && !f.isGenerated() &&
			!strings.HasSuffix(f.path, "_unsafe.go") {
			t.Errorf("%s: unsafe belongs into a file *_unsafe.go", f.path)
		}
		for _, declaration := range f.ast.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			// Each program that links the package, and each test, can be the quarantine process.
			if ok && function.Recv == nil && function.Name.Name == "init" && !strings.HasPrefix(f.path, "internal/quarantine/") {
				t.Errorf("%s: has an init function; use an explicit registry", f.path)
			}
		}
		if f.isTest() {
			for _, command := range []string{`"apt-get"`, `"pip"`, `"curl"`, `"wget"`} {
				if command == `"pip"` && strings.Contains(f.text, `"--no-index"`) {
					continue // installs a file that the test built
				}
				if pkg != "internal" && strings.Contains(f.text, command) {
					t.Errorf("%s: runs %s; tests do not download, see tools/setup", f.path, command)
				}
			}
			continue
		}
		documented[pkg] = documented[pkg] || f.ast.Doc != nil
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("%s: the package has no doc comment", pkg)
		}
	}
}

// longFunctions are those with more than maxFunction lines that remain to be split.
var longFunctions = []string{
	"internal/amdlog.Read", "internal/amdlog.Compare", "internal/bench/demo.addScenario", "internal/bench/modes.start",
	"internal/cli.run", "internal/top.Examine", "internal/virtual/amd.debugTrap", "internal/virtual/nvidia.construct",
}

const maxFunction = 60

// TestFunctionsAreShort: a function that fits on a screen can be read as a whole.
func TestFunctionsAreShort(t *testing.T) {
	seen := 0
	for _, f := range sources(t) {
		if f.isTest() || f.isGenerated() || !strings.HasPrefix(f.path, "internal/") {
			continue
		}
		for _, declaration := range f.ast.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			seen++
			lines := 1 + strings.Count(f.text[function.Pos()-f.ast.FileStart:function.End()-f.ast.FileStart], "\n")
			if lines > maxFunction && !slices.Contains(longFunctions, path.Dir(f.path)+"."+function.Name.Name) {
				t.Errorf("%s: %s has %d lines, more than %d; split it", f.path, function.Name.Name, lines, maxFunction)
			}
		}
	}
	if seen < 4000 {
		t.Errorf("found only %d functions", seen)
	}
}

// TestDecisionsStartNoGoroutine: the race detector skips these packages (make test-race), and their
// decisions can be replayed, because nothing in them runs concurrently.
func TestDecisionsStartNoGoroutine(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range sources(t) {
		pkg := path.Dir(f.path)
		if f.isTest() || !slices.Contains([]string{"internal/engine", "internal/policy", "internal/predict"}, pkg) {
			continue
		}
		seen[pkg] = true
		if slices.Contains(f.imports, "sync") {
			t.Errorf("%s: imports sync", f.path)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: starts a goroutine", f.path)
			}
			return true
		})
	}
	if len(seen) != 3 {
		t.Errorf("found only %v", seen)
	}
}

// TestShimSourceRules checks the rules for C sources that a compiler does not check.
func TestShimSourceRules(t *testing.T) {
	forbidden := []string{"exit(", "_exit(", "abort(", "printf(", "perror(", "signal(", "sigaction("}
	err := filepath.WalkDir(filepath.Join(root, "shim"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		kind := filepath.Ext(name)
		if kind != ".c" && kind != ".h" && kind != ".S" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		head, _, _ := strings.Cut(string(text), "\n")
		if !strings.Contains(head, "SPDX-License-Identifier: Apache-2.0") {
			t.Errorf("%s: the first line is not the SPDX licence identifier", name)
		}
		// What is loaded into other people's programs: guests do not do this.
		if kind != ".c" || strings.HasPrefix(filepath.Base(name), "test_") || !guest(name) {
			return nil
		}
		for number, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, "//")
			if trimmed := strings.TrimSpace(code); strings.HasPrefix(trimmed, "*") || strings.HasPrefix(trimmed, "/*") {
				continue
			}
			for _, call := range forbidden {
				if calls(code, call) {
					t.Errorf("%s:%d: %s in an application's process", name, number+1, strings.TrimSuffix(call, "("))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// guest says whether a file of shim/ becomes part of libxsched.so.
func guest(name string) bool {
	path, err := filepath.Rel(filepath.Join(root, "shim"), name)
	part, _, _ := strings.Cut(filepath.ToSlash(path), "/")
	return err == nil && slices.Contains([]string{"core", "driver", "runtime", "api"}, part)
}

// calls reports whether code calls a function of exactly this name.
func calls(code, call string) bool {
	for at := 0; ; {
		i := strings.Index(code[at:], call)
		if i < 0 {
			return false
		}
		at += i
		if at == 0 || !isWord(code[at-1]) {
			return true
		}
		at += len(call)
	}
}

func isWord(b byte) bool {
	return b == '_' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}
