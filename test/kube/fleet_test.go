// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/kube/node"
)

// pair is two machines on which the chart installed XSched.
type pair struct {
	t        *testing.T
	c        *Cluster
	machines []*machine
}

func (f pair) in(t *testing.T) pair { return pair{t, f.c, f.machines} }

// fleetSettings of the chart: only on the machines.
func fleetSettings(more ...string) []string {
	return append(append(slices.Clone(settings), "--set-string", "nodeSelector.fleet=true", "--set", fmt.Sprintf("virtual.devices=%d,paths.state=%s", gpusOfNode, stateDir)), more...)
}

// gpus returns the GPUs without a taint that machines publish, as "machine/device".
func (f pair) gpus() (all []string) {
	found, err := f.c.Client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=gpu.xsched.dev",
	})
	if err != nil {
		return nil
	}
	for i := range found.Items {
		pool := &found.Items[i].Spec
		for _, d := range pool.Devices {
			if len(d.Taints) == 0 && strings.HasPrefix(pool.Pool.Name, "machine") {
				all = append(all, pool.Pool.Name+"/"+d.Name)
			}
		}
	}
	return all
}

// publish waits until machines publish this number of GPUs.
func (f pair) publish(gpus int) {
	f.t.Helper()
	began := time.Now()
	eventually(f.t, fmt.Sprintf("%d GPUs are published", gpus), func() bool { return len(f.gpus()) == gpus })
	f.t.Logf("%d GPUs published after %.1f s", gpus, time.Since(began).Seconds())
}

// ready waits until the DaemonSet runs and all GPUs are published.
func (f pair) ready() {
	f.t.Helper()
	f.c.Kubectl(f.t, "-n", chartSpace, "rollout", "status", "daemonset/xsched", "--timeout="+soon.String())
	f.publish(gpusOfNode * len(f.machines))
}

// allocated returns the GPU of each claim. The shares of a GPU never are above 100.
func (f pair) allocated() map[string]string {
	f.t.Helper()
	claims, err := f.c.Client.ResourceV1().ResourceClaims("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	out, shares := map[string]string{}, map[string]int64{}
	for i := range claims.Items {
		if a := claims.Items[i].Status.Allocation; a != nil {
			r := a.Devices.Results[0]
			gpu, share := r.Pool+"/"+r.Device, r.ConsumedCapacity[node.Share]
			out[claims.Items[i].Name] = gpu
			if shares[gpu] += share.Value(); shares[gpu] > 100 {
				f.t.Errorf("claims have %d %% of %s", shares[gpu], gpu)
			}
		}
	}
	return out
}

// addUsed adds the GPUs that the program of each pod has used since a time, by the record of the GPUs.
func (f pair) addUsed(out map[string][]string, since time.Duration) {
	for _, m := range f.machines {
		pods, err := m.pods()
		if err != nil {
			continue // the daemon restarts
		}
		for _, s := range m.spans(since) {
			gpu := m.name() + "/" + node.DeviceName(fmt.Sprintf("0000:%02x:00.0", s.Device+1))
			if pod := pods[s.PID]; pod != "" && !slices.Contains(out[pod], gpu) {
				out[pod] = append(out[pod], gpu)
			}
		}
	}
}

// mixed are the classes and shares of pods, in turn. 0 is best effort.
var mixed = []struct {
	class string
	share int
}{{"latency", 0}, {"batch", 30}, {"latency", 10}, {"batch", 0}, {"latency", 50}, {"batch", 0}, {"latency", 20}, {"batch", 0}}

// launch makes pods with a claim of their name and a program that works.
func (f pair) launch(prefix, restart string, pods, kinds int) (names []string) {
	f.t.Helper()
	var all strings.Builder
	for i := range pods {
		name, kind := fmt.Sprintf("%s-%d", prefix, i), mixed[i%kinds]
		names = append(names, name)
		script := strings.Replace(tenantScript(name, "--kernel-us 20000"), "exec tenant", "echo loop >&3; exec tenant", 1)
		pod := claimPod(name, bindingImage, strings.Replace(script, "mkfifo", "rm -f /tmp/in; mkfifo", 1), "resourceClaimName: "+name)
		both := claim(name, kind.class, fmt.Sprintf(`, capacity: {requests: {share: "%d"}}`, kind.share)) + "---" +
			strings.Replace(pod, "restartPolicy: Never", "restartPolicy: "+restart, 1) + "---"
		all.WriteString(strings.ReplaceAll(both, "metadata: {name: "+name+"}", "metadata: {name: "+name+", labels: {wave: "+prefix+"}}"))
	}
	if _, err := f.c.TryKubectl(all.String(), "apply", "-f", "-"); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { f.end(prefix) })
	return names
}

