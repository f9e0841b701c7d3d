// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"xsched/internal/model"
)

// A process uses a GPU if it maps the GPU's memory. Managed programs, their children and mere
// queries are excluded.
func TestUsers(t *testing.T) {
	root := t.TempDir()
	put := func(pid, parent int, maps string) {
		dir := filepath.Join(root, "proc", fmt.Sprint(pid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"maps": maps, "stat": fmt.Sprintf("%d (a (b) c) S %d 1 1", pid, parent)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if maps != "" {
			_ = os.Symlink("/bin/program", filepath.Join(dir, "exe"))
		}
	}
	const line = "7f00-7f01 rw-s 00000000 00:06 42                  %s\n"
	gpu0, gpu1 := fmt.Sprintf(line, "/dev/nvidia0"), fmt.Sprintf(line, "/dev/nvidia1")
	put(2, 0, "")                                      // a kernel thread
	put(10, 1, gpu0+gpu0+gpu1)                         // an unmanaged process on both
	put(11, 1, fmt.Sprintf(line, "/dev/nvidiactl"))    // only queries
	put(20, 1, gpu0)                                   // managed
	put(21, 20, gpu0)                                  // its child
	put(22, 21, gpu0)                                  // its grandchild
	put(30, 1, fmt.Sprintf(line, "/tmp/dev/nvidia00")) // an unrelated file
	test := func(pid, uid int, exe string) {
		put(pid, 1, gpu0)
		dir := filepath.Join(root, "proc", fmt.Sprint(pid))
		_ = os.Remove(filepath.Join(dir, "exe"))
		_ = os.Symlink(exe, filepath.Join(dir, "exe"))
		for name, text := range map[string]string{"comm": testName + "\n", "status": fmt.Sprintf("Name:\tx\nUid:\t%d\t0\t0\t0\n", uid)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	const unpacked = "/root/.cache/xsched/0123456789abcdef/selftest"
	test(40, 0, unpacked)                     // root's self-test
	test(41, os.Geteuid(), unpacked)          // the daemon's
	test(42, 12345, unpacked)                 // another user's program with the path and name
	test(43, os.Geteuid(), "/usr/bin/python") // another program with the name
	byName := map[string]model.DeviceID{"/dev/nvidia0": 7, "/dev/nvidia1": 8}
	got := System{Root: root}.users(map[int]bool{20: true}, func(_ int, name string) (model.DeviceID, bool) {
		id, ok := byName[name]
		return id, ok
	})
	if want := map[model.DeviceID][]int{7: {10, 42, 43}, 8: {10}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestVirtualMapping(t *testing.T) {
	v := &virtualTransport{path: "/run/x/vgpu.sock"}
	for name, want := range map[string]bool{
		"/memfd:vgpu:77:0000:02:00.0:/run/x/vgpu.sock (deleted)": true,
		"/memfd:vgpu:42:0000:02:00.0:/run/x/vgpu.sock (deleted)": false, // the device process itself
		"/memfd:vgpu:77:0000:02:00.0:/run/y/vgpu.sock (deleted)": false, // another device's
		"/memfd:vgpu:77:":  false,
		"/memfd:vgpu-vram": false,
		"/dev/nvidia0":     false,
	} {
		if id, ok := v.mapped(42, name); ok != want || ok && id != model.MakeDeviceID(0, 2, 0, 0) {
			t.Errorf("%s: %v, %v", name, id, ok)
		}
	}
}
