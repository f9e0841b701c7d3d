// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"os"
	"strings"

	"xsched/internal/driver"
)

// visibleVariable lists GPUs for the container runtime. The UUID, because an ordinal counts the GPUs that
// the reader sees: it names another GPU on the host than in a container.
//
// CUDA_VISIBLE_DEVICES stays unset. A container with the device files of one GPU sees that one as
// device 0, and programs that parse the variable as a number do not understand a UUID.
const visibleVariable = "NVIDIA_VISIBLE_DEVICES"

// access returns what a container needs for a GPU.
func (i *instance) access(g GPU) (a driver.Access) {
	if g.UUID != "" && !strings.Contains(g.UUID, "?") { // of a GPU that nobody has opened yet
		a.Variables = map[string]string{visibleVariable: g.UUID}
		// Names of the toolkit's specification, and of that of the device plugin.
		a.CDI = []string{"nvidia.com/gpu=" + g.UUID, "k8s.device-plugin.nvidia.com/gpu=" + g.UUID}
	}
	if i.Virtual {
		a.CDI = nil
		return a
	}
	if g.Minor < 0 {
		return a
	}
	a.Nodes = []string{"/dev/nvidiactl", fmt.Sprintf("/dev/nvidia%d", g.Minor)}
	// A container fails to start with a file that does not exist, and the module of these may be absent.
	for _, name := range []string{"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} {
		if _, err := os.Stat(i.system.path(name)); err == nil {
			a.Nodes = append(a.Nodes, name)
		}
	}
	return a
}
