// SPDX-License-Identifier: Apache-2.0

package fleet

import "slices"

// Request is a claim of one GPU: a share in percent, and memory in the unit of the cluster's.
type Request struct{ Share, Memory int }

// Allocate returns the GPU that each request gets in turn, numbered node by node; -1: none fits. None gives
// its GPU back. Tests compare it with the scheduler of Kubernetes.
func Allocate(nodes, perNode, memory int, score Score, requests []Request) []int {
	c := newCluster(slices.Repeat([]Node{{GPUs: perNode, Memory: memory}}, nodes))
	out := make([]int, 0, len(requests))
	for _, r := range requests {
		t := &task{pod: &Pod{GPUs: 1}, claim: claim{gpus: 1, share: r.Share, memory: r.Memory}}
		on := c.find(&t.claim, score, nil, nil)
		if len(on) == 0 {
			out = append(out, -1)
			continue
		}
		c.place(t, on)
		out = append(out, on[0])
	}
	return out
}
