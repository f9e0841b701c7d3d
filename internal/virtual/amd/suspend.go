// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

// queueIDs is the array argument of SUSPEND_QUEUES and RESUME_QUEUES. Every entry starts as invalid.
type queueIDs []uint32

func (c *call) ids(n uint32) queueIDs {
	c.params = c.params[:4*n]
	out := make(queueIDs, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(c.params[4*i:]) | abi.KFD_DBG_QUEUE_INVALID_MASK
	}
	return out
}

func (c *call) putIDs(ids queueIDs) {
	for i, id := range ids {
		binary.LittleEndian.PutUint32(c.params[4*i:], id)
	}
}

// index follows q_array_get_index (kfd_device_queue_manager.c): of a repeated id only the first
// entry counts.
func (ids queueIDs) index(id uint32) int {
	return slices.IndexFunc(ids, func(v uint32) bool { return v&^abi.KFD_DBG_QUEUE_INVALID_MASK == id })
}

// idError validates the array argument.
func (k *Kernel) idError(c *call, pointer uint64, n uint32) unix.Errno {
	switch {
	case k.config.Variant == Upstream && (pointer == 0 && n > 0 || n > maxSuspend):
		return unix.EINVAL
	case n > 0 && (c.fault || uint64(len(c.params)) < 4*uint64(n)):
		return unix.EFAULT
	}
	return 0
}

// suspend follows suspend_queues and suspend_single_queue (kfd_device_queue_manager.c).
func (k *Kernel) suspend(c *call, target *Process) {
	n := c.u32(24)
	if e := k.idError(c, c.u64(16), n); e != 0 {
		c.done(fails(e))
		return
	}
	ids, clear := c.ids(n), c.u64(8)
	mes := k.config.Scheduler == MES
	var named, counted, changed []*queue
	for _, q := range target.queues {
		i := ids.index(q.id)
		if i < 0 {
			continue
		}
		named = append(named, q)
		if !q.suspended {
			if q.destroying || q.exceptions&abi.KFD_EC_MASK_QUEUE_NEW != 0 {
				continue
			}
			q.suspended = true
			changed = append(changed, q)
			if mes && k.faults.UnmapFails {
				ids[i] |= abi.KFD_DBG_QUEUE_ERROR_MASK
				break
			}
		}
		ids[i] &^= abi.KFD_DBG_QUEUE_INVALID_MASK
		counted = append(counted, q)
	}
	// HWS remaps the GPU even if no queue has changed.
	k.remapAll(k.gpusOf(counted), changed, func(failed map[uint32]bool) {
		done := 0
		for _, q := range counted {
			if !failed[q.gpu] {
				done++
			}
		}
		for _, q := range named {
			switch {
			case failed[q.gpu] && !mes:
				ids[ids.index(q.id)] |= abi.KFD_DBG_QUEUE_ERROR_MASK
			case !mes || slices.Contains(counted, q):
				q.exceptions &^= clear
			}
		}
		if done > 0 {
			k.saveHeaders(target)
		}
		c.putIDs(ids)
		c.done(done)
	})
}

// saveHeaders follows copy_context_work_handler (kfd_device_queue_manager.c) and get_wave_state
// (kfd_mqd_manager_v9.c): one header per die of every compute queue of the process. The model's
// queues have no saved waves.
func (k *Kernel) saveHeaders(target *Process) {
	for _, q := range target.queues {
		if !q.compute() || q.saveAddress == 0 {
			continue
		}
		b := make([]byte, 0, abi.ContextSaveHeaderBytes)
		for _, v := range []uint32{q.ctlBytes, 0, q.ctlBytes, 0} { // offset and size of control stack and waves
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		for die := range uint64(k.config.xccs()) {
			k.system.Write(target.PID, q.saveAddress+die*uint64(q.saveBytes), b)
		}
	}
}

// resume follows resume_queues and resume_single_queue (kfd_device_queue_manager.c).
func (k *Kernel) resume(c *call, target *Process) {
	n, pointer := c.u32(16), c.u64(8)
	if pointer == 0 { // all queues
		k.resumeQueues(target, target.queues, func(done int, _ map[uint32]bool) { c.done(done) })
		return
	}
	if e := k.idError(c, pointer, n); e != 0 {
		c.done(fails(e))
		return
	}
	ids := c.ids(n)
	var named []*queue
	for _, q := range target.queues {
		if i := ids.index(q.id); i >= 0 {
			ids[i] &^= abi.KFD_DBG_QUEUE_INVALID_MASK
			named = append(named, q)
		}
	}
	k.resumeQueues(target, named, func(done int, failed map[uint32]bool) {
		for _, q := range named {
			if failed[q.gpu] {
				ids[ids.index(q.id)] |= abi.KFD_DBG_QUEUE_ERROR_MASK
			}
		}
		c.putIDs(ids)
		c.done(done)
	})
}

// resumeQueues resumes queues and destroys those with a pending DESTROY_QUEUE. HWS remaps the GPU
// even if all queues were running.
func (k *Kernel) resumeQueues(target *Process, queues []*queue, done func(n int, failed map[uint32]bool)) {
	queues = slices.Clone(queues)
	var changed []*queue
	for _, q := range queues {
		if q.suspended {
			q.suspended = false
			changed = append(changed, q)
		}
	}
	k.remapAll(k.gpusOf(queues), changed, func(failed map[uint32]bool) {
		n := 0
		for _, q := range queues {
			if !failed[q.gpu] {
				n++
			}
		}
		if n > 0 || len(queues) == 0 {
			waiting := target.waiting
			target.waiting = nil
			for _, f := range waiting {
				f()
			}
		}
		done(n, failed)
	})
}

func (k *Kernel) gpusOf(queues []*queue) (list []*gpu) {
	for _, g := range k.gpus {
		if slices.ContainsFunc(queues, func(q *queue) bool { return q.gpu == g.id }) {
			list = append(list, g)
		}
	}
	return list
}

// remapAll remaps GPUs, each once; MES touches only the changed queues. done receives the GPUs whose
// firmware did not reply.
func (k *Kernel) remapAll(gpus []*gpu, changed []*queue, done func(failed map[uint32]bool)) {
	type step struct {
		g *gpu
		q *queue
	}
	var steps []step
	if k.config.Scheduler == MES {
		for _, q := range changed {
			steps = append(steps, step{k.gpu(q.gpu), q})
		}
	} else {
		for _, g := range gpus {
			steps = append(steps, step{g, nil})
		}
	}
	left, failed := len(steps), map[uint32]bool{}
	if left == 0 {
		done(failed)
		return
	}
	for _, s := range steps {
		k.remap(s.g, s.q, func(ok bool) {
			if !ok {
				failed[s.g.id] = true
			}
			if left--; left == 0 {
				done(failed)
			}
		})
	}
}
