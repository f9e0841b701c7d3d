// SPDX-License-Identifier: Apache-2.0

// Package virtual lists the virtual GPUs. Each implements one driver's kernel
// interface in a separate process. A new one needs one folder and one line here.
package virtual

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"xsched/internal/embedded"
	vamd "xsched/internal/virtual/amd"
	vnvidia "xsched/internal/virtual/nvidia"
)

// MaxDevices limits the GPUs of one process.
const MaxDevices = vnvidia.MaxDevices

// MaxMemory limits the memory of each GPU.
const MaxMemory = vnvidia.MaxMemory

// Options configure Serve.
type Options struct {
	Socket  string
	Devices int // 0: the default
	// Memory of each GPU; 0: the default.
	Memory uint64
	// Driver selects a variant of the emulated driver, in the platform's own terms; empty: the default.
	Driver string
	// Root is the folder for the driver's sysfs files; empty: next to the socket.
	Root   string
	Logger *slog.Logger
	Ready  func()
}

// Platform is one virtual GPU.
type Platform struct {
	// Name is the name of the driver.
	Name string
	// Kernel and Vendor are the embedded libraries that replace the kernel
	// driver and the vendor's runtime.
	Kernel, Vendor string
	// API is the tenants' runtime interface on this platform.
	API string
	// OwnerSuspends means that only the owner of a queue can suspend it, at
	// level 2, without timeslices. A debugger reaches level 3 from outside.
	OwnerSuspends bool
	// Label and Notice go with every figure; empty: none.
	Label, Notice string
	// Serve is the device process.
	Serve func(ctx context.Context, o Options) error

	socket, watch, root string
	socketEnv, rootEnv  string
}

// All returns every platform; the first is the default.
func All() []Platform {
	return []Platform{
		{
			Name: "nvidia", Kernel: embedded.VirtualRM, Vendor: embedded.VirtualCUDA, API: "cuda", Serve: serveNVIDIA,
			socket: "vgpu.sock", socketEnv: "XSCHED_VGPU_SOCKET",
		},
		{
			Name: "amd", Kernel: embedded.VirtualKFD, Vendor: embedded.VirtualHIP, API: "hip", Serve: serveAMD,
			OwnerSuspends: true, Label: "AMD", Notice: "Measured on the virtual AMD GPU, with assumed costs; no claim about AMD hardware.",
			socket: "kfd.sock", watch: vamd.WatchSuffix, root: "kfd", socketEnv: "XSCHED_VKFD_SOCKET", rootEnv: "XSCHED_VKFD_ROOT",
		},
	}
}

// Names lists the platforms.
func Names() []string {
	var out []string
	for _, p := range All() {
		out = append(out, p.Name)
	}
	return out
}

// Default returns the default platform.
func Default() Platform { return All()[0] }

// Find returns a platform; empty is the default.
func Find(name string) (Platform, bool) {
	for _, p := range All() {
		if p.Name == name || name == "" {
			return p, true
		}
	}
	return Platform{}, false
}

// Socket returns the device's socket in a daemon's folder.
func (p Platform) Socket(dir string) string { return filepath.Join(dir, p.socket) }

// Watch returns the address of a device's query socket, for Dial.
func (p Platform) Watch(socket string) string { return socket + p.watch }

// Env returns the environment that selects the device in a daemon's folder.
func (p Platform) Env(dir string) map[string]string {
	env := map[string]string{p.socketEnv: p.Socket(dir)}
	if p.rootEnv != "" {
		env[p.rootEnv] = filepath.Join(dir, p.root)
	}
	return env
}

// Selected returns the platform and the socket of the device that an environment selects; ok is
// false without one.
func Selected(getenv func(string) string) (p Platform, socket string, ok bool) {
	for _, p := range All() {
		if socket := getenv(p.socketEnv); socket != "" {
			return p, socket, true
		}
	}
	return Platform{}, "", false
}

func serveNVIDIA(ctx context.Context, o Options) error {
	if o.Driver != "" {
		return fmt.Errorf("emulate driver %q: this platform has one driver; omit --driver", o.Driver)
	}
	return vnvidia.Serve(ctx, vnvidia.Options{Socket: o.Socket, Devices: o.Devices, Memory: o.Memory, Logger: o.Logger, Ready: o.Ready})
}

func serveAMD(ctx context.Context, o Options) error {
	config, err := vamd.ParseConfig(o.Driver)
	if err != nil {
		return err
	}
	if o.Devices > 0 {
		config.GPUs = o.Devices
	}
	if o.Memory > 0 {
		config.Memory = o.Memory
	}
	if o.Root == "" {
		o.Root = filepath.Join(filepath.Dir(o.Socket), "kfd")
	}
	return vamd.Serve(ctx, vamd.Options{Socket: o.Socket, Root: o.Root, Config: config, Logger: o.Logger, Ready: o.Ready})
}
