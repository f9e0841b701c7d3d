// SPDX-License-Identifier: Apache-2.0

package terms

import (
	"testing"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// No namespace or container gives a user a higher limit than the one on the host.
func TestCapOfSandbox(t *testing.T) {
	book := NewBook(0, Limits{Others: Limit{Priority: 3}, Users: map[int]Limit{1000: {Priority: -7}, 1001: {Priority: 9}}})
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
		if got := book.Cap(test.user, nil); !got.On || got.Priority != test.want {
			t.Errorf("%v: %+v, want %d", test.user, got, test.want)
		}
	}
	if book.Cap(identity.User{}, nil).On {
		t.Error("root has a limit")
	}
	if NewBook(1000, Limits{}).Cap(identity.OnHost(1001), nil).On {
		t.Error("a daemon of a user has limits")
	}
}
