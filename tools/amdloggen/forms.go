// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
)

// form is the log format of one ROCm generation.
type form struct {
	name string
	kind int // of the message
}

const (
	oldForm = iota // HWq only
	newForm        // SWq, HWq, id, rptr, wptr
	nextForm
)

var eraNames = []string{"4.5", "4.5-pid", "5.x", "6.2", "6.4", "7.0", "2026"}

func formsOf(era string) ([]form, error) {
	kinds := map[string]int{"4.5": oldForm, "4.5-pid": oldForm, "5.x": oldForm, "2026": nextForm}
	var all []form
	for _, name := range eraNames {
		f := form{name, newForm}
		if kind, ok := kinds[name]; ok {
			f.kind = kind
		}
		if name == era {
			return []form{f}, nil
		}
		all = append(all, f)
	}
	if era == "mixed" {
		return all, nil
	}
	return nil, fmt.Errorf("unknown era %q", era)
}

// writer appends the process and thread field.
func (f form) writer(b []byte, pid int, tid uint64) []byte {
	number := func(before string, v int64, base int, after string) {
		b = append(b, before...)
		b = strconv.AppendInt(b, v, base)
		b = append(b, after...)
	}
	switch f.name {
	case "4.5":
		number(" us: [", int64(tid), 16, "]!\t")
	case "4.5-pid":
		number(" us: ", int64(pid), 10, ": [")
		number("", int64(tid), 16, "] ")
	case "5.x":
		number(" us: ", int64(pid), 10, " : [tid:0x")
		number("", int64(tid), 16, "] ")
	case "6.2":
		number(" us: [pid:", int64(pid), 10, "  tid:0x")
		number("", int64(tid), 16, "] ")
	case "6.4":
		b = append(b, "d us:  "...)
	case "2026":
		number(" us: [pid:", int64(pid), 10, " tid: 0x")
		number("", int64(tid>>8&0xfffff), 16, "] ")
	default:
		number(" us: [pid:", int64(pid), 10, " tid: 0x")
		number("", int64(tid), 16, "] ")
	}
	return b
}

func (f form) created(s *stream) string {
	if f.kind == oldForm {
		return fmt.Sprintf("created hardware queue 0x%x with size 16384 with priority %d, cooperative: 0", s.swq, s.priority)
	}
	return fmt.Sprintf("Created SWq=0x%x to map on HWq=0x%x with size 16384 with priority %d, cooperative: 0", s.swq, s.hwq, s.priority)
}

// logged is the queue's address in records of its life: old releases print the software queue.
func (f form) logged(s *stream) uint64 {
	if f.kind == oldForm {
		return s.swq
	}
	return s.hwq
}

func (f form) queue(s *stream) string {
	switch f.kind {
	case oldForm:
		return fmt.Sprintf("HWq=0x%x, ", s.hwq)
	case nextForm:
		return fmt.Sprintf("SWq=0x%x, HWq=0x%x, id=1, priority=%d, ", s.swq, s.hwq, s.priority)
	}
	return fmt.Sprintf("SWq=0x%x, HWq=0x%x, id=1, ", s.swq, s.hwq)
}

func (f form) dispatch(s *stream, grid [3]int, object uint64) string {
	text := f.queue(s) + fmt.Sprintf("Dispatch Header = 0xb02 (type=2, barrier=1, acquire=1, release=1), setup=3, grid=[%d, %d, %d], workgroup=[256, 1, 1], "+
		"private_seg_size=0, group_seg_size=0, kernel_obj=0x%x, kernarg_address=0x7f8acce00000, completion_signal=0x0", grid[0], grid[1], grid[2], 0x7f8ed23d8800+object<<8)
	switch f.kind {
	case newForm:
		text += fmt.Sprintf(", correlation_id=0, rptr=%d, wptr=%d", s.rptr, s.wptr)
	case nextForm:
		text += fmt.Sprintf(", rptr=%d, wptr=%d", s.rptr, s.wptr)
	}
	return text
}

func (f form) barrier(s *stream) string {
	name := "BarrierAND"
	if f.kind == nextForm {
		name = "Barrier-AND"
	}
	text := f.queue(s) + name + " Header = 0x1503 (type=3, barrier=1, acquire=2, release=2), dep_signal=[0x0, 0x0, 0x0, 0x0, 0x0], completion_signal=0x7f8ad13ff900"
	if f.kind != oldForm {
		text += fmt.Sprintf(", rptr=%d, wptr=%d", s.rptr, s.wptr)
	}
	return text
}
