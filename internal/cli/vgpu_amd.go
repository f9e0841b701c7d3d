// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"path/filepath"

	"xsched/internal/control"
	vamd "xsched/internal/virtual/amd"
	vnvidia "xsched/internal/virtual/nvidia"
)

// serveKFD runs the double of the amdkfd driver.
func serveKFD(ctx context.Context, o vnvidia.Options, root string, tell *readiness) error {
	config := vamd.DefaultConfig()
	if o.Devices > 0 {
		config.GPUs = o.Devices
	}
	if root == "" {
		root = filepath.Join(filepath.Dir(o.Socket), control.VirtualKFDRoot)
	}
	return vamd.Serve(ctx, vamd.Options{Socket: o.Socket, Root: root, Config: config, Logger: o.Logger, Ready: func() { tell.done(nil) }})
}
