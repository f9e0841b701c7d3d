// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control"
	"xsched/internal/kube/edits"
	"xsched/internal/model"
)

// The two pods have kernels and requests as the tenants of `xsched demo`.
var kernels = map[string]string{"latency": "--kernel-us 90", "batch": "--kernel-us 20000 --depth 2"}

const requestRate = "rate 100"

// outage is how long the API server is away.
const outage = 30 * time.Second

// measured is what the latency pod waits, and the kernels per second of the batch pod.
type measured struct {
	request [2]time.Duration // P50 and P99 of its requests
	wait    [2]time.Duration // P50 and P99 of what its kernels wait on the GPU, by the record of the GPU
	rate    float64
}

// testLoad runs a latency and a batch pod on the first GPU: natively, then with claims. The pods with claims
// run on while the parts of the node and XSched restart. At last each pod checks its results.
func testLoad(t *testing.T, s site) {
	native := []string{"native-latency", "native-batch"}
	for _, name := range native {
		kind := strings.TrimPrefix(name, "native-")
		s.c.Apply(t, tenantPod(name, kernels[kind], "", fmt.Sprintf("  volumes:\n  - {name: vgpu, hostPath: {path: %s/vgpu.sock, type: Socket}}", daemonDir)))
	}
	alone, before := measure(t, s, native[0], native[1])
	for _, name := range native {
		tenant{t, s.c, name}.finish() // a program that XSched doesn't manage costs the others their timeslices
	}
	for kind := range kernels {
		s.c.Apply(t, claim(kind, kind, firstGPU)+"---"+programPod(kind, kernels[kind]))
	}
	_, with := measure(t, s, "latency", "batch")
	t.Logf("requests of the latency pod, P50 and P99: alone %v, natively %v, with XSched %v", alone.request, before.request, with.request)
	t.Logf("wait of its kernels on the GPU, P50 and P99: alone %v, natively %v, with XSched %v", alone.wait, before.wait, with.wait)
	t.Logf("kept by the batch pod: natively %.0f %%, with XSched %.0f %%", 100*before.rate/alone.rate, 100*with.rate/alone.rate)
	// The GPU's own record counts: this machine's CPUs also run the whole cluster.
	if 2*with.wait[0] > before.wait[0] || 4*with.wait[1] > 3*before.wait[1] {
		t.Errorf("the latency pod's kernels wait %v on the GPU, and %v natively", with.wait, before.wait)
	}
	if 4*with.rate < 3*alone.rate {
		t.Errorf("the batch pod runs %.1f kernels per second, and %.1f alone", with.rate, alone.rate)
	}

	l := startLoad(t, s)
	t.Run("Metrics", func(t *testing.T) { testMetrics(t, l.in(t)) })
	t.Run("Viewer", func(t *testing.T) { testViewer(t, l.in(t)) })
	t.Run("ClassPatched", func(t *testing.T) { testClassPatched(t, l.in(t)) })
	t.Run("Restarts", func(t *testing.T) { testRestarts(t, l.in(t)) })
	t.Run("Upgrade", func(t *testing.T) { testUpgrade(t, l.in(t)) })
	t.Run("APIServerDown", func(t *testing.T) { testAPIServerDown(t, l.in(t)) })
	for kind := range kernels {
		tenant{t, s.c, kind}.finish()
	}
}

