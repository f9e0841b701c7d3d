// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestInterleave checks that every prefix of the order has the mixture of the whole list, within one node.
func TestInterleave(t *testing.T) {
	small, large := Node{2, 24, "A10"}, Node{8, 80, "A100"}
	list := append(slices.Repeat([]Node{small}, 30), slices.Repeat([]Node{large}, 10)...)
	got := Interleave(list)
	slices.Reverse(list)
	if len(got) != len(list) || !slices.Equal(got, Interleave(list)) {
		t.Fatalf("%d of %d nodes, or the order depends on that of the list", len(got), len(list))
	}
	have := 0
	for i, n := range got {
		if n == large {
			have++
		}
		if want := float64(i+1) / 4; float64(have) < want-1 || float64(have) > want+1 {
			t.Errorf("%d of the first %d nodes are large", have, i+1)
		}
	}
}

// TestKindsOfGPUs places pods on nodes of two kinds: by model, by memory, and a gang on nodes that are large enough.
func TestKindsOfGPUs(t *testing.T) {
	c := newCluster([]Node{{2, 24, "A10"}, {4, 80, "A100"}, {4, 80, "A100"}})
	for _, test := range []struct {
		name  string
		claim claim
		want  []int
	}{
		{"any model", claim{gpus: 1, share: 50, memory: 20}, []int{0}},
		{"more memory than the first has", claim{gpus: 1, share: 50, memory: 30}, []int{2}},
		{"one of two models", claim{gpus: 1, share: 50, memory: 20, models: "A100|H100"}, []int{2}},
		{"no such model", claim{gpus: 1, share: 50, memory: 20, models: "H100"}, nil},
		{"four of one node", claim{gpus: 4, share: 50, memory: 20}, []int{2, 3, 4, 5}},
		{"eight of two nodes", claim{gpus: 8, share: 50, memory: 20}, []int{2, 3, 4, 5, 6, 7, 8, 9}},
		{"three of a model with nodes of two", claim{gpus: 3, share: 50, memory: 20, models: "A10"}, nil},
		{"whole memory", claim{gpus: 1, share: 100, memory: 30, whole: true}, []int{2}},
		{"half of the memory", claim{gpus: 1, share: 5, memory: 1, half: true}, []int{0}},
	} {
		if got := c.find(&test.claim, FirstFit, nil, nil); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	job := &task{pod: &Pod{GPUs: 1}, claim: claim{gpus: 1, share: 5, memory: 1, half: true}}
	c.place(job, []int{0})
	c.place(&task{pod: &Pod{GPUs: 1}, claim: job.claim}, []int{2})
	if c.devices[0].memory != 13 || c.devices[2].memory != 41 {
		t.Errorf("half of 24 and of 80 GiB: %d and %d", c.devices[0].memory, c.devices[2].memory)
	}
	c.remove(job)
	if c.devices[0].memory != 0 || c.allocated[0] != 0 {
		t.Errorf("after its end: %+v, %v", c.devices[0], c.allocated)
	}
}

// TestFleetOfKinds searches the smallest part of a list that takes services which accept one model only.
func TestFleetOfKinds(t *testing.T) {
	list := Interleave(append(slices.Repeat([]Node{{1, 24, "A10"}}, 20), slices.Repeat([]Node{{4, 80, "A100"}}, 20)...))
	pod := Pod{Service: true, GPUs: 1, Memory: 60, Request: stepRequest, Rate: 10, P99: time.Second, Models: "A100"}
	pods := slices.Repeat([]Pod{pod}, 16)
	if err := Complete(pods); err != nil {
		t.Fatal(err)
	}
	s, err := Compare(t.Context(), Options{
		Config: Config{Nodes: len(list), List: list, Cost: 1, Length: time.Hour}, Sharings: []Sharing{Exclusive}, Pods: pods, Source: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	// 16 A100 are four nodes; as many A10 nodes come with them.
	if got := s.Needs[0]; got.Nodes < 7 || got.Nodes > 8 || got.GPUs < 16+3 || got.GPUs > 16+4 {
		t.Errorf("%d nodes with %d GPUs", got.Nodes, got.GPUs)
	}
	if want := "40 nodes: 80 A100 with 80 GiB, 20 A10 with 24 GiB"; s.Kinds != want || !strings.Contains(s.head(), want) || s.GPUs != 100 {
		t.Errorf("%q, %d GPUs", s.Kinds, s.GPUs)
	}
	for _, bad := range []Config{
		{Nodes: 3, List: list[:2], Length: time.Hour}, {Nodes: 1, List: []Node{{0, 24, ""}}, Length: time.Hour}, {Nodes: 1, List: []Node{{1, 0, ""}}, Length: time.Hour},
	} {
		if bad.check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
