// SPDX-License-Identifier: Apache-2.0

package identity

import "testing"

func TestRoot(t *testing.T) {
	for _, test := range []struct {
		user User
		want bool
	}{
		{User{}, true},
		{OnHost(1000), false},
		{Nobody, false},
		{User{Container: "/docker/4f0a"}, false}, // a container without a user namespace
		{User{Namespace: 4026532000}, false},
		{User{Namespace: 4026532000, Creator: 1000}, false},
	} {
		if got := test.user.Root(); got != test.want {
			t.Errorf("Root() of %v = %v", test.user, got)
		}
	}
}

func TestOwns(t *testing.T) {
	alice, bob := OnHost(1000), OnHost(1001)
	first, second := User{UID: 1000, Container: "/docker/1"}, User{UID: 1000, Container: "/docker/2"}
	rootless := User{UID: 100033, Namespace: 7, Creator: 1000, Container: "/user.slice/libpod-1.scope"}
	for _, test := range []struct {
		name      string
		user, his User
		want      bool
	}{
		{"itself", alice, alice, true},
		{"another user", alice, bob, false},
		{"root", User{}, rootless, true},
		{"root of a container", User{Container: "/docker/1"}, alice, false},
		{"root of another container", User{Container: "/docker/1"}, User{Container: "/docker/2"}, false},
		{"the same uid in another container", first, second, false},
		{"the same uid on the host", alice, first, false},
		{"from the container to the host", first, alice, false},
		{"the creator of the namespace", alice, rootless, true},
		{"from the namespace to its creator", rootless, alice, false},
		{"another user's namespace", bob, rootless, false},
		{"the creator's uid in a container", User{UID: 1000, Container: "/docker/1"}, rootless, false},
		{"unknown users", Nobody, Nobody, false},
		{"an unknown creator", Nobody, User{UID: 5, Namespace: 8, Creator: -1}, false},
	} {
		if got := test.user.Owns(test.his); got != test.want {
			t.Errorf("%s: %v owns %v: %v", test.name, test.user, test.his, got)
		}
	}
}

// TestAccount checks that no process multiplies its limits by itself: by unsharing a namespace, by
// taking subordinate uids, or by taking other uids of its container.
func TestAccount(t *testing.T) {
	for _, test := range []struct {
		name string
		user User
		want User
	}{
		{"on the host", OnHost(1000), OnHost(1000)},
		{"unshared", User{UID: 1000, Namespace: 7, Creator: 1000}, OnHost(1000)},
		{"a subordinate uid", User{UID: 100033, Namespace: 7, Creator: 1000, Container: "/x/libpod-1.scope"}, OnHost(1000)},
		{"root of a container", User{Container: "/docker/1"}, User{Container: "/docker/1"}},
		{"a user of it", User{UID: 33, Container: "/docker/1"}, User{Container: "/docker/1"}},
		{"with a user namespace", User{UID: 165536, Namespace: 9, Container: "/docker/1"}, User{Container: "/docker/1"}},
		{"a namespace of root", User{UID: 165536, Namespace: 9}, User{Namespace: 9}},
		{"a sandbox", User{UID: 1000, Container: "pid:[7]"}, User{UID: 1000, Container: sandbox}},
		{"with a cgroup namespace only", User{UID: 1000, Container: "cgroup:[7]"}, User{UID: 1000, Container: sandbox}},
		{"root of an unknown runtime's container", User{Container: "pid:[7]"}, User{Container: "pid:[7]"}},
		{"an unknown creator", User{UID: 5, Namespace: 9, Creator: -1}, OnHost(5)},
		{"uid 0 there", User{Namespace: 9, Creator: -1}, User{Namespace: unknownNamespace, Creator: -1}},
	} {
		if got := test.user.Account(); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
		if test.user.Account().Root() != test.user.Root() {
			t.Errorf("%s: has root's account", test.name)
		}
		if got := test.user.Account().Account(); got != test.want {
			t.Errorf("%s: the account of the account is %+v", test.name, got)
		}
	}
}

func TestKey(t *testing.T) {
	seen := map[string]User{}
	for _, uid := range []int{-1, 0, 1, 10} {
		for _, namespace := range []uint64{0, 1, 10} {
			for _, container := range []string{"", "/a", "/a/1", "1:/a"} {
				u := User{UID: uid, Namespace: namespace, Container: container}
				if other, twice := seen[u.Key()]; twice {
					t.Errorf("%+v and %+v have the key %q", u, other, u.Key())
				}
				seen[u.Key()] = u
			}
		}
	}
}

// Users append names of their own to the key.
func TestKeyWithName(t *testing.T) {
	outer, inner := User{Container: "/docker/1"}, User{Container: "/docker/1/docker/2"}
	if outer.Key()+"/docker/2/gang" == inner.Key()+"/gang" {
		t.Error("a name completes the key of another user")
	}
}

func TestString(t *testing.T) {
	for want, u := range map[string]User{
		"uid 1000":                          OnHost(1000),
		"an unknown user":                   Nobody,
		"uid 0 in container docker-1.scope": {Container: "/system.slice/docker-1.scope"},
		"uid 5 in user namespace 9":         {UID: 5, Namespace: 9},
		"uid 0":                             {Namespace: unknownNamespace, Creator: -1},
	} {
		if u.String() != want {
			t.Errorf("%q, want %q", u, want)
		}
	}
}
