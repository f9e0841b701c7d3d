// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Files of the driver in debugfs.
const (
	mqdsFile = "mqds"
	hqdsFile = "hqds"
)

// Reasons why a queue's ring is unknown.
const (
	reasonDump      = "debugfs mqds can't be read"
	reasonNoProcess = "debugfs mqds does not name the process"
	reasonCut       = "debugfs mqds is cut before the first queue of the process"
	reasonCopies    = "descriptors of copy queues are not decoded"
	reasonFormat    = "the GPU's descriptors have an unknown format"
	reasonChanging  = "queues were created or destroyed while they were read"
)

// readAttempts limits how often queues that change meanwhile are read.
const readAttempts = 4

// readQueues reads the numbered queues of sysfs and the descriptors of debugfs as of one moment:
// the list must be the same before and after the dump. The kernel never reuses an inode number, so
// a queue that was replaced by one with its number is noticed.
func (s Sources) readQueues(f *Found) error {
	var p ProcFS
	var list []MQDQueue
	var reason string
	for range readAttempts {
		before, err := ReadProcess(s.Sysfs, f.PID)
		if err != nil {
			return err
		}
		notes := len(f.Notes)
		list, reason = s.descriptors(f)
		if p, err = ReadProcess(s.Sysfs, f.PID); err != nil {
			return err
		}
		if slices.Equal(before.Queues, p.Queues) {
			break
		}
		f.Notes = f.Notes[:notes]
		list, reason = nil, reasonChanging
	}
	f.Memory = p.GPUs
	for _, q := range p.Queues {
		found := FoundQueue{ID: q.ID, Type: q.Type.String(), GPUID: q.GPUID, Bytes: q.Bytes, Sources: []string{"sysfs"}}
		if s.Ordered {
			found.created = q.inode
		}
		f.Queues = append(f.Queues, found)
	}
	f.join(list, reason)
	return nil
}

// descriptors returns the process's entries of the descriptor dump, or why there are none.
func (s Sources) descriptors(f *Found) ([]MQDQueue, string) {
	file, err := s.Debug.Open(mqdsFile)
	if err != nil {
		f.note("debugfs mqds", err)
		if errors.Is(err, fs.ErrPermission) {
			return nil, reasonDump + " without root"
		}
		return nil, reasonDump
	}
	defer file.Close()
	all, err := ParseMQDs(file)
	f.note("debugfs mqds", err)
	cut := errors.Is(err, ErrCut)
	if err != nil && !cut {
		return nil, reasonDump
	}
	for _, p := range all {
		if p.PID == f.PID && (!cut || len(p.Queues) > 0) {
			return p.Queues, ""
		}
	}
	if cut {
		return nil, reasonCut
	}
	return nil, reasonNoProcess
}

// slots returns the hardware slots of all GPUs.
func (s Sources) slots(f *Found) []HQDNode {
	file, err := s.Debug.Open(hqdsFile)
	if err != nil {
		f.note("debugfs hqds", err)
		return nil
	}
	defer file.Close()
	all, err := ParseHQDs(file)
	f.note("debugfs hqds", err)
	return all
}

// class separates queues that a dump and sysfs list independently.
type class struct {
	gpu     uint32
	compute bool
}

// join gives each numbered queue its descriptor where that is proved, and the reason where it is
// not. Descriptors have no number. A driver may hand out numbers in any order and reuses them, so
// numbers prove nothing; see match.
func (f *Found) join(descriptors []MQDQueue, reason string) {
	numbered, dumped := map[class][]int{}, map[class][]MQDQueue{}
	for i, q := range f.Queues {
		c := class{q.GPUID, q.Type == QueueType(0).String()}
		numbered[c] = append(numbered[c], i)
	}
	for _, d := range descriptors {
		c := class{d.GPUID, d.Kind == KindCompute}
		dumped[c] = append(dumped[c], d)
	}
	for c, places := range numbered {
		switch {
		case !c.compute:
			f.unknown(places, reasonCopies)
		case reason != "":
			f.unknown(places, reason)
		default:
			f.match(places, dumped[c])
			delete(dumped, c)
		}
	}
	for c, list := range dumped { // of GPUs that sysfs does not list for the process
		for _, d := range list {
			if c.compute {
				f.addUnnumbered(d)
			}
		}
	}
}

func (f *Found) unknown(places []int, reason string) {
	for _, i := range places {
		f.Queues[i].Unknown = reason
	}
}

