// SPDX-License-Identifier: Apache-2.0

// Package vnvidia is the virtual GPU: a process that behaves towards its clients as
// the NVIDIA kernel driver and an H200 were measured to behave, so that the same
// shim, daemon and policies run on a machine without a GPU.
//
// The device itself is package gpumodel, a discrete-event simulation. Serve
// (server.go) drives it with the real clock behind a socket, decodes the driver's
// requests (rm*.go) and executes the kernels' arithmetic in memory shared with the client
// (area.go). Dial (client.go) reads the device's ground truth: who held it when.
package vnvidia

import gpumodel "xsched/internal/virtual/model"

// The model's names, as clients and the server of the device use them.
type (
	GPU      = gpumodel.GPU
	Group    = gpumodel.Group
	Channel  = gpumodel.Channel
	Work     = gpumodel.Work
	Account  = gpumodel.Account
	Totals   = gpumodel.Totals
	Faults   = gpumodel.Faults
	Timeline = gpumodel.Timeline
	Span     = gpumodel.Span
	Wait     = gpumodel.Wait
	Kind     = gpumodel.Kind
)

// The kinds of a Span.
const (
	KindRun    = gpumodel.KindRun
	KindSwitch = gpumodel.KindSwitch
	KindIdle   = gpumodel.KindIdle
)
