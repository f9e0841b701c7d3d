// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// poolKept is how long a pool without queues is remembered: its next program
// pays for what the last one had.
const poolKept = time.Minute

// findPools finds the queues that have one share together.
func (d *device) findPools() {
	v := &d.view
	for k := range v.Pools {
		if p := &v.Pools[k]; p.Queues > 0 {
			p.Queues, p.UsedAt = 0, d.accounted
		}
	}
	v.Pools = slices.DeleteFunc(v.Pools, func(p policy.Pool) bool { return d.accounted.Sub(p.UsedAt) > poolKept })
	var index map[string]int
	for i := range v.Queues {
		q := &v.Queues[i]
		q.Pool, q.Spare = 0, 0
		if q.Hint.Pool == "" {
			continue
		}
		if index == nil {
			index = make(map[string]int, len(v.Pools))
			for k := range v.Pools {
				index[v.Pools[k].Name] = k + 1
			}
		}
		if q.Pool = index[q.Hint.Pool]; q.Pool == 0 {
			v.Pools = append(v.Pools, policy.Pool{Name: q.Hint.Pool})
			q.Pool = len(v.Pools)
			index[q.Hint.Pool] = q.Pool
		}
		v.Pools[q.Pool-1].Queues++
	}
	if best := index[model.PoolBestEffort]; best > 0 {
		d.findSpare(best)
	}
}

// findSpare tells the queues of the best effort what the other pools leave.
func (d *device) findSpare(best int) {
	v := &d.view
	shares, spare := make([]int, len(v.Pools)), model.UtilizationMax
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Pool > 0 && q.Pool != best {
			spare -= max(0, q.Hint.Utilization-shares[q.Pool-1])
			shares[q.Pool-1] = max(shares[q.Pool-1], q.Hint.Utilization)
		}
	}
	for i := range v.Queues {
		if v.Queues[i].Pool == best {
			v.Queues[i].Spare = max(1, spare)
		}
	}
}

// emptied is what remains of a device without queues.
type emptied struct {
	at     model.Time
	policy string
	state  *policy.State
	pools  []policy.Pool
}

// empty remembers the pools of a device whose last queue has left.
func (e *Engine) empty(d *device) {
	if len(d.view.Pools) == 0 {
		return
	}
	if e.emptied == nil {
		e.emptied = make(map[model.DeviceID]emptied)
	}
	e.emptied[d.id] = emptied{d.accounted, d.policy.Name(), d.state, d.view.Pools}
}

// refill gives a device the pools that it had before it was without queues.
func (e *Engine) refill(d *device) {
	was, ok := e.emptied[d.id]
	if !ok {
		return
	}
	delete(e.emptied, d.id)
	if d.accounted.Sub(was.at) > poolKept {
		return
	}
	d.view.Pools = was.pools
	if was.policy == d.policy.Name() {
		d.state = was.state.Ungranted()
	}
}
