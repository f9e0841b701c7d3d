// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"path/filepath"
	"time"

	"xsched/internal/kfd"
	"xsched/internal/vgpu"
)

const kfdSocket = "kfd.sock"

// serveKFD runs the double of the amdkfd driver.
func serveKFD(ctx context.Context, o vgpu.Options, root string, idle time.Duration, tell *readiness) error {
	if idle > 0 {
		return usagef("--exit-when-idle is for --platform nvidia")
	}
	config := kfd.DefaultConfig()
	if o.Devices > 0 {
		config.GPUs = o.Devices
	}
	if root == "" {
		root = filepath.Join(filepath.Dir(o.Socket), "kfd")
	}
	return kfd.Serve(ctx, kfd.Options{Socket: o.Socket, Root: root, Config: config, Logger: o.Logger, Ready: func() { tell.done(nil) }})
}
