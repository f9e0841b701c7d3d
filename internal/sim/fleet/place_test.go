// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"testing"
	"time"
)

func TestFind(t *testing.T) {
	// Three nodes of two GPUs: node 0 is empty, node 1 has half of its first GPU, node 2 is full.
	c := newCluster(slices.Repeat([]Node{{GPUs: 2, Memory: 100}}, 3))
	put := func(share, memory int, service bool, on ...int) *task {
		k := &task{pod: &Pod{Service: service, GPUs: len(on)}, claim: claim{gpus: len(on), share: share, memory: memory}}
		c.place(k, on)
		return k
	}
	half := put(50, 50, false, 2)
	put(100, 10, true, 4)
	put(0, 100, true, 5)
	for _, test := range []struct {
		name  string
		claim claim
		score Score
		nodes []int
		want  []int
	}{
		{"the first device that fits", claim{gpus: 1, share: 50, memory: 50}, FirstFit, nil, []int{0}},
		{"the fullest node that fits", claim{gpus: 1, share: 50, memory: 50}, MostAllocated, nil, []int{2}},
		{"the emptiest node", claim{gpus: 1, share: 50, memory: 50}, LeastAllocated, nil, []int{0}},
		{"share is not oversold", claim{gpus: 1, share: 51, memory: 1}, MostAllocated, nil, []int{3}},
		{"memory is not oversold", claim{gpus: 1, share: 1, memory: 51}, MostAllocated, nil, []int{3}},
		{"full memory takes no one", claim{gpus: 1, share: 0, memory: 1}, FirstFit, []int{2}, []int{4}},
		{"best effort takes memory", claim{gpus: 1, share: 0, memory: 95}, FirstFit, []int{2}, nil},
		{"apart from a job", claim{gpus: 1, share: 10, memory: 1, service: true, apart: true}, MostAllocated, nil, []int{3}},
		{"two GPUs of one node", claim{gpus: 2, share: 60, memory: 1}, MostAllocated, nil, []int{0, 1}},
		{"a gang over two nodes", claim{gpus: 4, share: 50, memory: 50}, MostAllocated, nil, []int{2, 3, 0, 1}},
		{"whole or not at all", claim{gpus: 5, share: 50, memory: 50}, MostAllocated, nil, nil},
		{"too large", claim{gpus: 1, share: 1, memory: 101}, MostAllocated, nil, nil},
	} {
		if got := c.find(&test.claim, test.score, test.nodes, nil); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	// Only the job can be evicted, and only by a higher priority.
	if device, victims := c.victims(&claim{gpus: 1, share: 80, memory: 10}, 0); device >= 0 {
		t.Errorf("equal priority evicts %v", victims)
	}
	if device, victims := c.victims(&claim{gpus: 1, share: 80, memory: 10}, 1); device != 2 || !slices.Equal(victims, []*task{half}) {
		t.Errorf("got device %d, %v", device, victims)
	}
	c.remove(half)
	if c.allocated[1] != 0 || c.devices[2].share != 0 || c.devices[2].memory != 0 {
		t.Errorf("after its end: %v, %+v", c.allocated, c.devices[2])
	}
}

func TestClaims(t *testing.T) {
	o, err := Table(XSched, 1)
	if err != nil {
		t.Fatal(err)
	}
	service := &Pod{Service: true, GPUs: 1, Memory: 20, Rate: 100, Request: stepRequest, P99: time.Second, shape: 1} // 0.3 of a GPU
	tight := *service
	tight.P99 = 3 * time.Millisecond // not even alone
	gang := &Pod{GPUs: 4, Memory: 70}
	for _, test := range []struct {
		rule Rule
		pod  *Pod
		want claim
	}{
		{whole, service, claim{gpus: 1, share: 100, memory: 20, service: true, whole: true}},
		{Rule{Slots: 3}, service, claim{gpus: 1, share: 33, memory: 20, service: true}},
		{Rule{Slots: 3}, gang, claim{gpus: 4, share: 100, memory: 70}},
		{Rule{Headroom: 2, BatchShare: 25}, service, claim{gpus: 1, share: 80, memory: 20, service: true}},
		{Rule{Headroom: 2, BatchShare: 25}, &tight, claim{gpus: 1, share: 100, memory: 20, service: true}},
		{Rule{Headroom: 9, BatchShare: 25}, service, claim{gpus: 1, share: 100, memory: 20, service: true}},
		{Rule{Headroom: 2, BatchShare: 5, HalfMemory: true}, &Pod{GPUs: 1, Memory: 70}, claim{gpus: 1, share: 5, memory: 70, half: true}},
		{Rule{Headroom: 2, BatchShare: 25, Apart: true}, gang, claim{gpus: 4, share: 25, memory: 70, apart: true}},
	} {
		if got := test.rule.claim(test.pod, o, time.Millisecond); got != test.want {
			t.Errorf("%+v: %+v, want %+v", test.rule, got, test.want)
		}
	}
}
