// SPDX-License-Identifier: Apache-2.0

// Package toptest has a scene for tests and pictures of the live view.
package toptest

import (
	"math"
	"time"

	"xsched/internal/control"
)

const (
	gpu0 = "0000:01:00.0"
	gpu1 = "0000:02:00.0"
)

// Scene returns a snapshot of two GPUs with a service that is protected from two training jobs, at a
// step of a fixed story.
func Scene(step int) control.Snapshot {
	load := 0.3 + 0.25*math.Sin(float64(step)*0.9)
	start := time.Date(2026, 1, 5, 9, 0, 0, 0, time.UTC)
	queue := func(device, state string, level int, by ...control.Cause) []control.Queue {
		return []control.Queue{{Device: device, Busy: state != "idle", State: state, Level: level, PreemptedBy: by}}
	}
	out := control.Snapshot{
		TimeNS: start.Add(3*time.Hour + 12*time.Minute + time.Duration(step)*time.Second).UnixNano(),
		Daemon: control.Version{Version: "2.0.0", PID: 812, Dir: "/run/xsched", Policy: "HPF", Mode: "live", StartedNS: start.UnixNano()},
		Devices: []control.Device{
			{ID: gpu0, Name: "Example GPU 80GB", Driver: "virtual", MaxLevel: 3, Processes: 3, Queues: 3, Utilization: 0.97, Policy: "HPF", Mode: "live"},
			{ID: gpu1, Name: "Example GPU 80GB", Driver: "virtual", MaxLevel: 3, Processes: 2, Queues: 3, Others: 1, Utilization: 0.41, Policy: "CFS", Mode: "live"},
		},
		List: control.List{
			Policy: "HPF", Mode: "live", Devices: []control.DeviceSetting{{Device: gpu1, Policy: "CFS"}},
			Processes: []control.Process{
				{
					PID: 4711, Session: 1, User: "ana", Command: "python serve.py --port 8080", State: control.StateRunning, GPUShare: load, AgeMS: 3600e3,
					Queues: queue(gpu0, "running", 3), Latency: requests(1240, 4100, 90), SLO: target(20_000, 5210, 12),
					Protection: []control.Protection{{
						Device: gpu0, State: control.ProtectionActive, Requests: 5180, P50US: 1240, P99US: 4100,
						NativeP50US: 9300, NativeP99US: 38_200, NativeSource: "modelled", GainP99US: 34_100, CostRatio: 0.021, CostNS: 66e9,
					}},
				},
				{
					PID: 4890, Session: 2, User: "bo", Command: "python train.py --epochs 90", Priority: -10, State: control.StatePreempted, GPUShare: 0.9 - load, AgeMS: 7200e3,
					Preemptions: 18204, LostNS: 311e9, Queues: queue(gpu0, "suspended", 3, control.Cause{PID: 4711, Count: 18100, Reason: "process"}, control.Cause{PID: 5001, Count: 104, Reason: "process"}),
					Latency: &control.Latency{Source: control.SourceBusy, Requests: 12, OpenNS: 71e9, Uncertain: control.UncertainBusy},
				},
				{
					PID: 5001, Session: 3, User: "carla", Command: "/opt/tools/render --scene city --frames 1-200", State: control.StateWaiting, GPUShare: 0.07, AgeMS: 600e3,
					Preemptions: 90, LostNS: 4e9, Queues: queue(gpu0, "yielding", 2), Latency: requests(15_000, 61_000, 20_000), SLO: target(50_000, 190, 31),
				},
				{PID: 5120, Session: 4, User: "bo", Command: "python sweep.py", State: control.StateHeld, Held: true, AgeMS: 90e3, LostNS: 12e9, Preemptions: 1, Queues: queue(gpu1, "held", 3)},
				{PID: 5333, Session: 5, User: "dev", Command: "jupyter-lab", State: control.StateIdle, AgeMS: 90e3, Queues: queue(gpu1, "idle", 1), Latency: requests(700, 910, 0)},
				// Another user's command is hidden.
				{PID: 6001, Session: 6, User: "1000", Container: "/system.slice/docker-pod7.scope", Priority: -1, State: control.StateRunning, GPUShare: 0.41, AgeMS: 90e3, Attached: true},
			},
		},
	}
	control.NameProcesses(out.List.Processes)
	return out
}

func requests(p50, p99, wait float64) *control.Latency {
	return &control.Latency{
		Source: control.SourceBusy, Requests: 5222,
		Total: control.Histogram{Count: 5222, Recent: 410, P50US: p50, P99US: p99}, Wait: control.Histogram{Count: 5222, Recent: 410, P99US: wait}, Own: control.Histogram{Count: 5222, Recent: 410, P99US: p99 - wait},
	}
}

func target(us int64, met, missed uint64) *control.SLO {
	attained := float64(met) / float64(met+missed)
	return &control.SLO{TargetUS: us, Objective: 0.99, Met: met, Missed: missed, Attainment: attained, BudgetLeft: 1 - (1-attained)/0.01}
}

// Policies is a reply of the scene's daemon.
func Policies() control.PolicyReply {
	return control.PolicyReply{
		Name: "HPF", Available: []string{"CFS", "EDF", "FIFO", "HPF", "SLO"},
		Summaries: map[string]string{"CFS": "weighted fair shares", "EDF": "earliest deadline first", "FIFO": "first come, first served", "HPF": "highest priority first", "SLO": "latency targets"},
	}
}