// measure returns what the pods have alone, one after the other, and together.
func measure(t *testing.T, s site, latencyPod, batchPod string) (alone, together measured) {
	t.Helper()
	latency, batch := tenant{t, s.c, latencyPod}, tenant{t, s.c, batchPod}
	for _, pod := range []string{latencyPod, batchPod} {
		s.c.WaitPod(t, "default", pod, "is ready", Running)
	}
	const requests, turns = 200, 100
	some := func() (request, wait [2]time.Duration) {
		n := len(latency.requests())
		latency.tell(requestRate)
		eventually(t, "answers of pod "+latencyPod, func() bool { return len(latency.requests()) >= n+requests })
		latency.tell("pause")
		ends := latency.ends()[n:]
		return percentiles(latency.requests()[n:]), s.waits(latencyPod, ends[0], ends[len(ends)-1])
	}
	// The program prints when each of its kernels ended.
	rate := func(n int) float64 {
		eventually(t, "kernels of pod "+batchPod, func() bool { return len(batch.requests()) >= n+turns })
		ends := batch.ends()[n:]
		return float64(len(ends)-1) / ends[len(ends)-1].Sub(ends[0]).Seconds()
	}
	alone.request, alone.wait = some()
	batch.tell("loop")
	alone.rate = rate(0)
	n := len(batch.requests())
	together.request, together.wait = some()
	together.rate = rate(n)
	batch.tell("pause")
	return alone, together
}

// waits returns P50 and P99 of the time that a program's kernels waited on the GPU.
func (s site) waits(name string, from, to time.Time) [2]time.Duration {
	s.t.Helper()
	pid := findProcess("tenant", "--name", name)
	records, err := s.gpu.Waits(model.Time(from.UnixNano()), model.Time(to.UnixNano()))
	if err != nil {
		s.t.Fatal(err)
	}
	var all []time.Duration
	for _, r := range records {
		if r.PID == pid {
			all = append(all, time.Duration(r.Started-r.Submitted))
		}
	}
	if len(all) == 0 {
		s.t.Fatalf("the GPU has no kernel of %s", name)
	}
	return percentiles(all)
}

// percentiles returns P50 and P99.
func percentiles(all []time.Duration) [2]time.Duration {
	return [2]time.Duration{percentile(all, 50), percentile(all, 99)}
}

// load is the two pods at work.
type load struct {
	site
	pods map[string]*corev1.Pod
}

// startLoad lets the pods with claims work, and checks that the batch pod is preempted.
func startLoad(t *testing.T, s site) load {
	t.Helper()
	l := load{s, map[string]*corev1.Pod{}}
	for kind := range kernels {
		l.pods[kind] = s.c.WaitPod(t, "default", kind, "is ready", Running)
	}
	tenant{t, s.c, "batch"}.tell("loop")
	tenant{t, s.c, "latency"}.tell(requestRate)
	l.goesOn("its start")
	return l
}

func (l load) in(t *testing.T) load { return load{l.site.in(t), l.pods} }

// goesOn checks, without the API server, that both pods work and that the latency pod goes first. The
// virtual GPU's own record counts.
func (l load) goesOn(after string) {
	l.t.Helper()
	l.answers()
	eventually(l.t, "the daemon has both pods with their classes after "+after, func() bool {
		latency, batch := l.process("default", "latency"), l.process("default", "batch")
		return latency != nil && batch != nil && latency.Priority == 10 && batch.Priority == -10 &&
			latency.Class == "gpu-latency" && batch.Class == "gpu-batch"
	})
	latency, batch := l.onGPU("latency"), l.onGPU("batch")
	eventually(l.t, "both pods work, and the GPU preempts the batch pod, after "+after, func() bool {
		latencyNow, batchNow := l.onGPU("latency"), l.onGPU("batch")
		return latencyNow.Kernels > latency.Kernels+5 && batchNow.Kernels > batch.Kernels+5 &&
			batchNow.Preemptions > batch.Preemptions && latencyNow.SliceNS > batchNow.SliceNS
	})
}

// same checks that the pods have run without a restart.
func (l load) same(after string) {
	l.t.Helper()
	for kind, was := range l.pods {
		is, err := l.c.Client.CoreV1().Pods("default").Get(context.Background(), kind, metav1.GetOptions{})
		if err != nil {
			l.t.Fatal(err)
		}
		a, b := was.Status.ContainerStatuses[0], is.Status.ContainerStatuses[0]
		if a.ContainerID != b.ContainerID || b.RestartCount != 0 {
			l.t.Errorf("after %s the container of pod %s is %s, with %d restarts; it was %s", after, kind, b.ContainerID, b.RestartCount, a.ContainerID)
		}
	}
}

