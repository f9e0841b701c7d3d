// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// HHPF is HPF for programs on several devices: a process has its highest priority
// on every device, because a program that waits for one device waits for all.
type HHPF struct{ HPF }

// Rank implements Ranker.
func (HHPF) Rank(_ *model.Queue, process model.Priority) model.Priority { return process }
