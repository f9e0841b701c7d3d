// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control"
)

const (
	// The image of `make image`, and that of `make image-next`: the same sources as another release.
	ownImage   = "localhost/xsched"
	ownFolder  = root + "/dist/image"
	nextFolder = root + "/dist/image-next"
	// Only a program in it: the driver, the shim and the socket come with a claim or a label.
	programImage = "localhost/program:1"
)

// site is a node on which the chart installed the daemon and the plugin, from the image of this tree.
type site struct {
	*host
	c    *Cluster
	gpus int
}

// siteGPUs is how many GPUs the node of TestDaemonSet has.
const siteGPUs = 2

// firstGPU makes a request ask for the first GPU, where claims shall compete.
const firstGPU = `, selectors: [{cel: {expression: "device.attributes['resource.kubernetes.io'].pciBusID == '0000:01:00.0'"}}]`

// loadOwn brings the image of `make image` and that of a program to the node, once.
var loadOwn = sync.OnceValue(func() error {
	version, err := release()
	if err != nil {
		return err
	}
	for folder, version := range map[string]string{ownFolder: version, nextFolder: nextRelease(version)} {
		if err := loadArchive(fmt.Sprintf("%s/xsched-%s-linux-%s.tar", folder, version, runtime.GOARCH)); err != nil {
			return fmt.Errorf("%w; run make image image-next", err)
		}
	}
	m := newImage(programImage, "tenant")
	m.copyProgram("bin/ask", "/proc/self/exe") // see runAsk
	m.copyProgram("bin/tenant", filepath.Join(root, "build", "virtual", "tenant"))
	m.copy("bin/xsched", filepath.Join(root, "bin", "xsched"))
	return m.load()
})

// nextRelease is the version of `make image-next`.
func nextRelease(version string) string {
	return strings.TrimSuffix(version, filepath.Ext(version)) + ".99"
}

// install installs the chart on a node with virtual GPUs, which outlive the daemon as hardware does.
func install(t *testing.T, c *Cluster, gpus int) site {
	t.Helper()
	h := startGPU(t, gpus)
	if err := loadOwn(); err != nil {
		t.Fatal(err)
	}
	_, _ = c.TryKubectl("", "create", "namespace", chartSpace) // may be there, from another test
	c.Apply(t, metricsSecret)
	helmMust(t, append([]string{"install", "xsched", chart, "--set", fmt.Sprintf("virtual.devices=%d", gpus)}, settings...)...)
	t.Cleanup(func() { keepLogs(c) })
	s := site{h, c, gpus}
	s.ready()
	return s
}

// settings of the chart on the test's node. The shorter period only saves time. The tenants are for
// testParallelClaims. The classes of labels are those without a setting.
var settings = []string{
	"--set", "virtual.enabled=true,node.memory=80Gi,node.tenants=100,node.extraArgs={--every=2s}", "--set", metricsSettings,
	"--set-json", `nri.classes={"latency":{"priority":10,"namespaceSelector":{"matchLabels":{"xsched.dev/allow-latency":"true"}}},"batch":{"priority":-10,"namespaceSelector":{}}}`,
}

// in returns the site for a subtest.
func (s site) in(t *testing.T) site {
	t.Cleanup(func() {
		if t.Failed() {
			keepLogs(s.c)
		}
	})
	h := *s.host
	h.t = t
	return site{&h, s.c, s.gpus}
}

// ready waits until the DaemonSet runs and the scheduler knows the GPUs.
func (s site) ready() {
	s.t.Helper()
	s.c.Kubectl(s.t, "-n", chartSpace, "rollout", "status", "daemonset/xsched", "--timeout="+soon.String())
	s.answers()
	eventually(s.t, "the GPUs are published", func() bool {
		all := s.devices()
		return len(all) == s.gpus && !slices.ContainsFunc(all, func(d resourceapi.Device) bool { return len(d.Taints) > 0 })
	})
}

// devices returns what the node has published.
func (s site) devices() (all []resourceapi.Device) {
	found, err := s.c.Client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=gpu.xsched.dev",
	})
	if err != nil {
		return nil
	}
	for i := range found.Items {
		all = append(all, found.Items[i].Spec.Devices...)
	}
	return all
}

