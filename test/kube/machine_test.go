// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control"
	"xsched/internal/model"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
	"xsched/test/kube/cgroups"
)

const (
	machineVariable = "XSCHED_KUBE_MACHINE" // the number of a machine
	gpuList         = daemonDir + "/proc/driver/nvidia/gpus"
	networkFile     = "network.conflist" // a copy, because the machine has its own folder
	driverLate      = "driver-late"      // a file in the machine's folder: its driver is not loaded at the boot
)

// machine is a node in namespaces of its own, with the network of the cluster: containerd, kubelet and four
// virtual GPUs, at the usual paths. Its disk outlives it.
type machine struct {
	c      *Cluster
	number int
	cmd    *exec.Cmd
	gpu    *vdevice.Client
}

// stateDir is where the chart keeps the daemon's state on a machine. A mount point itself can't be removed.
const stateDir = "/var/lib/machine/xsched"

// diskFolders of a machine outlive a boot.
var diskFolders = []string{kubeletDir, containerdDir, "/var/lib/cni", filepath.Dir(stateDir), "/var/log/pods", "/var/log/containers", "/etc/cni/net.d", CDIDir}

func machineName(number int) string    { return fmt.Sprintf("machine%d", number) }
func machineAddress(number int) string { return fmt.Sprintf("10.89.0.%d", 10+number) }
func (m *machine) name() string        { return machineName(m.number) }

// disk returns a path on a machine's disk.
func disk(number int, elements ...string) string {
	return path(append([]string{machineName(number)}, elements...)...)
}

// inside returns a path of the running machine.
func (m *machine) inside(elements ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(m.cmd.Process.Pid), "root"}, elements...)...)
}

// newMachine boots a machine that ends with the test.
func newMachine(t *testing.T, c *Cluster, number int) *machine {
	t.Helper()
	m := &machine{c: c, number: number}
	if text, err := exec.Command(program("busybox"), "ip", "addr", "add", machineAddress(number)+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, folder := range diskFolders {
		if err := errors.Join(os.MkdirAll(folder, 0o755), os.MkdirAll(disk(number, folder), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		m.off()
		_, _ = c.TryKubectl("", "delete", "node", m.name())
		_ = os.RemoveAll(disk(number))
	})
	network, err := os.ReadFile("/etc/cni/net.d/10-bridge.conflist")
	if err = errors.Join(err, os.WriteFile(path(networkFile), network, 0o644)); err != nil {
		t.Fatal(err)
	}
	m.boot(t)
	return m
}

// boot starts the machine and waits until its node is ready.
func (m *machine) boot(t *testing.T) {
	t.Helper()
	began := metav1.NewTime(time.Now().Truncate(time.Second))
	m.cmd = again(stageMachine, machineVariable+"="+strconv.Itoa(m.number))
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the virtual GPUs of "+m.name()+" answer", func() bool {
		var err error
		m.gpu, err = vdevice.Dial(m.inside(daemonDir, "vgpu.sock"))
		return err == nil
	})
	eventually(t, m.name()+" is ready since its boot", func() bool {
		node, err := m.c.Client.CoreV1().Nodes().Get(context.Background(), m.name(), metav1.GetOptions{})
		if err != nil || !nodeReady(node) {
			return false
		}
		for _, condition := range node.Status.Conditions {
			if condition.LastHeartbeatTime.Before(&began) && condition.Type == "Ready" {
				return false
			}
		}
		return true
	})
}

// off ends all processes of the machine at once.
func (m *machine) off() {
	if m.cmd != nil {
		_ = m.gpu.Close()
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// xsched runs xsched on the machine: the daemon wants to know the process that asks.
func (m *machine) xsched(args ...string) ([]byte, error) {
	file, err := filepath.Abs(filepath.Join(root, "bin", "xsched"))
	if err != nil {
		return nil, err
	}
	pid := strconv.Itoa(m.cmd.Process.Pid)
	return exec.Command(program("busybox"), append([]string{"nsenter", "-t", pid, "-m", "-p", file}, args...)...).Output()
}

// pods returns the pod of each program that the daemon manages, by its process.
func (m *machine) pods() (map[int]string, error) {
	text, err := m.xsched("list", "--json", "--dir", daemonDir)
	if err != nil {
		return nil, err
	}
	var list control.List
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	out := map[int]string{}
	for i := range list.Processes {
		out[list.Processes[i].PID] = list.Processes[i].Pod
	}
	return out, nil
}

// spans returns what the GPUs have executed since a time; nil: they did not answer, and are asked again later.
func (m *machine) spans(since time.Duration) []gpumodel.Span {
	spans, err := m.gpu.Timeline(model.Time(since), 1<<62)
	if err != nil {
		_ = m.gpu.Close()
		if gpu, err := vdevice.Dial(m.inside(daemonDir, "vgpu.sock")); err == nil {
			m.gpu = gpu
		}
		return nil
	}
	return spans
}

// monotonic returns the time of the GPUs' record.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // can't fail
	return time.Duration(now.Nano())
}

// takeGPU takes a GPU off the bus, and giveGPU brings it back.
func (m *machine) takeGPU(address string) error {
	return os.Rename(m.inside(gpuList, address), m.inside(daemonDir, address))
}

func (m *machine) giveGPU(address string) error {
	return os.Rename(m.inside(daemonDir, address), m.inside(gpuList, address))
}

// loadDriver brings the GPUs of a machine whose driver was not loaded at the boot.
func (m *machine) loadDriver() error {
	return os.Rename(m.inside(daemonDir, driverLate), m.inside(gpuList))
}

// runMachine is PID 1 of a machine: it prepares the namespaces, starts the node's programs and reaps orphans.
func runMachine() int {
	number, _ := strconv.Atoi(os.Getenv(machineVariable))
	if err := errors.Join(enterMachine(number), startMachine(number)); err != nil {
		return complain(fmt.Errorf("%s: %w", machineName(number), err))
	}
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(-1, &status, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return complain(fmt.Errorf("%s: no program is left: %w", machineName(number), err))
		}
	}
}

