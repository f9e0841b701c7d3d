// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TryKubectl runs kubectl as administrator, with input as its standard input.
func (c *Cluster) TryKubectl(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return output(ctx, input, "kubectl", args...)
}

// Kubectl runs kubectl and returns what it printed.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	text, err := c.TryKubectl("", args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Apply creates objects from YAML, and deletes them when the test ends.
func (c *Cluster) Apply(t testing.TB, yaml string) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := c.TryKubectl(yaml, "delete", "--ignore-not-found", "--grace-period=1", "-f", "-"); err != nil {
			t.Errorf("delete what the test made: %v", err)
		}
	})
	if _, err := c.TryKubectl(yaml, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// Namespace creates a namespace with a label, and returns when pods can be created in it.
func (c *Cluster) Namespace(t testing.TB, name, label, value string) {
	t.Helper()
	c.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {%s: %q}}}", name, label, value))
	awaitAccount(t, c.Client, name)
}

// awaitAccount waits for the service account of a new namespace, without which no pod can be created.
func awaitAccount(t testing.TB, client kubernetes.Interface, namespace string) {
	t.Helper()
	eventually(t, "namespace "+namespace+" has its service account", func() bool {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(context.Background(), "default", metav1.GetOptions{})
		return err == nil
	})
}

// WaitPod waits until the pod meets the condition, and returns it.
func (c *Cluster) WaitPod(t testing.TB, namespace, name, what string, met func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	var last *corev1.Pod
	eventually(t, "pod "+namespace+"/"+name+" "+what, func() bool {
		pod, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		last = pod
		return met(pod)
	})
	return last
}

// Running and Succeeded are conditions for WaitPod.
func Running(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func Succeeded(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded }

// Logs returns what a pod's container has printed; the only one's, if container is empty.
func (c *Cluster) Logs(t testing.TB, namespace, pod, container string) string {
	t.Helper()
	return c.Kubectl(t, "logs", "-n", namespace, pod, "-c", container)
}

// Exec runs a command in a pod.
func (c *Cluster) Exec(t testing.TB, namespace, pod string, argv ...string) string {
	t.Helper()
	return c.Kubectl(t, append([]string{"exec", "-n", namespace, pod, "--"}, argv...)...)
}

// explain logs the state of the cluster if the test failed.
func (c *Cluster) explain(t testing.TB) {
	if !t.Failed() {
		return
	}
	for _, args := range [][]string{
		{"get", "pods,resourceclaims,resourceslices", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		text, err := c.TryKubectl("", args...)
		if err != nil {
			text += err.Error()
		}
		lines := strings.Split(text, "\n")
		t.Logf("kubectl %s:\n%s", strings.Join(args, " "), strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
	logs, _ := filepath.Glob(path("log", "*.log"))
	for _, log := range logs {
		if info, err := os.Stat(log); err == nil && info.Size() > 0 {
			t.Logf("end of %s:\n%s", filepath.Base(log), lastLines(log, 12))
		}
	}
}
