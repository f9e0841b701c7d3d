// SPDX-License-Identifier: Apache-2.0

package upstream

import "strings"

// Variable is an environment variable of upstream's library that this one does not use.
type Variable struct {
	Name    string
	Switch  bool   // OFF is its default
	Instead string // why, and what to use
}

// Variables returns the variables without effect. tools/hintgen passes them on to the shim.
// docs/migration.md lists all variables.
func Variables() []Variable {
	const (
		platform = "this platform is not scheduled and runs natively"
		waits    = "the daemon never waits for the program that it suspends; use XQueueSuspend with its flags in the program"
	)
	return []Variable{
		{"XSCHED_SCHEDULER_SUSPEND_SYNC_HWQ", true, "use XSCHED_AUTO_XQUEUE_LEVEL=3, which stops launched work, or XSCHED_AUTO_XQUEUE_THRESHOLD=1"},
		{"XSCHED_SCHEDULER_SUSPEND_WAIT_ALL", true, waits},
		{"XSCHED_SCHEDULER_SUSPEND_WAIT_IDLE", true, waits},
		{"XSCHED_CUDA_SINGLE_STREAM_PER_PROCESS", true, "work runs in the program's own streams; use XSCHED_GRANULARITY=process, the default"},
		{"XSCHED_CUDA_LV3_IMPL", false, "level 3 has one implementation; use XSCHED_AUTO_XQUEUE_LEVEL=3"},
		{"XSCHED_CUDART_LIB", false, "the runtime is not called; use XSCHED_CUDA_LIB for the driver library"},
		{"XSCHED_CUPTI_LIB", false, "CUPTI is not used; use XSCHED_CUDA_LIB for the driver library"},
		{"XSCHED_OPENCL_LIB", false, "the library that the program loads is used; use LD_LIBRARY_PATH"},
		{"XSCHED_ASCEND_LIB", false, platform},
		{"XSCHED_COREX_LIB", false, platform},
		{"XSCHED_COREX_RT_LIB", false, platform},
		{"XSCHED_CUDLA_LIB", false, platform},
		{"XSCHED_LEVELZERO_LIB", false, platform},
		{"XSCHED_LEVELZERO_SLICE_CNT", false, platform},
		{"XSCHED_VPI_LIB", false, platform},
	}
}

// Preloads returns upstream's names for LD_PRELOAD that this library has, too (deploy/install.mk).
func Preloads() []string { return []string{"libshimcuda.so", "libshimhip.so", "libshimopencl.so"} }

// Ignored reports whether a value of the variable asks for an effect.
func (v Variable) Ignored(value string) bool {
	return value != "" && !(v.Switch && strings.EqualFold(value, "OFF"))
}
