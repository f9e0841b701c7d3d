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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	fleetsim "xsched/internal/sim/fleet"
)

// The cluster that the scheduler and the fleet simulator fill.
const (
	simNodes  = 10
	simGPUs   = 4
	simClaims = 200 // more than fit
)

// inOrder is a scheduler that takes the first node with room: the only score is the pods' own preference.
const inOrder = "in-order"

// TestSchedulerAllocatesAsSimulated fills a small cluster. The scheduler and the fleet simulator get the same
// claims in the same order, and must give each the same GPU or none. The scheduler as it is by default takes
// the node with the fewest pods, one of those by chance, which no rule of the simulator is: it is only logged.
func TestSchedulerAllocatesAsSimulated(t *testing.T) {
	c := StartControl(t)
	client := fastClient(t)
	useOrder(t, c)
	startKwok(t, c, 40)
	addNodes(t, client, simNodes)
	startFleet(t, &fleetOrder{
		Config: userConfig("admin"), Folder: "/run/o", GPUs: simGPUs, Memory: scaleMemory, Tokens: installChart(t, c, client, simNodes),
	})
	waitLong(t, "all GPUs are published", func() (string, bool) {
		_, gpus, err := publishedGPUs(context.Background(), client, simNodes)
		return fmt.Sprint(gpus, err), gpus == simNodes*simGPUs
	})
	var requests []fleetsim.Request
	for i := range simClaims {
		s := scaleSize(i)
		requests = append(requests, fleetsim.Request{Share: int(s.share), Memory: int(s.memory)})
	}
	simulated := fleetsim.Allocate(simNodes, simGPUs, 80, fleetsim.FirstFit, requests)
	got := schedule(t, client, inOrder)
	for i, on := range simulated {
		if got[i] != on {
			t.Errorf("claim %d of share %d and %d GiB: the scheduler chose GPU %d, the simulator %d", i, requests[i].Share, requests[i].Memory, got[i], on)
		}
	}
	if placed, _ := tally(simulated); placed == simClaims {
		t.Error("the claims do not fill the cluster")
	}
	logTally(t, "scheduler and simulator, first node", simulated)
	logTally(t, "scheduler by default", schedule(t, client, corev1.DefaultSchedulerName))
	for _, score := range []fleetsim.Score{fleetsim.LeastAllocated, fleetsim.MostAllocated} {
		logTally(t, "simulator, score "+string(score), fleetsim.Allocate(simNodes, simGPUs, 80, score, requests))
	}
}

func logTally(t testing.TB, who string, gpus []int) {
	t.Helper()
	const few = simClaims / 4
	first, used := tally(gpus[:few])
	all, _ := tally(gpus)
	t.Logf("%s: %d of the first %d claims use %d of %d GPUs; %d of all %d have a GPU", who, first, few, used, simNodes*simGPUs, all, simClaims)
}

// tally counts claims with a GPU, and GPUs with a claim.
func tally(gpus []int) (placed, used int) {
	gpus = slices.DeleteFunc(slices.Clone(gpus), func(gpu int) bool { return gpu < 0 })
	placed = len(gpus)
	slices.Sort(gpus)
	return placed, len(slices.Compact(gpus))
}

// useOrder adds the scheduler inOrder.
func useOrder(t *testing.T, c *Cluster) {
	t.Helper()
	config := fmt.Sprintf(`{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration","leaderElection":{"leaderElect":false},
"clientConnection":{"kubeconfig":%q,"qps":1000,"burst":2000},"profiles":[{"schedulerName":%q},
{"schedulerName":%q,"plugins":{"preScore":{"disabled":[{"name":"*"}],"enabled":[{"name":"NodeAffinity"}]},"score":{"disabled":[{"name":"*"}],"enabled":[{"name":"NodeAffinity"}]}}}]}
`, userConfig("scheduler"), corev1.DefaultSchedulerName, inOrder)
	if err := os.WriteFile(path("order.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.withArguments(t, "kube-scheduler", "--config="+path("order.json"))
}

// schedule gives claims to a scheduler, one pod at a time, and returns the GPU of each, numbered node by node;
// -1: the pod waits.
func schedule(t *testing.T, client kubernetes.Interface, scheduler string) []int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	defer cancel()
	var out []int
	t.Run(scheduler, func(t *testing.T) { // so that its claims go
		makeScaleSpace(t, client)
		for i := range simClaims {
			if err := addClaim(ctx, client, i, scaleSize(i), func(pod *corev1.Pod) {
				pod.Spec.SchedulerName = scheduler
				if scheduler == inOrder {
					preferInOrder(pod)
				}
			}); err != nil {
				t.Fatal(err)
			}
			for { // the scheduler must decide before it sees the next pod
				pod, err := client.CoreV1().Pods(scaleSpace).Get(ctx, claimName(i), metav1.GetOptions{})
				if err != nil {
					t.Fatalf("the scheduler has not decided on pod %d: %v", i, err)
				}
				if pod.Spec.NodeName != "" || waits(pod) {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		a := readAllocations(t, client)
		a.check(t, scaleSize, simClaims)
		for i := range simClaims {
			out = append(out, a.number(claimName(i)))
		}
	})
	if len(out) != simClaims {
		t.FailNow()
	}
	return out
}

// preferInOrder makes a pod prefer each node to the next one.
func preferInOrder(pod *corev1.Pod) {
	affinity := &corev1.NodeAffinity{}
	for i := range simNodes {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{
			Weight: int32(simNodes - i),
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{simulatedName(i)}},
			}},
		})
	}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: affinity}
}

// waits reports whether the scheduler found no node. That it does not know the claim yet is no decision.
func waits(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "cannot allocate all claims")
	})
}

// number returns a claim's GPU, numbered node by node in the order of their names; -1: it has none.
func (a *allocations) number(claim string) int {
	status := a.claims[claim].Status.Allocation
	if status == nil {
		return -1
	}
	mine := gpu{status.Devices.Results[0].Pool, status.Devices.Results[0].Device}
	n := 0
	for other := range a.gpus {
		if strings.Compare(a.nodes[other.pool], a.nodes[mine.pool]) < 0 || other.pool == mine.pool && other.device < mine.device {
			n++
		}
	}
	return n
}
