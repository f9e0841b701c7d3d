// SPDX-License-Identifier: Apache-2.0

package driver

// Access is what a container needs to use one GPU and no other. The accesses of several GPUs add up.
// The zero value means that the driver can't say.
type Access struct {
	// Nodes are the device files of the GPU. The kernel refuses those that a container does not have.
	Nodes []string
	// Variables are read by the vendor's container runtime, which adds the GPUs that they list and no
	// others. Values of several GPUs are joined with commas.
	Variables map[string]string
	// CDI are names that the vendor's own CDI specifications may give to the GPU, the best one first. One
	// that exists brings the vendor's libraries too, and replaces Nodes and Variables.
	CDI []string
}