// enterMachine gives the machine its own cgroups, /proc, disk and empty folders.
func enterMachine(number int) error {
	trees, err := cgroups.Find(os.ReadFile)
	if err != nil {
		return err
	}
	groups, err := ownGroups(trees, fmt.Sprintf("%s-%d", machineName(number), time.Now().UnixNano()))
	if err == nil {
		err = makeGroups(groups)
	}
	if err == nil {
		err = enterGroups(trees, groups)
	}
	if err != nil {
		return err
	}
	m := &mounter{}
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	m.mount("proc", "/proc", "proc", 0, "")
	m.cgroups(trees)
	for _, folder := range diskFolders {
		m.mount(disk(number, folder), folder, "", unix.MS_BIND, "")
	}
	const aside = "/mnt" // for what the new /run shall have of the old one
	m.mount(baseDir, aside, "", unix.MS_BIND, "")
	m.tmpfs("/run")
	for _, folder := range []string{baseDir, temporaryDir, daemonDir} {
		m.folder(folder)
	}
	m.mount(aside, baseDir, "", unix.MS_MOVE, "")
	m.tunables()
	m.mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	return errors.Join(m.err, unix.Sethostname([]byte(machineName(number))))
}

// startMachine starts the GPUs, containerd and the kubelet.
func startMachine(number int) error {
	gpus := &part{
		name: "xsched", as: machineName(number) + "-vgpu", file: filepath.Join(root, "bin", "xsched"),
		args: []string{"vgpu", "--socket", filepath.Join(daemonDir, "vgpu.sock"), "--devices", strconv.Itoa(gpusOfNode)},
	}
	containerd := &part{name: "containerd", as: machineName(number) + "-containerd", args: []string{"-c", path("containerd.toml")}}
	if err := errors.Join(gpus.start(), containerd.start(), writeMachineFiles(number)); err != nil {
		return err
	}
	for _, err := os.Stat(gpuList); err != nil; _, err = os.Stat(gpuList) {
		time.Sleep(poll)
	}
	if _, err := os.Stat(disk(number, driverLate)); err == nil {
		if err := os.Rename(gpuList, filepath.Join(daemonDir, driverLate)); err != nil {
			return err
		}
	}
	for end := time.Now().Add(soon); ; time.Sleep(poll) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := output(ctx, "", "ctr", "-a", containerdSocket, "version")
		if cancel(); err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	if err := loadMachine(number); err != nil {
		return err
	}
	kubelet := &part{name: "kubelet", as: machineName(number) + "-kubelet", args: []string{
		"--config=" + disk(number, "kubelet.json"), "--kubeconfig=" + userConfig(machineName(number)), "--root-dir=" + kubeletDir,
		"--cert-dir=" + disk(number, "pki"), "--hostname-override=" + machineName(number), "--node-ip=" + machineAddress(number),
		"--node-labels=fleet=true",
	}}
	return kubelet.start()
}

// loadMachine brings the images to the machine's disk, once.
func loadMachine(number int) error {
	done := disk(number, "images")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	return errors.Join(importBase(), loadBinding(), loadOwn(), os.WriteFile(done, nil, 0o644))
}

// writeMachineFiles writes the configuration of the kubelet and of the pods' network: that of the other node, with
// addresses of its own.
func writeMachineFiles(number int) error {
	kubelet, err := os.ReadFile(path("kubelet.json"))
	if err != nil {
		return err
	}
	network, err := os.ReadFile(path(networkFile))
	if err != nil {
		return err
	}
	pods := fmt.Sprintf("10.88.%d.0/24", 10+number)
	return errors.Join(
		os.WriteFile(disk(number, "kubelet.json"), []byte(strings.Replace(string(kubelet), `"address":"`+nodeAddress+`"`,
			fmt.Sprintf(`"address":%q,"healthzPort":0`, machineAddress(number)), 1)), 0o644),
		os.WriteFile("/etc/cni/net.d/10-bridge.conflist", []byte(strings.NewReplacer(podRange, pods, `"cni0"`, fmt.Sprintf(`"cni%d"`, number)).Replace(string(network))), 0o644))
}
