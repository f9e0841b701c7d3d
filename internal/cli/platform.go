// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"xsched/internal/embedded"
	"xsched/internal/virtual"
)

// findPlatform returns a virtual GPU by the name of the driver that it implements.
func findPlatform(name string) (virtual.Platform, error) {
	p, ok := virtual.Find(name)
	if !ok {
		return p, usagef("platform %q is unknown; use %s", name, platformNames())
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

// pointAt leads a program to the virtual GPU in a folder.
func pointAt(env *environment, dir, platform string) {
	p, _ := virtual.Find(platform)
	for name, value := range p.Env(dir) {
		env.set(name, value)
	}
}

// answeringDevice says which virtual GPU answers in a folder; empty: none.
func answeringDevice(dir string) string {
	for _, p := range virtual.All() {
		if vgpuAnswers(p.Watch(p.Socket(dir))) {
			return p.Name
		}
	}
	return ""
}

// unpackFor makes what a program on a platform has to load; empty: on real GPUs.
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
			return preload{}, fmt.Errorf("the cache folder %q has a blank, colon or semicolon in its name, which the loader can't take; set XSCHED_CACHE to another", path)
		}
	}
	return p, nil
}
