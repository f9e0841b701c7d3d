// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"xsched/internal/control"
	"xsched/internal/embedded"
	vamd "xsched/internal/virtual/amd"
)

// Whose driver the virtual GPU plays.
const (
	platformNVIDIA = "nvidia"
	platformAMD    = "amd"

	envKFD     = "XSCHED_VKFD_SOCKET"
	envKFDRoot = "XSCHED_VKFD_ROOT"
)

func checkPlatform(name string) error {
	if name != platformNVIDIA && name != platformAMD {
		return usagef("platform %q is unknown; use nvidia or amd", name)
	}
	return nil
}

// deviceSocket is the virtual GPU's in a daemon's folder.
func deviceSocket(dir, platform string) string {
	if platform == platformAMD {
		return filepath.Join(dir, control.VirtualKFDSocket)
	}
	return filepath.Join(dir, control.VirtualSocket)
}

// watchSocket is where a virtual GPU tells what it did.
func watchSocket(socket, platform string) string {
	if platform == platformAMD {
		return socket + vamd.WatchSuffix
	}
	return socket
}

// pointAt leads a program to the virtual GPU in a folder.
func pointAt(env *environment, dir, platform string) {
	if platform == platformAMD {
		env.set(envKFD, deviceSocket(dir, platform))
		env.set(envKFDRoot, filepath.Join(dir, control.VirtualKFDRoot))
		return
	}
	env.set(envVGPU, deviceSocket(dir, platformNVIDIA))
}

// answeringDevice says which virtual GPU answers in a folder; empty: none.
func answeringDevice(dir string) string {
	for _, platform := range []string{platformNVIDIA, platformAMD} {
		if vgpuAnswers(watchSocket(deviceSocket(dir, platform), platform)) {
			return platform
		}
	}
	return ""
}

// stage is what a virtual GPU puts below a program: a library in the place of the kernel's
// driver, and one in the place of the vendor's.
func stage(platform string) (kernel, vendor string) {
	switch platform {
	case platformAMD:
		return embedded.VirtualKFD, embedded.VirtualHIP
	case platformNVIDIA:
		return embedded.VirtualRM, embedded.VirtualCUDA
	}
	return "", ""
}

// unpackFor makes what a program on a platform has to load; empty: on real GPUs.
func unpackFor(platform string) (preload, error) {
	kernel, vendor := stage(platform)
	var p preload
	for _, name := range []string{embedded.Shim, kernel} {
		if name == "" {
			continue
		}
		path, err := embedded.Unpack(name)
		if err != nil {
			return preload{}, err
		}
		p.libraries = append(p.libraries, path)
	}
	if vendor != "" {
		path, err := embedded.Unpack(vendor)
		if err != nil {
			return preload{}, err
		}
		p.folder = filepath.Dir(path)
	}
	for _, path := range append(p.libraries, p.folder) {
		if strings.ContainsAny(path, ": \t\n;") {
			return preload{}, fmt.Errorf("the cache folder %q has a blank, colon or semicolon in its name, which the loader can't take; set XSCHED_CACHE to another", path)
		}
	}
	return p, nil
}