// check waits until each pod's program works, and compares its GPU with that of its claim. It returns the number of
// claims per GPU.
func (f pair) check(names []string) map[string]int {
	f.t.Helper()
	var allocated map[string]string
	used := map[string][]string{}
	since, end := monotonic(), time.Now().Add(2*soon)
	for {
		allocated = f.allocated()
		f.addUsed(used, since)
		since = monotonic() - time.Second
		missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return len(used[name]) > 0 })
		if len(missing) == 0 {
			break
		}
		if time.Now().After(end) {
			for _, m := range f.machines {
				pods, err := m.pods()
				f.t.Logf("%s: %v, %v", m.name(), pods, err)
			}
			f.t.Fatalf("%d of %d programs do not work: %v; used %v", len(missing), len(names), missing, used)
		}
		time.Sleep(500 * time.Millisecond)
	}
	counts := map[string]int{}
	for _, name := range names {
		if !slices.Equal(used[name], []string{allocated[name]}) {
			f.t.Errorf("claim %s has %q, its program used %q", name, allocated[name], used[name])
		}
		counts[allocated[name]]++
	}
	return counts
}

// end deletes the pods and claims of a wave. The next one may come before all of them are gone.
func (f pair) end(wave string) {
	f.t.Helper()
	f.c.Kubectl(f.t, "delete", "pods,resourceclaims", "-l", "wave="+wave, "--grace-period=1", "--wait=false")
}

// empty waits until no claim is left.
func (f pair) empty() {
	f.t.Helper()
	eventually(f.t, "no claim is left", func() bool { return len(f.allocated()) == 0 })
}