// match joins the compute queues of one GPU. Two facts prove a pair:
//   - Creation order. The driver dumps the newest queue first (kfd_process_queue_manager.c:
//     list_add) and then creates its directory; inode numbers of sysfs only grow (fs/kernfs/dir.c).
//   - A size that one queue and one descriptor have.
//
// Both need as many queues as descriptors, with the same sizes.
func (f *Found) match(places []int, list []MQDQueue) {
	rings := make([]Ring, len(list))
	for i, d := range list {
		ring, ok := d.Ring()
		if !ok {
			f.unknown(places, reasonFormat)
			return
		}
		rings[i] = ring
	}
	sizes := map[uint64]int{} // descriptors less queues
	for _, r := range rings {
		sizes[r.Bytes]++
	}
	same := map[uint64]int{}
	for _, i := range places {
		sizes[f.Queues[i].Bytes]--
		same[f.Queues[i].Bytes]++
	}
	for _, n := range sizes {
		if n != 0 {
			f.unknown(places, fmt.Sprintf("sysfs has %d compute queues, debugfs %d, or their sizes differ", len(places), len(list)))
			f.addAll(list, nil)
			return
		}
	}
	newest := slices.Clone(places)
	slices.SortFunc(newest, func(a, b int) int { return cmp.Compare(f.Queues[b].created, f.Queues[a].created) })
	ordered := !slices.ContainsFunc(places, func(i int) bool { return f.Queues[i].created == 0 })
	for n, i := range newest {
		ordered = ordered && f.Queues[i].Bytes == rings[n].Bytes
	}
	joined := map[uint64]bool{} // rings
	for n, i := range newest {
		q := &f.Queues[i]
		switch {
		case ordered:
			q.describe(list[n])
		case same[q.Bytes] == 1:
			q.describe(list[slices.IndexFunc(rings, func(r Ring) bool { return r.Bytes == q.Bytes })])
		default:
			q.Unknown = fmt.Sprintf("%d queues of %d bytes, and only the kernel's own sysfs has their creation order", same[q.Bytes], q.Bytes)
			continue
		}
		joined[q.Ring] = true
	}
	f.addAll(list, joined)
}

// addAll lists descriptors whose queue is unknown.
func (f *Found) addAll(list []MQDQueue, except map[uint64]bool) {
	for _, d := range list {
		if ring, ok := d.Ring(); !ok || !except[ring.Address] {
			f.addUnnumbered(d)
		}
	}
}

// addUnnumbered lists a descriptor without a queue number.
func (f *Found) addUnnumbered(d MQDQueue) {
	q := FoundQueue{ID: -1, Type: string(d.Kind), GPUID: d.GPUID, Unknown: reasonFormat}
	if d.Kind == KindSDMA {
		q.Unknown = reasonCopies
	}
	q.describe(d)
	f.Queues = append(f.Queues, q)
}

func (q *FoundQueue) describe(d MQDQueue) {
	q.Sources = append(q.Sources, "mqds")
	r, ok := d.Ring()
	if !ok {
		return
	}
	q.Ring, q.Bytes, q.Unknown = r.Address, r.Bytes, ""
	read, write, priority, active := r.ReadPointer/packetDwords, r.WritePointer/packetDwords, r.QueuePriority, r.Active
	q.Read, q.Write, q.Priority, q.Active = &read, &write, &priority, &active
	for _, r := range d.Rings {
		q.descriptors = append(q.descriptors, r.MQD)
	}
}

// load marks queues in hardware slots, whose pointers are more recent. Processes may have equal
// ring addresses, so a slot belongs to the queue whose descriptor it names.
func (f *Found) load(nodes []HQDNode) {
	if len(nodes) == 0 {
		return
	}
	for i := range f.Queues {
		q := &f.Queues[i]
		if q.Ring == 0 || len(q.descriptors) == 0 {
			continue
		}
		loaded := false
		for _, n := range nodes {
			for _, slot := range n.Slots {
				if n.GPUID != q.GPUID || !slot.Loaded() || slot.Ring.Address != q.Ring || !slices.Contains(q.descriptors, slot.Ring.MQD) {
					continue
				}
				loaded = true
				read, write := slot.Ring.ReadPointer/packetDwords, slot.Ring.WritePointer/packetDwords
				q.Read, q.Write = &read, &write
			}
		}
		q.Loaded = &loaded
		q.Sources = append(q.Sources, "hqds")
	}
}
