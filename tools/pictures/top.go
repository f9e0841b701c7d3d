// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"xsched/internal/screen"
	"xsched/internal/top"
	"xsched/internal/top/toptest"
)

// liveView draws docs/top.svg: `xsched top` with a scene of fixed data, in a terminal of 96 columns.
func liveView(out map[string][]byte) {
	m := top.New(context.Background(), nil, top.Options{UTF8: true})
	for step := range 8 {
		m.Take(toptest.Scene(step), nil)
	}
	out["docs/top.svg"] = screen.SVG(m.Lines(96, 18), "xsched top: six programs on two GPUs; a service meets its target beside a preempted training job")
}
