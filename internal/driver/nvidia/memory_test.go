// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// sized answers about the memory like RM: it refuses parameters of another size.
type sized struct {
	*fakeRM
	bytes int
}

func (r *sized) Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	if binary.NativeEndian.Uint32(arg[8:]) != abi.NV2080_CTRL_CMD_FB_GET_INFO_V2 {
		return r.fakeRM.Ioctl(ctx, f, request, arg, params)
	}
	status := uint32(abi.NV_ERR_INVALID_PARAM_STRUCT)
	if ask, _ := abi.Decode[abi.GetFBInfo](params[:12]); len(params) == r.bytes && ask.FbInfoListSize == 1 && ask.FbInfoList.Index == 9 {
		status = abi.NV_OK
		binary.NativeEndian.PutUint32(params[8:], 140<<20) // KiB
	}
	binary.NativeEndian.PutUint32(arg[28:], status)
	return nil
}

// TestMemory: the first program on a GPU tells its memory, with the parameters of the driver's branch, and the next
// daemon knows it. A driver that refuses them changes nothing else, and neither does a GPU with instances.
func TestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		version   string
		bytes     int
		instances bool
		want      uint64
	}{
		"R535":         {"535.43.02", 436, false, 140 << 30},
		"R550":         {"550.40.07", 444, false, 140 << 30},
		"R575":         {"575.51.02", 460, false, 140 << 30},
		"R580":         {measuredVersion, 1028, false, 140 << 30},
		"other layout": {measuredVersion, 1036, false, 0},
		"instances":    {measuredVersion, 1028, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root, dir := t.TempDir(), t.TempDir()
			write(t, filepath.Join(root, "proc/driver/nvidia/gpus", fakeDevice.String(), "information"), "Device Minor: \t 3\n")
			if c.instances {
				write(t, filepath.Join(root, "proc/driver/nvidia/capabilities/gpu3/mig/gi1/access"), "")
			}
			fake := newFakeRM()
			start := func() *Driver {
				d := gated(&sized{fake, c.bytes}, c.version)
				d.system = System{Root: root}
				d.release.Load().grade = Measured // as after a self-test
				if err := d.CacheLevels(dir); err != nil {
					t.Fatal(err)
				}
				return d
			}
			d := start()
			s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
			defer s.Close()
			fake.newContext(t, s, 0xc1d00001, fakeGPU, 4)
			caps, err := s.Resolve(t.Context())
			if err != nil || caps[fakeDevice].MaxLevel != model.LevelInterrupt {
				t.Errorf("%+v, %v", caps, err)
			}
			for i, d := range []*Driver{d, start()} {
				if got, _ := (&instance{Driver: d}).Describe(fakeDevice, false); got.MemoryBytes != c.want || got.Divided != c.instances {
					t.Errorf("daemon %d: %+v, want %d bytes", i, got, c.want)
				}
			}
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
