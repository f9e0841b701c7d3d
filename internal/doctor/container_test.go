// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestInContainer(t *testing.T) {
	host := map[string]string{"cgroup": "cgroup:[4026531835]", "pid": "pid:[4026531836]", "uts": "uts:[4026531838]", "ipc": "ipc:[4026531839]"}
	with := func(changes map[string]string) map[string]string {
		out := maps.Clone(host)
		maps.Copy(out, changes)
		return out
	}
	for name, c := range map[string]struct {
		mark       string // a file
		env        string
		namespaces map[string]string
		want       bool
	}{
		"host": {namespaces: host},
		// A virtual machine whose root file system was exported from an image.
		"host made from an image": {mark: ".dockerenv", namespaces: host},
		"unshared on a host":      {namespaces: with(map[string]string{"pid": "pid:[4026532178]"})},
		"Docker": {
			mark: ".dockerenv", want: true,
			namespaces: map[string]string{"cgroup": "cgroup:[4026532620]", "pid": "pid:[4026532559]", "uts": "uts:[4026532557]", "ipc": "ipc:[4026532558]"},
		},
		"Docker with --pid host and cgroup v1": {
			mark: ".dockerenv", want: true,
			namespaces: with(map[string]string{"uts": "uts:[4026532557]", "ipc": "ipc:[4026532558]"}),
		},
		"Podman":            {mark: "run/.containerenv", namespaces: with(map[string]string{"pid": "pid:[4026532501]"}), want: true},
		"LXC":               {env: "container", namespaces: with(map[string]string{"uts": "uts:[4026532301]"}), want: true},
		"pod with hostPID":  {env: "KUBERNETES_SERVICE_HOST", namespaces: with(map[string]string{"cgroup": "cgroup:[4026532700]"}), want: true},
		"unknown namespace": {mark: ".dockerenv", namespaces: map[string]string{}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := &examination{Machine: Machine{Root: t.TempDir(), Getenv: func(k string) string {
				if k == c.env {
					return "set"
				}
				return ""
			}}}
			if c.mark != "" {
				file(t, e.Root, c.mark, "")
			}
			for k, v := range c.namespaces {
				link := filepath.Join(e.Root, "proc/self/ns", k)
				if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(v, link); err != nil {
					t.Fatal(err)
				}
			}
			if got := e.inContainer(); got != c.want {
				t.Errorf("in a container: %t", got)
			}
		})
	}
}
