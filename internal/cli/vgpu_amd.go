// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"path/filepath"

	"xsched/internal/kfd"
	"xsched/internal/vgpu"
)

// serveKFD runs the double of the amdkfd driver.
func serveKFD(ctx context.Context, o vgpu.Options, root string, tell *readiness) error {
	config := kfd.DefaultConfig()
	if o.Devices > 0 {
		config.GPUs = o.Devices
	}
	if root == "" {
		root = filepath.Join(filepath.Dir(o.Socket), kfdRoot)
	}
	return kfd.Serve(ctx, kfd.Options{Socket: o.Socket, Root: root, Config: config, Logger: o.Logger, Ready: func() { tell.done(nil) }})
}
