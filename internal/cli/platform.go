// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"xsched/internal/embedded"
	"xsched/internal/virtual"
)

// findPlatform returns a virtual GPU by the name of the driver that it emulates.
func findPlatform(name string) (virtual.Platform, error) {
	p, ok := virtual.Find(name)
	if !ok {
		return p, usagef("unknown platform %q; use %s", name, platformNames())
	}
	return p, nil
}

func platformNames() string { return strings.Join(virtual.Names(), " or ") }

// otherPlatform is an example for --platform.
func otherPlatform() string {
	names := virtual.Names()
	return names[len(names)-1]
}

func checkPlatform(name string) error {
	_, err := findPlatform(name)
	return err
}

// pointAt directs a program to the virtual GPU in a directory.
func pointAt(env *environment, dir, platform string) {
	p, _ := virtual.Find(platform)
	for name, value := range p.Env(dir) {
		env.set(name, value)
	}
}

// answeringDevice returns the platform of the virtual GPU that runs in a directory, or "".
func answeringDevice(dir string) string {
	for _, p := range virtual.All() {
		if vgpuAnswers(p.Watch(p.Socket(dir))) {
			return p.Name
		}
	}
	return ""
}

// unpackFor unpacks the libraries that a program on a platform must load; "" means real GPUs.
func unpackFor(platform string) (preload, error) {
	var kernel, vendor string
	if platform != "" {
		device, err := findPlatform(platform)
		if err != nil {
			return preload{}, err
		}
		kernel, vendor = device.Kernel, device.Vendor
	}
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
			return preload{}, fmt.Errorf("the path of the cache directory %q has a blank, colon or semicolon, which the loader does not accept; set XSCHED_CACHE", path)
		}
	}
	return p, nil
}
