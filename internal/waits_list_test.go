// SPDX-License-Identifier: Apache-2.0

package internal

// Reasons that several places share.
const (
	reasonChild   = "a child that runs as long as its work; the caller waits for its first answer with a limit"
	reasonUser    = "the user's own program, which ends when it likes or by an interrupt"
	reasonHelper  = "the one place that makes the call; each process on a device has its own worker, and a stuck one is reported"
	reasonDouble  = "the virtual GPU: it hangs as a device does, in a worker"
	reasonPlugin  = "only in kubectl's plugin, in the foreground; contexts bound the requests on the stream"
	reasonOneSlot = "the channel has room for one value, and only this line sends"
)

// reviewedWaits are the waits without a limit of their own that are right, each with the reason.
var reviewedWaits = map[string]string{
	"internal/api/pace.go begin: " + ruleLocked:                          reasonOneSlot,
	"internal/api/tcpdoor.go next: " + ruleTimes:                         "http.Server sets the deadlines",
	"internal/cli/doctor_command.go runTrial: " + ruleExec:               reasonUser,
	"internal/cli/local.go launchPrivate: " + ruleExec:                   reasonChild,
	"internal/cli/vgpu.go openFiles: " + ruleTimes:                       reasonDouble,
	"internal/cli/vgpu_start.go vgpuAnswers: " + ruleTimes:               reasonDouble,
	"internal/cli/vgpu_start.go startDevice: " + ruleExec:                reasonChild,
	"internal/cli/window_launch.go start: " + ruleExec:                   reasonUser,
	"internal/control/client/client.go dial: " + ruleTimes:               "http.Client has a timeout, and each request a context",
	"internal/control/client/events.go Events: " + ruleHTTP:              "a stream that ends with its context; readers notice silence themselves",
	"internal/doctor/ask_unsafe.go askNode: " + ruleDevice:               "its caller waits with answerLimit",
	"internal/driver/amd/ioctl_unsafe.go Ioctl: " + ruleDevice:           reasonHelper,
	"internal/driver/amd/owner.go Answer: " + ruleLocked:                 reasonOneSlot,
	"internal/driver/amd/transport_virtual.go DialVirtual: " + ruleTimes: reasonDouble,
	"internal/driver/nvidia/ioctl_unsafe.go Ioctl: " + ruleDevice:        reasonHelper,
	"internal/driver/nvidia/selftest_program.go startTest: " + ruleExec:  "the test kills it when its context ends",
	"internal/driver/nvidia/transport_virtual.go Open: " + ruleTimes:     reasonDouble,
	"internal/guardian/link.go awaitHangup: " + rulePoll:                 "a goroutine that waits for the end of a guardian, which attend asks every second",
	"internal/guardian/link.go spawn: " + ruleExec:                       reasonChild,
	"internal/guardian/main.go serve: " + rulePoll:                       "without processes to guard only the daemon can wake it",
	"internal/quarantine/accept.go drained: " + ruleDevice:               "SIOCINQ of a socket, not of a driver; it never waits",
	"internal/kube/fleetview/tunnel.go dial: " + ruleTimes:               reasonPlugin,
	"internal/kube/fleetview/tunnel.go forward: " + ruleHTTP:             reasonPlugin,
	"internal/kube/fleetview/tunnel.go forward: " + ruleTimes:            reasonPlugin,
	"internal/kube/view/stream.go Accept: " + ruleTimes:                  "http.Server sets the deadlines",
	"internal/quarantine/keeper.go start: " + ruleExec:                   reasonChild,
	"internal/session/listen.go RemoveStale: " + ruleTimes:               "it only connects",
	"internal/session/reaper.go run: " + rulePoll:                        "it waits for the end of processes, and stop wakes it",
}
