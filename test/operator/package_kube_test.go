// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestLongKubePackage: the packages of xsched-kube have the same files. The program in them has the
// version of this source, and is the kubectl plugin under its other name.
func TestLongKubePackage(t *testing.T) {
	for _, need := range []string{"dpkg-deb", "rpm2cpio", "cpio"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("no %s: run make setup", need)
		}
	}
	v, dist := version(t), "build/packages/kube"
	output(t, "make", "-s", "-C", root, "packages-kube", "TRIM=", "ARCHES="+runtime.GOARCH, "VERSION="+v, "DIST="+dist, "STAGE="+dist+"-stage")
	built := filepath.Join(root, dist, "kube")

	deb, rpm, archive := t.TempDir(), t.TempDir(), t.TempDir()
	output(t, "dpkg-deb", "-x", one(t, filepath.Join(built, "*.deb")), deb)
	output(t, "sh", "-c", `rpm2cpio "$1" | (cd "$2" && cpio -idm --quiet --no-absolute-filenames)`, "sh", one(t, filepath.Join(built, "*.rpm")), rpm)
	output(t, "tar", "-xzf", one(t, filepath.Join(built, "*.tar.gz")), "--strip-components=1", "-C", archive)
	same := strings.NewReplacer("zsh/site-functions", "zsh/vendor-completions")
	files := contents(t, deb, nil)
	if other := contents(t, rpm, same); !slices.Equal(files, other) {
		t.Errorf("the deb has %v\nthe rpm has %v", files, other)
	}
	if other := contents(t, archive, same); len(other) != len(files) {
		t.Errorf("the deb has %v\nthe tarball has %v", files, other)
	}
	for _, want := range []string{
		"usr/bin/xsched-kube", "usr/share/man/man1/xsched-kube-node.1", "usr/share/man/man1/kubectl-xsched-top.1",
		"usr/share/bash-completion/completions/xsched-kube", "usr/share/xsched/kubernetes/classes.yaml", "usr/share/xsched/helm/xsched/Chart.yaml",
	} {
		if !slices.ContainsFunc(files, func(s string) bool { return strings.HasPrefix(s, want+" ") }) {
			t.Errorf("the package lacks %s", want)
		}
	}
	if got := output(t, "dpkg-deb", "-f", one(t, filepath.Join(built, "*.deb")), "Package", "Version"); got != "Package: xsched-kube\nVersion: "+v+"-1\n" {
		t.Errorf("the deb is %s", got)
	}
	for name, want := range map[string]string{"xsched-kube": "xsched-kube " + v, "kubectl-xsched": "kubectl-xsched " + v} {
		if got := output(t, filepath.Join(deb, "usr/bin", name), "--version"); !strings.HasPrefix(got, want) {
			t.Errorf("%s --version says %s", name, got)
		}
	}
}
