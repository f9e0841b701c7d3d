// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"

	"xsched/internal/identity"
	"xsched/internal/model"
)

func rules(t *testing.T, text string) Rules {
	t.Helper()
	f, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Resolve("f")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestMatch: which programs a condition selects, and whether the rule may raise them above the cap of
// their user. Nothing that a user chooses raises: not the command, not the executable, not a cgroup of
// the user's own.
func TestMatch(t *testing.T) {
	const command = "/opt/bin/serve.py --port 80"
	alice, container := identity.OnHost(1000), identity.User{UID: 1000, Container: "/docker/docker-4f0a.scope"}
	system := &identity.Program{Executable: "/opt/bin/python3", Groups: []int{1000, 44}, Cgroup: "/system.slice/triton.service", CgroupByRoot: true}
	own := &identity.Program{
		Executable: "/home/alice/python3", Groups: []int{1000},
		Cgroup: "/user.slice/user-1000.slice/user@1000.service/app.slice/triton.service",
	}
	inside := &identity.Program{Cgroup: "/docker/docker-4f0a.scope", CgroupByRoot: true, Groups: []int{44}}
	for _, c := range []struct {
		match   string
		user    identity.User
		program *identity.Program
		matches bool
		raises  bool
	}{
		{"command: serve.py", alice, system, true, false},
		{"command: /opt/bin/serve.py", alice, system, true, false},
		{"command: '*serve.py*'", alice, system, true, false},
		{"command: '*--port ??'", alice, system, true, false},
		{"command: serve", alice, system, false, false},
		{"command: 'serve.p[y]'", alice, system, false, false},
		{"command: serve.py", alice, nil, true, false},
		{"executable: /opt/bin/*", alice, system, true, false},
		{"executable: /opt/bin/*", alice, own, false, false},
		{"executable: '*'", alice, inside, false, false}, // not the host's
		{"{command: serve.py, executable: /opt/bin/*}", alice, system, true, false},
		{"user: 1000", alice, system, true, true},
		{"user: 1000", identity.OnHost(1001), system, false, false},
		{"user: 1000", container, inside, false, false}, // another person's uid
		{"user: 0", identity.User{Container: "/docker/1"}, inside, false, false},
		{"user: 1000", identity.User{UID: 1000, Namespace: 7, Creator: 1000}, system, false, false},
		{"{user: 1000, command: serve.py}", alice, own, true, true},
		{"{user: 1000, command: other}", alice, own, false, false},
		{"group: 44", alice, system, true, true},
		{"group: 44", alice, own, false, false},
		{"group: 44", container, inside, false, false}, // root of a container takes any group
		{"group: 44", alice, nil, false, false},
		{"unit: triton.service", alice, system, true, true},
		{"unit: triton.service", alice, own, true, false}, // the user's own manager named it
		{"unit: '*.service'", alice, inside, false, false},
		{"cgroup: /system.slice/*", alice, system, true, true},
		{"cgroup: '*'", alice, own, true, false},
		{"container: docker-*", container, inside, true, true},
		{"container: docker-*", container, &identity.Program{Cgroup: "/docker/docker-4f0a.scope"}, true, false},
		{"container: '*'", alice, system, false, false},
	} {
		g := rules(t, "rules: [{name: r, match: "+braces(c.match)+", hints: {priority: 9}}]").For(c.user, command, c.program)
		if (g.Rule == "r") != c.matches || (g.Priority == 9) != c.raises || c.matches && !g.Hints.Has("priority") {
			t.Errorf("%s for %v: %+v, want match %v, raise %v", c.match, c.user, g, c.matches, c.raises)
		}
	}
}

func braces(match string) string {
	if strings.HasPrefix(match, "{") {
		return match
	}
	return "{" + match + "}"
}

// TestFirstRuleApplies: alone, even if it sets fewer hints.
func TestFirstRuleApplies(t *testing.T) {
	r := rules(t, `
rules:
- {match: {user: 1}, hints: {priority: -3}}
- {name: two, match: {command: a*}, hints: {priority: 3, share: 40}}
- {match: {command: "*"}, hints: {priority: -256}}
`)
	for _, c := range []struct {
		uid     int
		command string
		rule    string
		hints   string
		granted model.Priority
	}{
		{1, "app", "rule 1", "priority=-3", 0},
		{2, "app", "two", "priority=3 share=40", 0},
		{2, "b", "rule 3", "priority=-256", 0},
	} {
		g := r.For(identity.OnHost(c.uid), c.command, nil)
		h := Hints{g.Hints}
		if g.Rule != c.rule || h.String() != c.hints || g.Priority != c.granted {
			t.Errorf("%+v: %+v %s", c, g, h.String())
		}
	}
	if g := (Rules{}).For(identity.OnHost(1), "x", nil); g.Rule != "" || !g.Hints.Empty() {
		t.Errorf("%+v", g)
	}
}

func TestUnknownUser(t *testing.T) {
	f, err := Parse("f", []byte("rules:\n- {match: {user: no-such-user}, hints: {priority: 1}}\n- {match: {group: no-such-group}, hints: {priority: 1}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Resolve("f")
	if err == nil || !strings.HasPrefix(err.Error(), `f:2:3: rule 1: no user "no-such-user"; use a name or a uid`) || !strings.Contains(err.Error(), "1 more") {
		t.Error(err)
	}
}

// TestWarnings: a rule that can't raise says so.
func TestWarnings(t *testing.T) {
	f, err := Parse("f", []byte(`
rules:
- {match: {command: a}, hints: {priority: 5}}
- {match: {executable: /a}, hints: {laxity: 1ms, critical_priority: 5}}
- {match: {command: a}, hints: {priority: -5}}
- {match: {command: a}, hints: {slo: 5ms}}
- {match: {command: a, user: 0}, hints: {priority: 5}}
`))
	if err != nil {
		t.Fatal(err)
	}
	w := f.Warnings("f")
	if len(w) != 2 || !strings.HasPrefix(w[0].String(), "f:3:3: rule 1 raises the priority to 5") || w[1].Line != 4 {
		t.Errorf("%v", w)
	}
}
