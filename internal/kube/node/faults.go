// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
)

// journal is a place in the daemon's journal.
type journal struct {
	daemon int64 // when the daemon started
	next   uint64
}

// read returns the faults since the last call. What was there before the first call is left out: an earlier
// plugin has reported it. A daemon that does not answer is asked again at the next look.
func (j *journal) read(ctx context.Context, d Daemon, started int64) (faults []control.JournalEntry) {
	first, since := j.daemon == 0, j.next
	if j.daemon != started {
		since = 0
	}
	reply, err := d.Journal(ctx, control.JournalRequest{Since: since, Max: control.JournalMax})
	if err != nil {
		return nil
	}
	*j = journal{started, reply.Next}
	for i := range reply.Entries {
		if !first && reply.Entries[i].Kind == control.JournalFault {
			faults = append(faults, reply.Entries[i])
		}
	}
	return faults
}

// faults writes the faults of a pod's programs as events on the pod. The library counts equal ones and limits
// their rate.
func (r *reporter) faults(faults []control.JournalEntry, claims map[types.UID]claimRecord) {
	events := r.events()
	if len(faults) == 0 || events == nil {
		return
	}
	pods := map[string]*corev1.ObjectReference{}
	for _, claim := range claims {
		for _, pod := range claim.Pods {
			pods[claim.Namespace+"/"+pod.Name] = &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: pod.Name, UID: pod.UID}
		}
	}
	for i := range faults {
		e := &faults[i]
		name := strings.SplitN(e.Pod, "/", 3)
		if len(name) < 2 {
			continue
		}
		text := e.Detail
		if e.Device != "" {
			text = DeviceName(e.Device) + ": " + text
		}
		if pod := pods[name[0]+"/"+name[1]]; pod != nil {
			events.Eventf(pod, corev1.EventTypeWarning, reasonFault, "%s", text)
		}
	}
}
