// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inventory is what the API server and the node have: objects, files and folders.
type inventory map[string]bool

// takeInventory lists all objects of all kinds, and the files of the node where programs keep theirs.
func takeInventory(t *testing.T, c *Cluster) inventory {
	t.Helper()
	all := inventory{}
	kinds := strings.Fields(c.Kubectl(t, "api-resources", "--verbs=list", "-o", "name"))
	kinds = slices.DeleteFunc(kinds, func(kind string) bool { return strings.HasPrefix(kind, "events") }) // they expire
	objects := c.Kubectl(t, "get", strings.Join(kinds, ","), "--all-namespaces", "--ignore-not-found", "-o",
		"go-template={{range .items}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}}{{\"\\n\"}}{{end}}")
	for line := range strings.Lines(objects) {
		if !strings.HasPrefix(line, "Lease kube-") { // Kubernetes' own
			all[strings.TrimSpace(line)] = true
		}
	}
	for _, folder := range []string{"/run", "/etc", "/var/lib", PluginDir, PluginRegistry} {
		_ = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // it has just gone
			}
			if slices.Contains(othersFolders, path) {
				return fs.SkipDir
			}
			if !slices.Contains(sharedFolders, path) {
				all["file "+path] = true
			}
			return nil
		})
	}
	return all
}

var (
	// othersFolders belong to the test, to containerd, to the network of pods, and to the kubelet.
	othersFolders = []string{baseDir, "/run/private", "/run/netns", temporaryDir, "/run/containerd", containerdDir, "/var/lib/cni", kubeletDir}
	// sharedFolders are those of all drivers. A driver creates them if they are missing, and leaves them.
	sharedFolders = []string{"/run/cdi", PluginDir, PluginRegistry}
)

// since returns what is there now and was not there before.
func (now inventory) since(before inventory) (more []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if !before[name] {
			more = append(more, name)
		}
	}
	return more
}

// testUninstall uninstalls the chart as the documentation says, first while a pod uses a claim.
func testUninstall(t *testing.T, s site, before inventory) {
	s.c.Apply(t, claim("last", "batch", "")+"---"+holderPod("last"))
	s.c.WaitPod(t, "default", "last", "is ready", Running)
	if _, err := helm("uninstall", "xsched"); err == nil {
		t.Fatal("the chart was uninstalled while a pod used a claim")
	}
	if log := s.c.Kubectl(t, "-n", chartSpace, "logs", "job/xsched-uninstall"); !strings.Contains(log, "pods use 1 claims (default/last); delete these pods") {
		t.Errorf("log of the job: %s", log)
	}
	s.ready()
	s.c.Kubectl(t, "delete", "pod/last", "resourceclaim/last")
	helmMust(t, "uninstall", "xsched")
	if _, err := helm("status", "xsched"); err == nil {
		t.Error("helm still has the release")
	}
	s.c.Kubectl(t, "delete", "namespace", chartSpace)
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Errorf("left after the uninstall:\n%s", strings.Join(left, "\n"))
		}
	}()
	eventually(t, "nothing is left", func() bool { left = takeInventory(t, s.c).since(before); return len(left) == 0 })
}
