// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
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
	// The daemon tells pods by this path. With cgroup v2 a container has a namespace of its own, and does not see it.
	if !strings.Contains(text, "/pod"+string(pod.UID)+"/") && strings.Contains(text, ":memory:") {
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
