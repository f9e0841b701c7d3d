// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kueueVariable names a folder with a program kueue and the folder crd of its release.
const kueueVariable = "XSCHED_KUEUE"

const kueueConfig = `
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:8091"}
metrics: {bindAddress: "127.0.0.1:8090"}
webhook: {port: 9449, certDir: %q}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
integrations: {frameworks: [batch/job]}
resources: {deviceClassMappings: [{name: xsched.dev/gpu, deviceClassNames: [gpu-batch, gpu-latency]}]}
`

const kueueObjects = `
{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: gpus}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team}
spec:
  namespaceSelector: {}
  queueingStrategy: BestEffortFIFO
  stopPolicy: None
  flavorFungibility: {whenCanBorrow: MayStopSearch, whenCanPreempt: TryNextFlavor}
  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: Never, borrowWithinCohort: {policy: Never}}
  resourceGroups: [{coveredResources: [xsched.dev/gpu], flavors: [{name: gpus, resources: [{name: xsched.dev/gpu, nominalQuota: 2}]}]}]
---
{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: team, namespace: default}, spec: {clusterQueue: team, stopPolicy: None}}
---
{apiVersion: kueue.x-k8s.io/v1beta2, kind: WorkloadPriorityClass, metadata: {name: high}, value: 1000}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu-batch, capacity: {requests: {share: "40"}}}}]}}}
`

// startKueue runs the real Kueue as a process of the node. Its webhooks are not registered: without kube-proxy the API
// server can't reach a service. The objects have all the fields that the webhooks would set.
func startKueue(t *testing.T, c *Cluster, folder string) {
	t.Helper()
	crds, err := filepath.Glob(filepath.Join(folder, "crd", "*.yaml"))
	if err != nil || len(crds) == 0 {
		t.Fatalf("no definitions in %s/crd: %v", folder, err)
	}
	for _, file := range crds {
		c.Kubectl(t, "apply", "--server-side", "-f", file)
	}
	c.Kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	dir := t.TempDir()
	const metrics = "/etc/kueue/metrics/certs" // fixed
	t.Cleanup(func() { _ = os.RemoveAll("/etc/kueue") })
	for from, to := range map[string]string{"apiserver.crt": "tls.crt", "apiserver.key": "tls.key"} {
		text, err := os.ReadFile(path("pki", from))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(metrics, 0o755), os.WriteFile(filepath.Join(dir, to), text, 0o600), os.WriteFile(filepath.Join(metrics, to), text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kueueConfig, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(path("log", "kueue.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(folder, "kueue"), "--config", config, "--kubeconfig", userConfig("admin"), "--feature-gates=DynamicResourceAllocation=true,VisibilityOnDemand=false")
	cmd.Env = append(os.Environ(), "POD_NAMESPACE=default", "NAMESPACE=default")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		_ = log.Close()
	})
	eventually(t, "Kueue runs", func() bool {
		text, _ := os.ReadFile(path("log", "kueue.log"))
		return strings.Contains(string(text), "Starting workers")
	})
	c.Apply(t, kueueObjects)
}

// TestKueue: the real Kueue admits jobs with claims up to the quota of their queue, holds the others, and evicts one for a
// workload of higher priority. Jobs that it admits share GPUs under XSched.
func TestKueue(t *testing.T) {
	folder := os.Getenv(kueueVariable)
	if folder == "" {
		t.Skip("no Kueue; set " + kueueVariable + " to a folder with kueue and crd")
	}
	c := Start(t)
	h := startFour(t, c)
	startKueue(t, c, folder)
	job := func(name, more string) string {
		script := strings.Replace(tenantScript(name, "--kernel-us 500"), "exec tenant", "echo loop >&3; exec tenant", 1)
		return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %s, labels: {kueue.x-k8s.io/queue-name: team%s}}
spec:
  suspend: true
  template:
    metadata: {labels: {work: %s}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
      containers: [{name: main, image: %q, imagePullPolicy: Never, command: [sh, -c, %q], resources: {claims: [{name: gpu}]}}]
`, name, more, name, bindingImage, script)
	}
	active := func(name string) bool {
		return c.Kubectl(t, "get", "job", name, "-o", "jsonpath={.status.ready}/{.spec.suspend}") == "1/false"
	}
	waits := func(name string) bool {
		return c.Kubectl(t, "get", "job", name, "-o", "jsonpath={.spec.suspend}") == "true"
	}
	c.Apply(t, job("first", ""))
	c.Apply(t, job("second", ""))
	eventually(t, "two jobs run", func() bool { return active("first") && active("second") })
	c.Apply(t, job("third", ""))
	eventually(t, "the third waits for quota", func() bool {
		return strings.Contains(c.Kubectl(t, "get", "workloads", "-o", "jsonpath={.items[*].status.conditions[*].message}"), "insufficient unused quota for xsched.dev/gpu")
	})
	if !waits("third") {
		t.Error("the third job runs beyond the quota of two")
	}
	list := func() (n int) {
		all, err := h.client.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range all.Processes {
			if all.Processes[i].Priority == -10 {
				n++
			}
		}
		return n
	}
	eventually(t, "the programs of both have the class of their claims", func() bool { return list() == 2 })

	began := time.Now()
	c.Apply(t, job("urgent", ", kueue.x-k8s.io/priority-class: high"))
	eventually(t, "the urgent job runs", func() bool { return active("urgent") })
	t.Logf("a workload of higher priority runs after %.1f s", time.Since(began).Seconds())
	if waits("first") == waits("second") {
		t.Error("not exactly one of the first two jobs gave way")
	}
	c.Kubectl(t, "delete", "job", "--all")
	eventually(t, "all programs are gone", func() bool { return list() == 0 })
}
