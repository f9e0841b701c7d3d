// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// virtualBranch is the driver's whose layouts the virtual GPU has.
const virtualBranch = 580

// memory asks RM, on a process's own subdevice, how much of a GPU's memory programs can have; 0: unknown. The
// layout is that of the published drivers; the answer was not compared with hardware. It is informational.
func (d *Driver) memory(ctx context.Context, u unit, gpu model.DeviceID) uint64 {
	major, _, _ := strings.Cut(d.Version(), ".")
	branch, err := strconv.Atoi(major)
	if d.Virtual {
		branch, err = virtualBranch, nil
	}
	if err != nil || d.divided(gpu) { // RM would report the memory of the process's instance
		return 0
	}
	ask := abi.GetFBInfo{FbInfoListSize: 1, FbInfoList: abi.FBInfo{Index: abi.NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE}}
	params := make([]byte, abi.FBInfoBytes(branch))
	copy(params, abi.Bytes(&ask))
	if d.control(ctx, u.client.file, u.client.handle, u.subdevice, abi.NV2080_CTRL_CMD_FB_GET_INFO_V2, params) != nil {
		return 0
	}
	answer, _ := abi.Decode[abi.GetFBInfo](params[:abi.Size[abi.GetFBInfo]()])
	return uint64(answer.FbInfoList.Data) << 10
}

// divided reports whether a GPU has instances.
func (d *Driver) divided(gpu model.DeviceID) bool {
	instances := d.system.MIG()
	return len(instances) > 0 && slices.ContainsFunc(d.system.GPUs(), func(g GPU) bool {
		id, err := model.ParseDeviceID(g.PCI)
		return err == nil && id == gpu && slices.Contains(instances, g.Minor)
	})
}