// TestFleet: on two machines of four GPUs each, programs use the GPUs of their claims, by the record of the GPUs, and
// no GPU is sold twice: 200 pods of mixed classes, then while a GPU falls off, XSched is upgraded and a machine
// reboots, whose driver is late.
func TestFleet(t *testing.T) {
	c := StartControl(t)
	f := pair{t: t, c: c}
	for number := range 2 {
		f.machines = append(f.machines, newMachine(t, c, number+1))
	}
	if c.node { // of other tests; the chart's uninstall may run there
		if err := loadOwn(); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = c.TryKubectl("", "create", "namespace", chartSpace) // may be there, from another test
	c.Apply(t, metricsSecret)
	helmMust(t, append([]string{"install", "xsched", chart}, fleetSettings()...)...)
	t.Cleanup(func() {
		// The uninstall refuses while pods use claims, and the last wave may still be ending.
		c.Kubectl(t, "delete", "pods,resourceclaims", "--all", "--grace-period=1", "--timeout=60s")
		helmMust(t, "uninstall", "xsched")
	})
	t.Cleanup(func() { keepLogs(c) })
	f.ready()
	t.Run("Mixed", func(t *testing.T) { f.in(t).testMixed() })
	t.Run("BestEffort", func(t *testing.T) { f.in(t).testBestEffort() })
	t.Run("GPUFalls", func(t *testing.T) { f.in(t).testGPUFalls() })
	t.Run("Upgrade", func(t *testing.T) { f.in(t).testFleetUpgrade() })
	t.Run("Reboot", func(t *testing.T) { f.in(t).testReboot() })
}

// testMixed runs 200 pods in waves: the machine of this test has few cores.
func (f pair) testMixed() {
	for wave := range 5 {
		began := time.Now()
		name := fmt.Sprintf("mixed-%d", wave)
		counts := f.check(f.launch(name, "Never", 40, len(mixed)))
		f.t.Logf("wave %d: 40 pods after %.1f s: %v", wave, time.Since(began).Seconds(), counts)
		f.end(name)
	}
}

// testBestEffort: claims that reserve nothing are spread within one of even over the GPUs of each machine.
func (f pair) testBestEffort() {
	f.empty()
	counts := f.check(f.launch("best-effort", "Never", 30, 1))
	for _, m := range f.machines {
		var each []int
		for i := range gpusOfNode {
			each = append(each, counts[m.name()+"/"+node.DeviceName(fmt.Sprintf("0000:%02x:00.0", i+1))])
		}
		f.t.Logf("%s: claims per GPU %v", m.name(), each)
		if slices.Max(each)-slices.Min(each) > 1 || slices.Max(each) == 0 {
			f.t.Errorf("%s: claims per GPU %v", m.name(), each)
		}
	}
}

// testGPUFalls takes a GPU off the bus. Later pods use the others, and its own pods get an event.
func (f pair) testGPUFalls() {
	const address = "0000:02:00.0"
	m := f.machines[0]
	lost := m.name() + "/" + node.DeviceName(address)
	f.empty()
	if f.check(f.launch("before", "Never", 16, 1))[lost] == 0 {
		f.t.Fatalf("no pod uses %s", lost)
	}
	if err := m.takeGPU(address); err != nil {
		f.t.Fatal(err)
	}
	f.publish(gpusOfNode*len(f.machines) - 1)
	for kind, want := range map[string]string{"Node": "GpuRemoved", "Pod": "GpuLost"} {
		eventually(f.t, "an event "+want, func() bool {
			return strings.Contains(f.c.Kubectl(f.t, "get", "events", "--field-selector", "involvedObject.kind="+kind+",reason="+want,
				"-o", "jsonpath={.items[*].message}"), node.DeviceName(address))
		})
	}
	if counts := f.check(f.launch("after", "Never", 14, len(mixed))); counts[lost] != 0 {
		f.t.Errorf("claims per GPU after %s fell off: %v", lost, counts)
	}
	if err := m.giveGPU(address); err != nil {
		f.t.Fatal(err)
	}
	f.ready()
}

// testFleetUpgrade installs another release while pods start.
func (f pair) testFleetUpgrade() {
	version, err := release()
	if err != nil {
		f.t.Fatal(err)
	}
	before := f.launch("early", "Never", 16, len(mixed))
	f.check(before)
	during := f.launch("during", "Never", 16, len(mixed))
	helmMust(f.t, append([]string{"upgrade", "xsched", chart}, fleetSettings("--set", "image.tag="+nextRelease(version))...)...)
	f.check(during)
	f.ready()
	for _, m := range f.machines {
		if text, err := m.xsched("version", "--json", "--dir", daemonDir); err != nil || !strings.Contains(string(text), nextRelease(version)) {
			f.t.Errorf("%s has version %s: %v", m.name(), text, err)
		}
	}
	f.check(append(before, during...))
}

// testReboot reboots a machine whose driver is loaded later. Its pods use the GPUs of their claims again.
func (f pair) testReboot() {
	pods := f.launch("boot", "Always", 16, len(mixed))
	counts := f.check(pods)
	m := f.machines[1]
	m.off()
	if err := os.WriteFile(disk(m.number, driverLate), nil, 0o644); err != nil {
		f.t.Fatal(err)
	}
	began := time.Now()
	m.boot(f.t)
	eventually(f.t, "the daemon of "+m.name()+" answers without a driver", func() bool { _, err := m.pods(); return err == nil })
	f.t.Logf("the daemon answers %.1f s after the boot, without a driver", time.Since(began).Seconds())
	f.publish(gpusOfNode)
	other := f.launch("without-driver", "Never", 4, len(mixed))
	for gpu := range f.check(other) {
		if strings.HasPrefix(gpu, m.name()) {
			f.t.Errorf("a new claim has %s, whose driver is not loaded", gpu)
		}
	}
	if err := m.loadDriver(); err != nil {
		f.t.Fatal(err)
	}
	f.ready()
	if again := f.check(pods); fmt.Sprint(again) != fmt.Sprint(counts) {
		f.t.Errorf("claims per GPU before the reboot %v, after it %v", counts, again)
	}
	for _, name := range pods {
		pod := f.c.WaitPod(f.t, "default", name, "is ready", Running)
		if status := pod.Status.ContainerStatuses[0]; pod.Spec.NodeName == m.name() && status.RestartCount == 0 {
			f.t.Errorf("pod %s of the machine that was off was not restarted", name)
		}
	}
}
