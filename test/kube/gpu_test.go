// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"xsched/internal/control"
	"xsched/internal/control/client"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// The daemon's folder on the node, and the image of a program for the virtual GPU.
const (
	daemonDir   = "/run/xsched"
	tenantImage = "localhost/tenant:1"
)

// product returns the path of a file that `make all` built.
func product(t testing.TB, name string) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(root, name))
	if err == nil {
		_, err = os.Stat(file)
	}
	if err != nil {
		t.Fatalf("%v; run make all", err)
	}
	return file
}

// loadTenant brings the image to the node, once.
var loadTenant = sync.OnceValue(func() error {
	build := func(name string) string { return filepath.Join(root, "build", "virtual", name) }
	m := newImage(tenantImage, "tenant")
	m.copyProgram("bin/tenant", build("tenant"))
	m.copy("virtual/libcuda.so.1", build("libcuda.so.1"))
	m.copy("virtual/libvgpu.so", build("libvgpu.so"))
	// The kernel's part of the virtual GPU. LD_PRELOAD is free for the shim, whose calls this one must see.
	m.text("etc/ld.so.preload", "/virtual/libvgpu.so\n")
	m.env = append(m.env, "LD_LIBRARY_PATH=/virtual", "XSCHED_VGPU_SOCKET=/virtual/vgpu.sock")
	return m.load()
})

// host is the scheduling daemon of the node with a virtual GPU, as processes of the node itself.
type host struct {
	t      testing.TB
	client *client.Client
	gpu    *vdevice.Client
}

// startHost starts the virtual GPU and the daemon, until the test ends.
func startHost(t testing.TB) *host {
	t.Helper()
	h := startGPU(t, siteGPUs)
	h.start("serve", "xsched", "serve", "--virtual", "--dir", daemonDir)
	h.answers()
	return h
}

// answers waits until the daemon answers.
func (h *host) answers() {
	h.t.Helper()
	eventually(h.t, "the daemon answers", func() bool {
		_, err := h.client.Version(context.Background())
		return err == nil
	})
}

// startGPU starts the virtual GPUs of the node, which end with the test.
func startGPU(t testing.TB, count int) *host {
	t.Helper()
	if err := loadTenant(); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, client: client.New(filepath.Join(daemonDir, "control.sock"))}
	t.Cleanup(func() { _ = os.RemoveAll(daemonDir) })
	if err := os.MkdirAll(daemonDir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.start("vgpu", "xsched", "vgpu", "--socket", filepath.Join(daemonDir, "vgpu.sock"), "--devices", fmt.Sprint(count))
	eventually(t, "the virtual GPU answers", func() bool {
		var err error
		h.gpu, err = vdevice.Dial(filepath.Join(daemonDir, "vgpu.sock"))
		return err == nil
	})
	t.Cleanup(func() { _ = h.gpu.Close() })
	return h
}

// start runs one of our binaries until the test ends. It logs to a file beside those of the cluster.
func (h *host) start(name, binary string, args ...string) {
	h.t.Helper()
	log, err := os.Create(path("log", name+".log"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(product(h.t, "bin/"+binary), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
}

// process returns the program of a pod as the daemon sees it, or nil.
func (h *host) process(namespace, pod string) *control.Process {
	list, err := h.client.List(context.Background())
	if err != nil {
		return nil
	}
	for i := range list.Processes {
		if p := &list.Processes[i]; p.Namespace == namespace && p.Pod == pod {
			return p
		}
	}
	return nil
}

// onGPU returns the virtual GPU's own record of a pod's program.
func (h *host) onGPU(pod string) gpumodel.Account {
	h.t.Helper()
	stats, err := h.gpu.Stats()
	if err != nil {
		h.t.Fatal(err)
	}
	if p := h.process("default", pod); p != nil {
		for _, account := range stats.Clients {
			if account.PID == p.PID {
				return account
			}
		}
	}
	h.t.Fatalf("the virtual GPU has no program of pod %s: %+v", pod, stats.Clients)
	return gpumodel.Account{}
}
