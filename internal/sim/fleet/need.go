// SPDX-License-Identifier: Apache-2.0

package fleet

import "context"

// Need is the smallest fleet that keeps its promises under the best rule of a way of sharing.
type Need struct {
	Sharing Sharing `json:"mode"`
	Rule    string  `json:"rule"`
	Nodes   int     `json:"nodes"`
	GPUs    int     `json:"gpus"` // 0: more than the largest fleet
	Result  *Result `json:"result,omitempty"`
}

// FindNeed searches the smallest number of nodes up to that of the configuration, by bisection,
// for each of the rules. progress, if not nil, is called after each simulation.
func FindNeed(ctx context.Context, pods []Pod, c Config, rules []Rule, progress func()) (*Need, error) {
	out := &Need{Sharing: c.Sharing}
	c.Progress = nil
	kept := func(rule Rule, nodes int, abort bool) (*Result, bool, error) {
		one := c
		one.Rule, one.Nodes, one.Abort = rule, nodes, abort
		r, err := Run(ctx, pods, one)
		if progress != nil {
			progress()
		}
		return r, err == nil && r.Kept(), err
	}
	best := Rule{}
	most := c.Nodes
	for _, rule := range rules {
		if most < 1 {
			break
		}
		if _, ok, err := kept(rule, most, true); err != nil || !ok {
			if err != nil {
				return nil, err
			}
			continue
		}
		lo, hi := 0, most // not kept, kept
		for hi-lo > 1 {
			mid := (lo + hi) / 2
			_, ok, err := kept(rule, mid, true)
			if err != nil {
				return nil, err
			}
			if ok {
				hi = mid
			} else {
				lo = mid
			}
		}
		out.Rule, out.Nodes, out.GPUs = rule.Name, hi, c.gpus(hi)
		best, most = rule, hi-1 // the next one must be smaller
	}
	if out.Nodes == 0 {
		return out, nil
	}
	r, _, err := kept(best, out.Nodes, false)
	out.Result = r
	return out, err
}
