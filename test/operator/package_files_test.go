// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestLongPackageFiles: all packages have the same files and the same version, and a second build has
// the same bytes.
func TestLongPackageFiles(t *testing.T) {
	for _, need := range []string{"dpkg-deb", "rpm2cpio", "cpio"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("no %s: run make setup", need)
		}
	}
	v := version(t)
	first, second := packages(t, "first", v), packages(t, "second", v)
	for _, kind := range []string{"*.deb", "*.rpm", "*.tar.gz", "*.whl"} {
		a, err := os.ReadFile(one(t, filepath.Join(first, kind)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(one(t, filepath.Join(second, kind)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("two builds of %s differ", kind)
		}
	}

	deb, rpm, tarball := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "usr", "local")
	output(t, "dpkg-deb", "-x", one(t, filepath.Join(first, "*.deb")), deb)
	// The names in the archive are absolute; this machine must not get the files.
	output(t, "sh", "-c", `rpm2cpio "$1" | (cd "$2" && cpio -idm --quiet --no-absolute-filenames)`, "sh", one(t, filepath.Join(first, "*.rpm")), rpm)
	if err := os.MkdirAll(tarball, 0o755); err != nil {
		t.Fatal(err)
	}
	// As docs/operations.md tells users.
	output(t, "tar", "-C", tarball, "--strip-components=1", "--no-overwrite-dir", "-xf", one(t, filepath.Join(first, "*.tar.gz")))
	for _, name := range []string{"xsched.service", "xsched-guardian.service"} {
		file := filepath.Join(tarball, "lib/systemd/system", name)
		text := read(t, file)
		if !strings.Contains(text, "ExecStart=/usr/local/bin/xsched ") {
			t.Errorf("%s of the tarball starts another program: %s", name, text)
		}
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "/usr/local/bin/xsched", "/usr/bin/xsched")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Where the distributions differ.
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	same := strings.NewReplacer("usr/lib64/", "usr/lib/"+triplet+"/", "usr/lib64", "usr/lib/"+triplet, "zsh/site-functions", "zsh/vendor-completions")
	local := strings.NewReplacer("usr/local/lib/systemd/", "usr/lib/systemd/", "usr/local/lib/", "usr/lib/"+triplet+"/", "usr/local/", "usr/", "zsh/site-functions", "zsh/vendor-completions")
	fromDeb, configuration := contents(t, deb, nil), func(s string) bool { return strings.HasPrefix(s, "etc/xsched/config.yaml ") }
	differ(t, "deb", fromDeb, "rpm", contents(t, rpm, same))
	differ(t, "deb", slices.DeleteFunc(slices.Clone(fromDeb), configuration), "tarball", contents(t, filepath.Join(tarball, "../.."), local))
	for _, want := range []string{
		"usr/bin/xsched", "usr/include/xsched/version.h", "usr/share/man/man1/xsched-run.1", "etc/xsched/config.yaml",
		"usr/lib/systemd/system/xsched.service", "usr/lib/systemd/system/xsched-guardian.service", "usr/lib/systemd/system/xsched-guardian.slice",
		"usr/share/bash-completion/completions/xsched", "usr/share/fish/vendor_completions.d/xsched.fish", "usr/share/zsh/vendor-completions/_xsched",
		"usr/share/xsched/" + filepath.Base(one(t, filepath.Join(first, "*.whl"))),
		"usr/share/xsched/prometheus/xsched-alerts.yml", "usr/share/xsched/prometheus/xsched-fleet.yml", "usr/share/xsched/grafana/xsched.json",
	} {
		if !slices.ContainsFunc(fromDeb, func(s string) bool { return strings.HasPrefix(s, want+" ") }) {
			t.Errorf("the package lacks %s", want)
		}
	}

	// The program contains the dashboard, whose files the build embeds.
	page := read(t, filepath.Join(root, "internal/dashboard/files/app.js"))
	if program := read(t, filepath.Join(deb, "usr/bin/xsched")); len(page) < 10_000 || !strings.Contains(program, page) {
		t.Errorf("the program has no dashboard; its page has %d bytes", len(page))
	}

	// One version everywhere.
	lib := filepath.Join(deb, "usr/lib", triplet)
	soname := "libxsched.so." + strings.SplitN(v, ".", 2)[0]
	if to, err := os.Readlink(filepath.Join(lib, soname)); err != nil || to != "libxsched.so."+v {
		t.Errorf("%s leads to %s, %v", soname, to, err)
	}
	for what, text := range map[string]string{
		"xsched --version": output(t, filepath.Join(deb, "usr/bin/xsched"), "--version"),
		"xsched version":   output(t, filepath.Join(deb, "usr/bin/xsched"), "version", "--json"),
		"the deb":          output(t, "dpkg-deb", "-f", one(t, filepath.Join(first, "*.deb")), "Version"),
		"xsched.pc":        read(t, filepath.Join(lib, "pkgconfig", "xsched.pc")),
		"the wheel":        one(t, filepath.Join(first, "*.whl")),
		"the tarball":      one(t, filepath.Join(first, "*.tar.gz")),
		"the rpm":          one(t, filepath.Join(first, "*.rpm")),
		"the manual":       read(t, filepath.Join(deb, "usr/share/man/man1/xsched.1")),
		"the C macro":      macro(t, filepath.Join(deb, "usr/include")),
	} {
		if !regexp.MustCompile(`(^|[^0-9.])` + regexp.QuoteMeta(v) + `($|[^0-9])`).MatchString(text) {
			t.Errorf("%s has another version than %s: %.200s", what, v, text)
		}
	}
}

// differ reports what only one of two packages has.
func differ(t *testing.T, a string, inA []string, b string, inB []string) {
	t.Helper()
	without := func(all, others []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(others, s) })
	}
	if x, y := without(inA, inB), without(inB, inA); len(x)+len(y) > 0 {
		t.Errorf("only in the %s: %v\nonly in the %s: %v", a, x, b, y)
	}
}

// macro returns what a C program sees.
func macro(t *testing.T, include string) string {
	t.Helper()
	cmd := exec.Command("gcc", "-E", "-P", "-I", include, "-")
	cmd.Stdin = strings.NewReader("#include <xsched/version.h>\nXS_VERSION_STRING\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(`"`, "", " ", "").Replace(string(out))
}

// contents lists files and links with their mode, target or checksum. xsched.pc and XSchedConfig.cmake name
// folders, so their content does not count.
func contents(t *testing.T, folder string, rename *strings.Replacer) []string {
	t.Helper()
	listing := output(t, "sh", "-c", `cd "$1" && find . -type f ! -name xsched.pc ! -name XSchedConfig.cmake -exec sha256sum {} + | sed 's|^\([^ ]*\) *\./\(.*\)|\2 \1|'; find . \( -name xsched.pc -o -name XSchedConfig.cmake \) -printf '%P -\n'; find . -type l -printf '%P %l\n'; find . -type f -printf '%P %m\n'`, "sh", folder)
	if rename != nil {
		listing = rename.Replace(listing)
	}
	lines := strings.Split(strings.TrimSpace(listing), "\n")
	slices.Sort(lines)
	return lines
}