// testRestarts restarts the kubelet and containerd, and kills the daemon.
func testRestarts(t *testing.T, l load) {
	l.c.RestartKubelet(t)
	l.goesOn("a restart of the kubelet")
	l.c.RestartContainerd(t)
	l.goesOn("a restart of containerd")
	l.kill("xsched", "serve")
	l.goesOn("a death of the daemon")
	l.same("restarts")
	l.ready()
}

// testAPIServerDown stops the API server. The daemon dies in the meantime: it has its grants from its file,
// and nobody can send them again.
func testAPIServerDown(t *testing.T, l load) {
	l.c.StopAPIServer(t)
	began := time.Now()
	l.goesOn("the end of the API server")
	l.kill("xsched", "serve")
	l.goesOn("a death of the daemon without an API server")
	time.Sleep(time.Until(began.Add(outage)))
	l.goesOn("30 s without an API server")
	l.c.StartAPIServer(t)
	l.goesOn("the return of the API server")
	l.same("an outage of the API server")
	l.ready()
}

// testUpgrade installs another release over the present one.
func testUpgrade(t *testing.T, l load) {
	done := map[string]uint64{}
	for kind := range l.pods {
		done[kind] = l.onGPU(kind).Kernels
	}
	version, err := release()
	if err != nil {
		t.Fatal(err)
	}
	next := nextRelease(version)
	before, old := l.version(), l.shim("batch")
	if !strings.HasPrefix(before.Version, version) {
		t.Fatalf("the daemon has version %s, not %s", before.Version, version)
	}
	helmMust(t, append([]string{"upgrade", "xsched", chart, "--set", fmt.Sprintf("image.tag=%s,virtual.devices=%d", next, l.gpus)}, settings...)...)
	l.ready()
	if after := l.version(); after.StartedNS == before.StartedNS || !strings.HasPrefix(after.Version, next) {
		t.Errorf("the upgrade to %s left the daemon of version %s", next, after.Version)
	}
	pods := l.c.Kubectl(t, "get", "pods", "-n", chartSpace, "-o", "jsonpath={.items[*].spec.containers[*].image}")
	if images := slices.Compact(strings.Fields(pods)); !slices.Equal(images, []string{ownImage + ":" + next}) {
		t.Errorf("images after the upgrade: %v", images)
	}
	l.goesOn("an upgrade")
	l.same("an upgrade")
	// A pod that runs keeps the library that it has loaded; a new one gets that of the release.
	l.c.Apply(t, claim("later", "batch", "")+"---"+holderPod("later"))
	l.c.WaitPod(t, "default", "later", "is ready", Running)
	if kept, later := l.shim("batch"), l.shim("later"); kept != old || later == old {
		t.Errorf("library of the pod before the upgrade %s, after it %s, of a later pod %s", old, kept, later)
	}
	l.c.Kubectl(t, "delete", "pod/later", "resourceclaim/later")
	for kind, n := range done {
		if now := l.onGPU(kind).Kernels; now <= n {
			t.Errorf("pod %s had %d kernels before the upgrade and %d after it", kind, n, now)
		}
	}
}

// version returns that of the daemon.
func (s site) version() control.Version {
	s.t.Helper()
	v, err := s.client.Version(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// shim returns the digest of the library that a pod's container has.
func (s site) shim(pod string) string {
	s.t.Helper()
	digest, _, _ := strings.Cut(s.c.Exec(s.t, "default", pod, "sha256sum", edits.Shim), " ")
	return digest
}

// kill kills the program of the DaemonSet with these first words, and waits until it is gone.
func (s site) kill(words ...string) {
	s.t.Helper()
	pid := findProcess(words...)
	if pid == 0 {
		s.t.Fatalf("no process %v", words)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, fmt.Sprintf("%v is gone", words), func() bool { return syscall.Kill(pid, 0) != nil || findProcess(words...) != pid })
}
