// SPDX-License-Identifier: Apache-2.0

// Package edits has what a container needs to be scheduled: the shim and the way to the daemon. CDI
// specifications of claims and the adjustments for labelled pods make the same edits.
package edits

// Places in a container.
const (
	Shim   = "/usr/lib/xsched/libxsched.so"
	Client = "/run/xsched"
)

// Mount is a bind mount.
type Mount struct {
	Host, Container string
	Options         []string
}

// Edits are changes to a container.
type Edits struct {
	Mounts  []Mount
	Env     []string // KEY=VALUE
	Preload string   // library for LD_PRELOAD
	Nodes   []string // device files of the host, at the same path in the container
}

// New returns the edits for the shim and the client folder of the daemon, both paths on the host.
func New(shim, client string) Edits {
	return Edits{
		// Folders, because the daemon creates its sockets anew; read-only suffices to connect.
		Mounts: []Mount{
			{client, Client, []string{"ro", "rbind", "nosuid", "nodev", "noexec"}},
			{shim, Shim, []string{"ro", "rbind", "nosuid", "nodev"}},
		},
		Env:     []string{"XSCHED_DIR=" + Client},
		Preload: Shim,
	}
}
