// SPDX-License-Identifier: Apache-2.0

// Package vnvidia is the virtual NVIDIA GPU: a process that behaves towards its clients as the
// kernel driver and an H200 were measured to behave. The same shim, daemon and policies run on
// a machine without a GPU.
//
// The device itself is package gpumodel, a discrete-event simulation. Serve (server.go) drives
// it with the real clock behind a socket, decodes the driver's requests (rm*.go) and executes
// kernels in memory shared with the client (area.go). Package vdevice reads its ground truth.
package vnvidia

import vdevice "xsched/internal/virtual/device"

// format of the packets that carry ioctls; shim/virtual/vgpu.h is the other side.
var format = vdevice.Format{Magic: 0x4F494756, Header: 16, MaxArg: 64, MaxParams: 4096} // "VGIO"
