// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"xsched/internal/kube/cluster"
)

const (
	simulatedLabel = "xsched.dev/simulated" // on nodes that kwok plays
	daemonLabel    = "xsched.dev/daemon"    // on nodes that get a pod of the DaemonSet
	simulatedPort  = 10350                  // of kwok as the kubelet of all these nodes
)

// kwokConfig makes kwok play nodes that are ready, the pods of the DaemonSet, which run, and the ports of their
// views, which lead to one on this machine.
const kwokConfig = `
kind: Stage
apiVersion: kwok.x-k8s.io/v1alpha1
metadata: {name: node-is-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      phase: Running
      conditions:
      - {type: Ready, status: "True", reason: Simulated, message: "", lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}}
---
kind: Stage
apiVersion: kwok.x-k8s.io/v1alpha1
metadata: {name: daemon-runs}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {app.kubernetes.io/name: xsched}
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
  next:
    statusTemplate: |
      phase: Running
      startTime: {{ Now | Quote }}
      conditions:
      - {type: Ready, status: "True", lastTransitionTime: {{ Now | Quote }}}
      containerStatuses:
      {{ range .spec.containers }}
      - {name: {{ .name }}, image: {{ .image | Quote }}, imageID: "", ready: true, restartCount: 0, state: {running: {startedAt: {{ Now | Quote }}}}}
      {{ end }}
---
kind: Stage
apiVersion: kwok.x-k8s.io/v1alpha1
metadata: {name: pod-ends}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  next: {delete: true}
---
kind: ClusterPortForward
apiVersion: kwok.x-k8s.io/v1alpha1
metadata: {name: on-this-machine}
spec:
  forwards: [{ports: [9401], target: {address: 127.0.0.1, port: 9401}}]
`

// startKwok starts the kubelets' stand-in until the test ends.
func startKwok(t testing.TB, c *Cluster, leaseSeconds int) {
	t.Helper()
	if err := os.WriteFile(path("kwok.yaml"), []byte(kwokConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.startPart("kwok", "--kubeconfig="+userConfig("admin"), "--config="+path("kwok.yaml"),
		"--manage-all-nodes=false", "-v=ERROR", "--manage-nodes-with-label-selector="+simulatedLabel+"=true",
		"--node-ip="+nodeAddress, fmt.Sprintf("--node-port=%d", simulatedPort), fmt.Sprintf("--node-lease-duration-seconds=%d", leaseSeconds),
		"--tls-cert-file="+path("pki", "apiserver.crt"), "--tls-private-key-file="+path("pki", "apiserver.key")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.parts["kwok"].kill)
}

func simulatedName(i int) string { return fmt.Sprintf("sim-%04d", i) }

// addNodes makes nodes that kwok plays, and waits until they are ready. They go when the test ends.
func addNodes(t testing.TB, client kubernetes.Interface, count int) {
	t.Helper()
	ctx := context.Background()
	t.Cleanup(func() { removeNodes(t, client, count) })
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("128"), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	inParallel(t, count, func(i int) error {
		name := simulatedName(i)
		_, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{simulatedLabel: "true", corev1.LabelHostname: name}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: simulatedLabel, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{
				Capacity: room, Allocatable: room,
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}, {Type: corev1.NodeHostName, Address: name}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: simulatedPort}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	waitLong(t, fmt.Sprintf("%d nodes are ready", count), func() (string, bool) {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: simulatedLabel, ResourceVersion: "0"})
		if err != nil {
			return err.Error(), false
		}
		ready := 0
		for i := range nodes.Items {
			// The taint of nodes that are not ready goes a moment later.
			if nodeReady(&nodes.Items[i]) && len(nodes.Items[i].Spec.Taints) == 1 {
				ready++
			}
		}
		return fmt.Sprintf("%d ready", ready), ready == count
	})
}

// removeNodes deletes the nodes and what their plugins have published.
func removeNodes(t testing.TB, client kubernetes.Interface, count int) {
	if os.Getenv(scaleVariable) != "" {
		return // the cluster ends with this test
	}
	ctx := context.Background()
	err := client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: simulatedLabel})
	for i := range count {
		err = errors.Join(err, client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
			FieldSelector: "spec.driver=" + cluster.Driver + ",spec.nodeName=" + simulatedName(i),
		}))
	}
	if err != nil {
		t.Errorf("delete the simulated nodes: %v", err)
	}
}

