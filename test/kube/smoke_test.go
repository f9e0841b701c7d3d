// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// eventually waits for a state. Its limit is for a machine under load.
func eventually(t testing.TB, what string, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !reached(); time.Sleep(poll) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// busyboxPod is a pod that runs a shell command.
func busyboxPod(name, script string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, imagePullPolicy: Never, command: [sh, -c, %q]}
`, name, busyboxImage, script)
}

func TestAPIServesDeviceAllocation(t *testing.T) {
	c := StartAPI(t)
	resources, err := c.Client.Discovery().ServerResourcesForGroupVersion("resource.k8s.io/v1")
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, r := range resources.APIResources {
		served[r.Name] = true
	}
	for _, name := range []string{"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"} {
		if !served[name] {
			t.Errorf("the API server does not serve %s", name)
		}
	}
}

func TestPodRuns(t *testing.T) {
	c := Start(t)
	began := time.Now()
	c.Apply(t, busyboxPod("hello", "echo hello from $(hostname); cat /proc/self/cgroup"))
	pod := c.WaitPod(t, "default", "hello", "has succeeded", Succeeded)
	t.Logf("pod succeeded after %.1f s", time.Since(began).Seconds())
	text := c.Logs(t, "default", "hello", "main")
	if !strings.Contains(text, "hello from hello\n") {
		t.Errorf("log: %s", text)
	}
	// The daemon tells pods by this path.
	if !strings.Contains(text, "/pod"+string(pod.UID)+"/") {
		t.Errorf("cgroups of the pod do not have its uid %s: %s", pod.UID, text)
	}
	if _, err := os.Stat(NRISocket); err != nil {
		t.Error(err)
	}
}

// TestPodReachesAPI checks the address that in-cluster clients use.
func TestPodReachesAPI(t *testing.T) {
	c := Start(t)
	c.Apply(t, busyboxPod("client", "echo | nc -w 60 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT"))
	c.WaitPod(t, "default", "client", "has succeeded", Succeeded)
}

// counter is a pod that counts in a file, so that a restart of it shows.
const counter = "n=0; while :; do n=$((n+1)); echo $n >/tmp/n; sleep 0.1; done"

// TestPodOutlivesRestarts restarts every part of the node, and the API server, beneath a running pod.
func TestPodOutlivesRestarts(t *testing.T) {
	c := Start(t)
	c.Apply(t, busyboxPod("survivor", counter))
	before := c.WaitPod(t, "default", "survivor", "is ready", Running)
	count := func() (n int) {
		// A kubelet that has just started does not know its pods yet.
		text, err := c.TryKubectl("", "exec", "survivor", "--", "cat", "/tmp/n")
		if err == nil {
			_, _ = fmt.Sscan(text, &n)
		}
		return n
	}
	last := 0
	counts := func(after string) {
		t.Helper()
		var n int
		eventually(t, "the pod counts after "+after, func() bool { n = count(); return n > last })
		last = n
		pod, err := c.Client.CoreV1().Pods("default").Get(context.Background(), "survivor", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if was, is := before.Status.ContainerStatuses[0], pod.Status.ContainerStatuses[0]; was.ContainerID != is.ContainerID || is.RestartCount != 0 {
			t.Errorf("after %s the container %s is %s, with %d restarts", after, was.ContainerID, is.ContainerID, is.RestartCount)
		}
	}
	counts("its start")
	c.RestartKubelet(t)
	counts("a restart of the kubelet")
	c.RestartContainerd(t)
	counts("a restart of containerd")
	c.StopAPIServer(t)
	if _, err := c.TryKubectl("", "get", "nodes", "--request-timeout=2s"); err == nil {
		t.Error("a stopped API server answered")
	}
	time.Sleep(3 * time.Second)
	c.StartAPIServer(t)
	counts("an outage of the API server")
	// The node takes part again: a new pod runs.
	c.Apply(t, busyboxPod("late", "true"))
	c.WaitPod(t, "default", "late", "has succeeded", Succeeded)
}
