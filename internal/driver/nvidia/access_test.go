// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xsched/internal/model"
)

// TestAccess: a container gets the device files of one GPU and its UUID, and nothing of the other.
func TestAccess(t *testing.T) {
	root := t.TempDir()
	for i, text := range []string{
		"Model: \t X\nGPU UUID: \t GPU-a\nDevice Minor: \t 1\n", "GPU UUID: \t GPU-b\nDevice Minor: \t 0\n", "GPU UUID: \t ???\nDevice Minor: \t 2\n", "",
	} {
		folder := filepath.Join(root, "proc/driver/nvidia/gpus", model.MakeDeviceID(0, uint32(i+1), 0, 0).String())
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "information"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "dev/nvidia-uvm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := gated(newFakeRM(), measuredVersion)
	d.system = System{Root: root}
	for _, virtual := range []bool{false, true} {
		d.Virtual = virtual
		i := &instance{Driver: d}
		var got []string
		for n := range 4 {
			dev, listed := i.Describe(model.MakeDeviceID(0, uint32(n+1), 0, 0), false)
			if !listed {
				t.Fatalf("GPU %d is not listed", n)
			}
			a := dev.Access
			got = append(got, strings.Join(a.Nodes, " ")+"|"+a.Variables["NVIDIA_VISIBLE_DEVICES"]+"|"+strings.Join(a.CDI, " "))
		}
		want := []string{
			"/dev/nvidiactl /dev/nvidia1 /dev/nvidia-uvm|GPU-a|nvidia.com/gpu=GPU-a k8s.device-plugin.nvidia.com/gpu=GPU-a",
			"/dev/nvidiactl /dev/nvidia0 /dev/nvidia-uvm|GPU-b|nvidia.com/gpu=GPU-b k8s.device-plugin.nvidia.com/gpu=GPU-b",
			"/dev/nvidiactl /dev/nvidia2 /dev/nvidia-uvm||", "||", // the UUID is known later
		}
		if virtual {
			want = []string{"|GPU-a|", "|GPU-b|", "||", "||"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("virtual %v: %q", virtual, got)
		}
	}
}
