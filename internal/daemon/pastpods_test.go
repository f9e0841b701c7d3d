// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"testing"

	"xsched/internal/control"
	"xsched/internal/history"
	"xsched/internal/identity"
	"xsched/internal/loop"
)

// TestPastPods: a pod keeps its name after its grants have ended, with its container, and the memory for it
// is bounded.
func TestPastPods(t *testing.T) {
	d := &chronicle{terms: &terms{}}
	d.terms.grants.Store(newGrants(0, nil))
	set := func(all ...control.Grant) {
		old := d.terms.grants.Load()
		now := newGrants(old.number+1, map[string][]control.Grant{"nri": all})
		now.past = old.past.after(old, now)
		d.terms.grants.Store(now)
	}
	whole := control.Grant{ID: "a", Namespace: "ml", Pod: "serve-0", PodUID: testPodUID}
	main := whole
	main.ID, main.Container, main.ContainerID = "b", "main", testContainers[0]
	check := func(container, want string) {
		t.Helper()
		if got := d.terms.podName(inPod(container)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check("", "")
	set(whole, main)
	check(testContainers[0], "ml/serve-0/main")
	check(testContainers[1], "ml/serve-0")
	set(whole)
	check(testContainers[0], "ml/serve-0/main")
	set()
	check(testContainers[0], "ml/serve-0/main")
	check(testContainers[1], "ml/serve-0")
	h := d.deviceHistory(control.Caller{}, 0, &history.Timeline{Series: []history.Series{{Who: *inPod(testContainers[0])}}})
	if len(h.Series) != 1 || h.Series[0].Pod != "ml/serve-0/main" {
		t.Errorf("history: %+v", h.Series)
	}
	if got := d.programOf(inPod(testContainers[0])); got.Pod != "ml/serve-0/main" {
		t.Errorf("journal: %+v", got)
	}
	if pod := d.terms.grants.Load().of(inPod(testContainers[0])); pod != (podGrant{}) {
		t.Errorf("an ended grant gives %+v", pod)
	}
	many := make([]control.Grant, control.MaxGrants)
	for round := range 4 {
		for i := range many {
			many[i] = control.Grant{ID: fmt.Sprint(i), Namespace: "ml", Pod: "other", PodUID: fmt.Sprintf("%08d-%04d-4b47-9d0e-5e7a1c3f9b21", i, round)}
		}
		set(many...)
		set()
	}
	past := d.terms.grants.Load().past
	if len(past.names) != maxPastPods || len(past.order) != maxPastPods {
		t.Errorf("%d names in %d places, want %d", len(past.names), len(past.order), maxPastPods)
	}
	check(testContainers[0], "")
	last := &loop.Identity{Program: &identity.Program{Pod: identity.Pod{UID: identity.PodUID(many[0].PodUID)}}}
	if got := d.terms.podName(last); got != "ml/other" {
		t.Errorf("the last pod is %q", got)
	}
}
