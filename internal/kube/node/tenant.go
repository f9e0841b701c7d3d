// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"xsched/internal/control"
	"xsched/internal/embedded"
	"xsched/internal/kube/edits"
	"xsched/internal/virtual"
)

// Folders in a container of a tenant of the virtual GPU.
const (
	virtualLibraries = "/usr/lib/xsched/virtual"
	virtualDevice    = "/run/xsched-device"
)

// tenantEdits returns what containers need to be scheduled by a daemon. libraries is a folder of the
// host, in which each version of a library has a folder of its own: running containers keep theirs.
func tenantEdits(libraries string, daemon *control.Version) (edits.Edits, error) {
	shim, err := embedded.UnpackInto(libraries, embedded.Shim)
	if err != nil {
		return edits.Edits{}, err
	}
	e := edits.New(shim, filepath.Join(daemon.Dir, control.ClientDir))
	if !daemon.Virtual {
		return e, nil
	}
	platform, ok := virtual.Find(daemon.Platform)
	if !ok {
		return edits.Edits{}, fmt.Errorf("the daemon has a virtual GPU of the unknown platform %q; install the same version of xsched and xsched-kube", daemon.Platform)
	}
	// The stand-ins for the driver: the library in front of the kernel driver is preloaded, and the
	// vendor's library is found by its name. The load generator is a program to try, for any image with
	// glibc 2.34.
	for _, name := range []string{platform.Kernel, platform.Vendor, embedded.Tenant} {
		path, err := embedded.UnpackInto(libraries, name)
		if err != nil {
			return edits.Edits{}, err
		}
		e.Mounts = append(e.Mounts, edits.Mount{Host: path, Container: filepath.Join(virtualLibraries, name), Options: []string{"ro", "rbind", "nosuid", "nodev"}})
	}
	e.Preload += ":" + filepath.Join(virtualLibraries, platform.Kernel)
	e.Env = append(e.Env, "LD_LIBRARY_PATH="+virtualLibraries)
	inside := platform.Env(virtualDevice)
	for name, host := range platform.Env(daemon.Dir) {
		e.Env = append(e.Env, name+"="+inside[name])
		e.Mounts = append(e.Mounts, edits.Mount{Host: host, Container: inside[name], Options: []string{"ro", "rbind", "nosuid", "nodev", "noexec"}})
	}
	slices.Sort(e.Env)
	return e, nil
}

// edits returns the edits for the present daemon.
func (n *Node) edits(ctx context.Context) (edits.Edits, error) {
	v, err := n.daemon.Version(ctx)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("the daemon of this node does not answer: %w; see the log of container daemon", err)
	}
	e, err := tenantEdits(n.libraryFolder(), &v)
	if err == nil {
		n.libs.use(n.libraryFolder(), &e)
	}
	return e, err
}

func (n *Node) libraryFolder() string { return filepath.Join(n.options.Data, "lib") }
