// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// Both releases are of this source; the second has a higher number.
const next = "2.99.0"

// version of this source, from the header that states it.
func version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "shim", "include", "xsched", "version.h"))
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, m := range regexp.MustCompile(`(?m)^#define XS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$`).FindAllStringSubmatch(string(text), -1) {
		parts = append(parts, m[1])
	}
	if len(parts) != 3 {
		t.Fatalf("version.h has %v", parts)
	}
	return strings.Join(parts, ".")
}

// packages builds packages for this architecture into build/packages/NAME, and returns that folder.
// TRIM= shares the build cache with other builds.
func packages(t *testing.T, name, version string) string {
	t.Helper()
	folder := "build/packages/" + name
	cmd := exec.Command("make", "-s", "-C", root, "packages", "TRIM=", "ARCHES="+runtime.GOARCH, "VERSION="+version, "DIST="+folder, "STAGE="+folder+"-stage")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return filepath.Join(root, folder)
}

// one returns the only file that matches.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func output(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLongInstall: `make install` and `make uninstall` leave a folder as it was, but for what others
// changed there.
func TestLongInstall(t *testing.T) {
	dest := t.TempDir()
	keep := filepath.Join(dest, "usr", "local", "share", "man", "man1")
	if err := os.MkdirAll(keep, 0o755); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dest, "usr", "local", "bin", "xcli") // upstream's own
	if err := os.MkdirAll(filepath.Dir(other), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, []byte("theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := output(t, "find", dest)
	install := func(target string) string {
		return output(t, "make", "-s", "-C", root, target, "DESTDIR="+dest, "STAGE="+t.TempDir())
	}
	if said := install("install"); !strings.Contains(said, "kept "+other) || read(t, other) != "theirs" {
		t.Errorf("said %q", said)
	}
	for _, name := range []string{"xserver", "x11_monitor", "x11_launcher", "queue_finder"} {
		if got := output(t, filepath.Join(filepath.Dir(other), name), "--help"); !strings.Contains(got, "Usage:") {
			t.Errorf("%s: %s", name, got)
		}
	}
	program := filepath.Join(dest, "usr", "local", "bin", "xsched")
	if got := output(t, program, "--version"); !strings.HasPrefix(got, "xsched "+version(t)) {
		t.Errorf("installed %s", got)
	}
	install("install") // again
	header := filepath.Join(dest, "usr", "local", "include", "xsched", "hint.h")
	if err := os.WriteFile(header, []byte("/* mine */\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command(program, "serve", "--http", "off", "--config", "off", "--self-test", "off", "--no-state", "--dir", filepath.Join(t.TempDir(), "d"))
	start(t, daemon)
	said, want := install("uninstall"), fmt.Sprintf("still running: process %d, %s serve --http off", daemon.Process.Pid, program)
	if !strings.Contains(said, "kept "+header) || !strings.Contains(said, want) {
		t.Errorf("said %q", said)
	}
	if got := read(t, header); got != "/* mine */\n" {
		t.Errorf("the changed header is now %q", got)
	}
	if err := os.RemoveAll(filepath.Join(dest, "usr", "local", "include")); err != nil {
		t.Fatal(err)
	}
	if now := output(t, "find", dest); now != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", now, before)
	}
}

// A package's installation, and no upgrade, tells what to do next.
func TestLongNextStep(t *testing.T) {
	tools := t.TempDir()
	for _, name := range []string{"ldconfig", "systemctl"} {
		if err := os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	for args, want := range map[string]bool{"configure": true, "1": true, "configure 1.0.0": false, "2": false, "abort-upgrade": false} {
		got := output(t, append([]string{"sh", filepath.Join(root, "deploy", "scripts", "postinstall")}, strings.Fields(args)...)...)
		if strings.Contains(got, "systemctl enable --now xsched; xsched doctor") != want {
			t.Errorf("postinstall %s: %q", args, got)
		}
	}
}

// TestLongUpstreamTargets: upstream's `make hip INSTALL_PATH=DIR` installs all into that folder.
func TestLongUpstreamTargets(t *testing.T) {
	folder := t.TempDir()
	output(t, "make", "-s", "-C", root, "hip", "INSTALL_PATH="+folder, "STAGE="+t.TempDir())
	for _, name := range []string{"bin/xserver", "bin/xcli", "lib/libshimhip.so", "lib/libhalhip.so", "include/xsched/hip/hal.h"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestLongInstallLoads: the loader finds the library after `make install` by root. Its cache is one of the
// test. A cache that can't be written is no reason to fail.
func TestLongInstallLoads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root updates the loader's cache")
	}
	prefix, cache := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	folders := filepath.Join(t.TempDir(), "ld.so.conf")
	if err := os.WriteFile(folders, []byte(filepath.Join(prefix, "lib")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(target, update string) string {
		return output(t, "make", "-s", "-C", root, target, "PREFIX="+prefix, "SYSCONFDIR="+filepath.Join(prefix, "etc"), "STAGE="+t.TempDir(), "LDCONFIG="+update)
	}
	run("install", "ldconfig -X -C "+cache+" -f "+folders)
	library := "=> " + filepath.Join(prefix, "lib", "libxsched.so.")
	if got := output(t, "/sbin/ldconfig", "-C", cache, "-p"); !strings.Contains(got, library) {
		t.Errorf("no %s in %s", library, got)
	}
	if said := run("uninstall", "false"); !strings.Contains(said, "uninstall: the loader's cache is old; run ldconfig") {
		t.Errorf("said %q", said)
	}
}

// TestLongWheel: pip installs the wheel into a fresh environment, without network, and the package
// finds the library that it brought.
func TestLongWheel(t *testing.T) {
	dist, venv := t.TempDir(), t.TempDir()
	output(t, "make", "-s", "-C", root, "wheel", "DIST="+dist)
	output(t, "python3", "-m", "venv", "--without-pip", venv)
	python := filepath.Join(venv, "bin", "python")
	// make packages builds those of other architectures, too.
	wheel, machine := one(t, filepath.Join(dist, "*.whl")), strings.TrimSpace(output(t, "uname", "-m"))
	output(t, "cp", wheel, strings.Replace(wheel, machine+".whl", "other.whl", 1))
	const documented = "pip install --no-index --find-links dist xsched"
	if !strings.Contains(read(t, filepath.Join(root, "docs", "operations.md")), documented) {
		t.Errorf("docs/operations.md does not tell %s", documented)
	}
	output(t, "python3", "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--find-links", dist, "xsched")
	got := output(t, python, "-c", "import xsched; print(xsched.library_path(), xsched.XSched.XQueueDestroy(9) == xsched.XResult.kXSchedErrorNotFound)")
	if !strings.HasPrefix(got, venv) || !strings.HasSuffix(got, " True\n") {
		t.Errorf("python says %q", got)
	}
	if got, want := strings.TrimSpace(output(t, python, "-m", "xsched")), strings.Fields(got)[0]; got != want {
		t.Errorf("python -m xsched says %s, not %s", got, want)
	}
}
