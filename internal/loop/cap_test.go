// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"testing"

	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
)

// No namespace or container gives a user a higher limit than the one on the host.
func TestCapOfSandbox(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Loop.UID = 0
		c.Loop.Limits = loop.Limits{Others: loop.Limit{Priority: 3}, Users: map[int]loop.Limit{1000: {Priority: -7}, 1001: {Priority: 9}}}
	})
	for _, test := range []struct {
		user identity.User
		want model.Priority
	}{
		{identity.OnHost(1000), -7},
		{identity.OnHost(1001), 9},
		{identity.OnHost(1002), 3},
		{identity.User{UID: 1000, Container: "pid:[9]"}, -7},
		{identity.User{UID: 1001, Container: "pid:[9]"}, 3},
		{identity.User{UID: 1002, Container: "cgroup:[9]"}, 3},
		{identity.User{UID: 1000, Namespace: 8, Creator: 1000, Container: "pid:[9]"}, -7},
		{identity.User{UID: 1001, Container: "/docker/1"}, 3},
		{identity.User{Container: "/docker/1"}, 3},
		{identity.User{Namespace: 8}, 3},
		{identity.Nobody, 3},
	} {
		if got := h.Cap(test.user, nil); !got.On || got.Priority != test.want {
			t.Errorf("%v: %+v, want %d", test.user, got, test.want)
		}
	}
	if h.Cap(identity.User{}, nil).On {
		t.Error("root has a limit")
	}
}
