// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// scaleVariable has the number of nodes and of claims of TestScale, and the minutes after which it stops to
// wait for the scheduler, with spaces between them.
const scaleVariable = "XSCHED_KUBE_SCALE"

// GPUs of each simulated node, and their memory.
const (
	scaleGPUs   = 8
	scaleMemory = "80Gi"
)

// TestScale publishes the GPUs of many nodes with our plugin and lets the scheduler allocate them. API
// server, controller manager, scheduler, chart and plugins are real; nodes and daemons are simulated. Its
// figures go to out/kube-scale.json.
func TestScale(t *testing.T) {
	nodes, claims, minutes := 50, 500, 60
	if text := os.Getenv(scaleVariable); text != "" {
		if _, err := fmt.Sscan(text, &nodes, &claims, &minutes); err != nil || nodes < 1 || claims < 1 || minutes < 1 {
			t.Fatalf("%s=%q: want three numbers, of nodes, claims and minutes", scaleVariable, text)
		}
	}
	end := time.Now().Add(time.Duration(minutes) * time.Minute)
	large := nodes > 100
	lease := 40
	if large {
		t.Setenv("GOGC", "300") // of the cluster's parts; ours keep the default
		lease = 240
	}
	c := StartControl(t)
	if large {
		tuneForScale(t, c)
	}
	client := fastClient(t)
	f := &figures{Nodes: nodes, GPUs: nodes * scaleGPUs, Claims: claims, c: c}

	startKwok(t, c, lease)
	f.time(t, "nodes ready", func() { addNodes(t, client, nodes) })
	var tokens map[string]string
	f.time(t, "chart installed, tokens made", func() { tokens = installChart(t, c, client, nodes) })

	placeDaemons := func() { f.time(t, "DaemonSet placed", func() { startDaemonSet(t, client, nodes) }) }
	if !large {
		placeDaemons()
	}
	plugins := startFleet(t, &fleetOrder{
		Config: userConfig("admin"), Folder: "/run/s", GPUs: scaleGPUs, Memory: scaleMemory, Tokens: tokens,
	})
	f.watch("plugins", plugins.pid)
	f.watch("test", os.Getpid())
	f.time(t, "GPUs published", func() {
		waitLong(t, "all GPUs are published", func() (string, bool) {
			slices, gpus, err := publishedGPUs(context.Background(), client, nodes)
			return fmt.Sprintf("%d slices with %d GPUs, %v", slices, gpus, err), slices == nodes && gpus == nodes*scaleGPUs
		})
	})
	f.Published = f.sample(plugins)

	f.time(t, "claims allocated", func() { allocate(t, f, client, claims, end) })
	f.Allocated = f.sample(plugins)
	f.AllocatedClaims, f.UsedGPUs = readAllocations(t, client).check(t, scaleSize, claims)
	t.Logf("%d claims have a GPU; %d of %d GPUs are in use", f.AllocatedClaims, f.UsedGPUs, f.GPUs)
	if f.AllocatedClaims != claims {
		f.report(t)
		t.Fatalf("%d of %d claims have a GPU", f.AllocatedClaims, claims)
	}

	if large { // earlier it would slow down what is measured
		placeDaemons()
	}
	viewFleet(t, f, client, nodes)
	f.report(t)
}

func scaleSize(i int) size { return sizes[i%len(sizes)] }

// tuneForScale sets what a large cluster needs on a small machine: the scheduler scores 100 nodes per pod,
// and nodes whose lease is late stay ready.
func tuneForScale(t *testing.T, c *Cluster) {
	t.Helper()
	config := fmt.Sprintf(`{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration","leaderElection":{"leaderElect":false},
"clientConnection":{"kubeconfig":%q,"qps":1000,"burst":2000},"percentageOfNodesToScore":5}
`, userConfig("scheduler"))
	if err := os.WriteFile(path("scheduler.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.withArguments(t, "kube-scheduler", "--config="+path("scheduler.json"))
	c.withArguments(t, "kube-controller-manager", "--node-monitor-grace-period=10m")
}

// allocate makes claims and pods, and waits until the scheduler has placed all pods. What it made goes when
// the test ends.
func allocate(t *testing.T, f *figures, client kubernetes.Interface, claims int, end time.Time) {
	t.Helper()
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	makeScaleSpace(t, client)
	before := f.scheduled(t)
	began := time.Now()
	created := make(chan struct{})
	go func() {
		defer close(created)
		inParallel(t, claims, func(i int) error {
			if err := addClaim(ctx, client, i, scaleSize(i)); ctx.Err() == nil {
				return err
			}
			return nil
		})
		f.mu.Lock()
		defer f.mu.Unlock()
		f.Seconds["claims and pods created"] = time.Since(began).Seconds()
	}()
	waitLong(t, "all pods have a node", func() (string, bool) {
		placed := f.scheduled(t) - before
		if n := len(f.Placed); n == 0 || time.Since(began).Seconds()-f.Placed[n-1][0] >= 10 || placed == claims {
			f.Placed = append(f.Placed, [2]float64{time.Since(began).Seconds(), float64(placed)})
			if n%6 == 0 {
				t.Logf("%.0f s: %d pods placed", time.Since(began).Seconds(), placed)
			}
		}
		return fmt.Sprint(placed), placed >= claims || ctx.Err() != nil
	})
	<-created
	if ctx.Err() != nil {
		f.c.parts["kube-scheduler"].kill() // what is read next must not change
	}
}

// makeScaleSpace makes the namespace of the claims. It goes with all that is in it when the test ends.
func makeScaleSpace(t testing.TB, client kubernetes.Interface) {
	t.Helper()
	ctx := context.Background()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: scaleSpace}}
	// That of another test may be about to go.
	eventually(t, "the namespace exists", func() bool {
		_, err := client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{})
		return err == nil
	})
	t.Cleanup(func() { removeClaims(t, client) })
	awaitAccount(t, client, scaleSpace)
}

// removeClaims ends the pods at once, because there is no kubelet, and then the claims.
func removeClaims(t testing.TB, client kubernetes.Interface) {
	ctx := context.Background()
	if os.Getenv(scaleVariable) != "" {
		return // the cluster ends with this test
	}
	now := int64(0)
	err := client.CoreV1().Pods(scaleSpace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	if err == nil {
		err = client.ResourceV1().ResourceClaims(scaleSpace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	if err != nil {
		t.Errorf("delete the claims: %v", err)
		return
	}
	eventually(t, "all claims are gone", func() bool {
		left, err := client.ResourceV1().ResourceClaims(scaleSpace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0
	})
	if err := client.CoreV1().Namespaces().Delete(ctx, scaleSpace, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete the namespace: %v", err)
	}
}
