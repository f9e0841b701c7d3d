// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
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
	got := new(scanner).users(System{Root: root}, map[int]bool{20: true}, func(_ int, name string) (model.DeviceID, bool) {
		id, ok := byName[name]
		return id, ok
	}, userBytes)
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

// scanWorld is a folder of processes. Each has a number of mappings and then, if gpu is set, one of
// a GPU.
type scanWorld struct {
	t    *testing.T
	root string
}

func (w *scanWorld) process(pid, uid, mappings int, gpu bool) {
	w.t.Helper()
	dir := filepath.Join(w.root, "proc", fmt.Sprint(pid))
	text := strings.Repeat("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n", mappings)
	if gpu {
		text += "7f00-7f01 rw-s 00000000 00:06 42                  /dev/nvidia0\n"
	}
	err := os.MkdirAll(dir, 0o755)
	for name, content := range map[string]string{
		"maps": text, "stat": fmt.Sprintf("%d (p) S 1 1 1", pid), "status": fmt.Sprintf("Name:\tp\nUid:\t%d\t0\t0\t0\n", uid),
	} {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)
		}
	}
	if err == nil {
		err = os.Symlink("/bin/program", filepath.Join(dir, "exe"))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// scan scans once with a limit, and counts the bytes that the processes' mappings cost.
func (w *scanWorld) scan(c *scanner, limit int) []int {
	const gpu = model.DeviceID(7)
	return c.users(System{Root: w.root}, nil, func(_ int, name string) (model.DeviceID, bool) {
		return gpu, name == "/dev/nvidia0"
	}, limit)[gpu]
}

// A user with many mappings delays neither another user's programs nor his own new ones, and the
// scanner reads all of his processes after some scans.
func TestScanReadsABoundedAmountPerUser(t *testing.T) {
	w := &scanWorld{t: t, root: t.TempDir()}
	const limit, heavy = 64 << 10, 3000 // 3,000 mappings are 150 kB: more than twice the limit
	for pid := 100; pid < 104; pid++ {
		w.process(pid, 1000, heavy, pid == 103)
	}
	c := new(scanner)
	if got := w.scan(c, limit); len(got) != 0 {
		t.Fatalf("the first scan read everything: %v", got)
	}
	w.process(200, 1001, 10, true) // another user's
	w.process(201, 1000, 10, true) // his own, new
	if got := w.scan(c, limit); !slices.Equal(got, []int{200, 201}) {
		t.Errorf("the second scan found %v", got)
	}
	scans := 2
	for ; scans < 20 && !slices.Contains(w.scan(c, limit), 103); scans++ {
		open := 0
		for _, p := range c.known {
			if p.file != nil {
				open++
			}
		}
		if open > 1 {
			t.Fatalf("%d unfinished readings of one user", open)
		}
	}
	if scans == 20 {
		t.Error("the last process of the user with many mappings was never read")
	}
	_ = os.RemoveAll(filepath.Join(w.root, "proc", "103"))
	if got := w.scan(c, limit); !slices.Equal(got, []int{200, 201}) {
		t.Errorf("after the end of 103: %v", got)
	}
	w.process(103, 1001, 0, false) // another process with this PID
	if got := w.scan(c, limit); !slices.Equal(got, []int{200, 201}) {
		t.Errorf("with another process 103: %v", got)
	}
}

// A line that does not fit the reader's buffer does not end a reading.
func TestScanReadsLongLines(t *testing.T) {
	w := &scanWorld{t: t, root: t.TempDir()}
	w.process(100, 1000, 0, false)
	name := filepath.Join(w.root, "proc", "100", "maps")
	text := "7f00-7f01 rw-p 00000000 00:06 42  /" + strings.Repeat("x", 40<<10) + "\n7f02-7f03 rw-s 00000000 00:06 42  /dev/nvidia0\n"
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := w.scan(new(scanner), userBytes); !slices.Equal(got, []int{100}) {
		t.Errorf("found %v", got)
	}
}