// specs returns the CDI specifications of prepared claims.
func (s site) specs() []string {
	files, _ := filepath.Glob("/run/cdi/gpu.xsched.dev-*")
	return files
}

// grants returns the daemon's grants of prepared claims, by pod.
func (s site) grants() map[string]control.Grant {
	out := map[string]control.Grant{}
	reply, err := s.client.Grants(context.Background())
	if err != nil {
		return nil
	}
	for _, g := range reply.Grants {
		if g.Source == "dra" {
			out[g.Pod] = g.Grant
		}
	}
	return out
}

// keepLogs keeps what the containers of the DaemonSet printed, beside the logs of the cluster.
func keepLogs(c *Cluster) {
	for _, container := range []string{"daemon", "node", "guardian"} {
		for _, previous := range []string{"false", "true"} {
			text, err := c.TryKubectl("", "logs", "-n", chartSpace, "daemonset/xsched", "-c", container, "--previous="+previous)
			if err == nil && text != "" {
				_ = os.WriteFile(path("log", "pod-"+container+"-"+previous+".log"), []byte(text), 0o644)
			}
		}
	}
}

// claim is a claim of a class of the chart; more is what its request has in addition.
func claim(name, class, more string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu-%s%s}}]}}
`, name, class, more)
}

// claimPod is a pod with claims. Its container has neither a driver nor a mount of its own.
func claimPod(name, image, script string, claims ...string) string {
	var refs, uses []string
	for i, claim := range claims {
		refs = append(refs, fmt.Sprintf("{name: gpu-%d, %s}", i, claim))
		uses = append(uses, fmt.Sprintf("{name: gpu-%d}", i))
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: tenant
    image: %q
    imagePullPolicy: Never
    command: [sh, -c, %q]
    resources: {claims: [%s]}
  resourceClaims: [%s]
`, name, image, script, strings.Join(uses, ", "), strings.Join(refs, ", "))
}

// programPod is a pod with a claim of its name and a program for the GPU.
func programPod(name, args string) string {
	return claimPod(name, programImage, tenantScript(name, args), "resourceClaimName: "+name)
}

// holderPod is a pod with a claim of its name that does not use it.
func holderPod(name string) string {
	return claimPod(name, busyboxImage, untilEnd, "resourceClaimName: "+name)
}

// untilEnd is a script that does nothing until the pod ends.
const untilEnd = "trap exit TERM; while :; do sleep 1; done"

// TestDaemonSet installs the chart with the image of this tree on the real node, runs the cases on it, and
// uninstalls the chart.
func TestDaemonSet(t *testing.T) {
	c := Start(t)
	before := takeInventory(t, c)
	s := install(t, c, siteGPUs)
	t.Run("Rights", func(t *testing.T) { testRights(t, s.in(t)) })
	t.Run("Shares", func(t *testing.T) { testShares(t, s.in(t)) })
	t.Run("BadParameters", func(t *testing.T) { testBadParameters(t, s.in(t)) })
	t.Run("PluginKilled", func(t *testing.T) { testPluginKilled(t, s.in(t)) })
	t.Run("ParallelClaims", func(t *testing.T) { testParallelClaims(t, s.in(t)) })
	t.Run("DaemonHangs", func(t *testing.T) { testDaemonHangs(t, s.in(t)) })
	t.Run("ClassChanged", func(t *testing.T) { testClassChanged(t, s.in(t)) })
	t.Run("Group", func(t *testing.T) { testGroup(t, s.in(t)) })
	t.Run("Security", func(t *testing.T) { testSecurity(t, s.in(t)) })
	t.Run("Load", func(t *testing.T) { testLoad(t, s.in(t)) })
	t.Run("Uninstall", func(t *testing.T) { testUninstall(t, s.in(t), before) })
}

// TestExample follows the first page of the documentation, on a node with one GPU as there.
func TestExample(t *testing.T) {
	s := install(t, Start(t), 1)
	t.Cleanup(func() { helmMust(t, "uninstall", "xsched") })
	testExample(t, s)
}

// findProcess returns a process with this program's name and first argument, or 0.
func findProcess(words ...string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		argv := strings.Split(string(text), "\x00")
		if len(argv) >= len(words) && filepath.Base(argv[0]) == words[0] && slices.Equal(argv[1:len(words)], words[1:]) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}