// installChart installs the chart, and returns a token of the plugin for each simulated node. The DaemonSet
// gets its nodes later, from startDaemonSet.
func installChart(t *testing.T, c *Cluster, client kubernetes.Interface, nodes int) map[string]string {
	t.Helper()
	t.Cleanup(func() { _, _ = helm("uninstall", "xsched", "--no-hooks", "--ignore-not-found") })
	helmMust(t, "install", "xsched", chart, "--create-namespace", "--no-hooks", "--set", "virtual.enabled=true",
		"--set-json", fmt.Sprintf(`nodeSelector={%q:"true"}`, daemonLabel),
		"--set-json", fmt.Sprintf(`tolerations=[{"key":%q,"operator":"Exists"}]`, simulatedLabel))
	var mu sync.Mutex
	tokens := map[string]string{}
	inParallel(t, nodes, func(i int) error {
		name := simulatedName(i)
		duration := int64((3 * time.Hour).Seconds())
		request, err := client.CoreV1().ServiceAccounts(chartSpace).CreateToken(context.Background(), "xsched", &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: &duration,
				BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: name},
			},
		}, metav1.CreateOptions{})
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			tokens[name] = request.Status.Token
		}
		return err
	})
	return tokens
}

// startDaemonSet lets the DaemonSet have the simulated nodes, and waits until kwok has its pods running.
func startDaemonSet(t testing.TB, client kubernetes.Interface, nodes int) {
	t.Helper()
	ctx := context.Background()
	inParallel(t, nodes, func(i int) error {
		_, err := client.CoreV1().Nodes().Patch(ctx, simulatedName(i), types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, daemonLabel), metav1.PatchOptions{})
		return err
	})
	waitLong(t, "the DaemonSet runs on all nodes", func() (string, bool) {
		d, err := client.AppsV1().DaemonSets(chartSpace).Get(ctx, cluster.DaemonSet, metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprint(d.Status.NumberReady), int(d.Status.NumberReady) == nodes
	})
}

// publishedGPUs counts the slices, and when all are there the GPUs in them.
func publishedGPUs(ctx context.Context, client kubernetes.Interface, nodes int) (slices, gpus int, err error) {
	first, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, 0, err
	}
	slices = len(first.Items)
	if first.RemainingItemCount != nil {
		slices += int(*first.RemainingItemCount)
	}
	if slices < nodes {
		return slices, 0, nil
	}
	found, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + cluster.Driver})
	if err != nil {
		return 0, 0, err
	}
	for i := range found.Items {
		gpus += len(found.Items[i].Spec.Devices)
	}
	return len(found.Items), gpus, nil
}

// fastClient is a client of the test itself, for many objects.
func fastClient(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", userConfig("admin"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, 0 // the API server's own limits hold
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// inParallel calls do for 0 to count-1, a few at once.
func inParallel(t testing.TB, count int, do func(i int) error) {
	t.Helper()
	next := make(chan int)
	errs := make(chan error, 1)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	all.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

// waitLong waits for a state as long as it comes nearer: its text changes.
func waitLong(t testing.TB, what string, look func() (string, bool)) {
	t.Helper()
	var last string
	for changed := time.Now(); ; time.Sleep(time.Second) {
		text, reached := look()
		switch {
		case reached:
			return
		case text != last:
			last, changed = text, time.Now()
		case time.Since(changed) > soon:
			t.Fatalf("%s: no progress within %v: %s", what, soon, text)
		}
	}
}

// withArguments restarts a part with more arguments, until the test ends.
func (c *Cluster) withArguments(t testing.TB, name string, args ...string) {
	t.Helper()
	p := c.parts[name]
	old := slices.Clone(p.args)
	restart := func(args []string) {
		p.kill()
		p.args = args
		if err := p.start(); err != nil {
			t.Fatal(errors.Join(errors.New("restart "+name), err))
		}
	}
	restart(append(slices.Clone(old), args...))
	t.Cleanup(func() { restart(old) })
}
