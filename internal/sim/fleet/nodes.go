// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Node is a machine with GPUs of one kind.
type Node struct {
	GPUs   int
	Memory int    // GiB of each GPU
	Model  string // of its GPUs; "": unknown
}

// nodes returns the first n nodes: those of the list, or equal ones.
func (c *Config) nodes(n int) []Node {
	if c.List != nil {
		return c.List[:min(n, len(c.List))]
	}
	return slices.Repeat([]Node{{GPUs: c.GPUs, Memory: c.Memory}}, n)
}

// gpus counts the GPUs of the first n nodes.
func (c *Config) gpus(n int) int {
	if c.List == nil {
		return n * c.GPUs
	}
	total := 0
	for _, node := range c.nodes(n) {
		total += node.GPUs
	}
	return total
}

// Interleave orders nodes of several kinds so that the first n of them have the mixture of all, for every n.
// A search for the smallest fleet then compares fleets of one mixture. Equal lists give equal orders.
func Interleave(list []Node) []Node {
	count := map[Node]int{}
	for _, n := range list {
		count[n]++
	}
	type place struct {
		node Node
		at   float64 // of the node among all, from 0 to 1
	}
	var places []place
	for n, all := range count {
		for i := range all {
			places = append(places, place{n, (float64(i) + 0.5) / float64(all)})
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.at, b.at), -cmp.Compare(count[a.node], count[b.node]), strings.Compare(a.node.Model, b.node.Model),
			cmp.Compare(a.node.GPUs, b.node.GPUs), cmp.Compare(a.node.Memory, b.node.Memory))
	})
	out := make([]Node, len(places))
	for i := range places {
		out[i] = places[i].node
	}
	return out
}

// CheckNodes reports a mistake in a list of nodes.
func CheckNodes(list []Node) error {
	if len(list) > maxNodes {
		return fmt.Errorf("%d nodes are out of range; use up to %d", len(list), maxNodes)
	}
	for i, n := range list {
		switch {
		case n.GPUs < 1 || n.GPUs > maxGPUs:
			return fmt.Errorf("node %d has %d GPUs; use 1 to %d", i+1, n.GPUs, maxGPUs)
		case n.Memory < 1 || n.Memory > maxMemory:
			return fmt.Errorf("node %d has GPUs with %d GiB; use 1 to %d", i+1, n.Memory, maxMemory)
		}
	}
	return nil
}

// accepts reports whether a pod runs on a model of GPUs. models has names with | between them; "": any.
func accepts(models, model string) bool {
	for models != "" {
		one, rest, more := strings.Cut(models, "|")
		if one == model {
			return true
		}
		if !more {
			return false
		}
		models = rest
	}
	return true
}

// takes returns the memory that a claim takes of a GPU of the node, and whether it accepts that GPU at all.
func (n *Node) takes(k *claim) (memory int, ok bool) {
	switch memory = k.memory; {
	case k.whole:
		memory = n.Memory
	case k.half:
		memory = max(memory, n.Memory/2+1)
	}
	return memory, k.memory <= n.Memory && accepts(k.models, n.Model)
}

// kinds describes the nodes of a list: how many GPUs of which model, the most first.
func kinds(list []Node) string {
	count := map[string]int{}
	for _, n := range list {
		count[fmt.Sprintf("%s with %d GiB", cmp.Or(n.Model, "GPU"), n.Memory)] += n.GPUs
	}
	names := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), strings.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", count[name], name)
	}
	return fmt.Sprintf("%d nodes: %s", len(list), strings.Join(names, ", "))
}

// check reports a mistake in the configuration.
func (c *Config) check() error {
	switch {
	case c.Nodes < 1 || c.Nodes > maxNodes:
		return fmt.Errorf("%d nodes are out of range; use 1 to %d", c.Nodes, maxNodes)
	case c.Length <= 0 || c.Length > maxDays*24*time.Hour:
		return fmt.Errorf("%v are out of range; use up to %d days", c.Length, maxDays)
	case c.List != nil:
		if c.Nodes > len(c.List) {
			return fmt.Errorf("%d nodes are more than the %d of the list", c.Nodes, len(c.List))
		}
		return CheckNodes(c.List)
	case c.GPUs < 1 || c.GPUs > maxGPUs:
		return fmt.Errorf("%d GPUs per node are out of range; use 1 to %d", c.GPUs, maxGPUs)
	case c.Memory < 1:
		return errors.New("a GPU has no memory; set it in GiB")
	}
	return nil
}
