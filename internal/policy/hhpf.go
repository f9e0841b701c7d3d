// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// HHPF is HPF for programs on several devices: a process that is high
// anywhere is as high everywhere it has queues, because one that waits for its low
// half on another device is as slow as that half.
type HHPF struct{ HPF }

var (
	_ Policy = HHPF{}
	_ Ranker = HHPF{}
)

// Name implements Policy.
func (HHPF) Name() string { return "HHPF" }

// Rank implements Ranker.
func (HHPF) Rank(_ *model.Queue, process model.Priority) model.Priority { return process }

// byProcess says that Rank reads its second argument.
func (HHPF) byProcess() {}
