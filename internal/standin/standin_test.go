// SPDX-License-Identifier: Apache-2.0

package standin

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// library returns a library of this machine, which every Go test program can find: libc.
func library(t *testing.T) string {
	t.Helper()
	path := Find("libc.so.6")
	if path == "" {
		t.Fatal("no libc.so.6 was found")
	}
	return path
}

// TestImage: a stand-in has the runtime's versions, no code, and needs the shim before the runtime.
func TestImage(t *testing.T) {
	runtime := library(t)
	image, err := Image("libgpu.so.1", "libxsched.so.2", runtime)
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range file.Progs {
		if p.Flags&elf.PF_X != 0 || p.Off+p.Filesz > uint64(len(image)) {
			t.Errorf("segment %+v of %d bytes", p.ProgHeader, len(image))
		}
	}
	versions, err := symbolVersions(runtime)
	if err != nil || len(versions) == 0 {
		t.Fatalf("versions of %s: %v, %v", runtime, versions, err)
	}
	at := 0
	for _, name := range append([]string{"libgpu.so.1", "libxsched.so.2", runtime}, versions...) {
		next := bytes.Index(image, []byte("\x00"+name+"\x00"))
		if next < 0 {
			t.Errorf("%s is not in the image", name)
		}
		if slices.Contains([]string{"libgpu.so.1", "libxsched.so.2", runtime}, name) && next < at {
			t.Errorf("%s comes too early", name)
		}
		at = next
	}
	if hash("GLIBC_2.2.5") != 0x09691a75 {
		t.Errorf("hash %#x", hash("GLIBC_2.2.5"))
	}
}

// TestFindSkipsStandIns: a folder of stand-ins in the path does not hide the runtime behind it.
func TestFindSkipsStandIns(t *testing.T) {
	folder, standIns := t.TempDir(), t.TempDir()
	content, err := os.ReadFile(library(t))
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(folder, "libgpu.so.1")
	image, err := Image("libgpu.so.1", "libxsched.so.2", library(t))
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{want: content, filepath.Join(standIns, "libgpu.so.1"): image} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", standIns+":"+folder)
	if got := Find("libgpu.so.1"); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	t.Setenv("LD_LIBRARY_PATH", standIns)
	if got := Find("libgpu.so.1"); got != "" {
		t.Errorf("found %q behind a stand-in alone", got)
	}
}
