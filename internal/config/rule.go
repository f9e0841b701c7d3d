// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os/user"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// maxPattern bounds a pattern in bytes, and with it the cost of a match.
const maxPattern = 1024

func (p *Pattern) fromText(text string) error {
	if text == "" || len(text) > maxPattern {
		return fmt.Errorf("a pattern has %d bytes; use 1 to %d", len(text), maxPattern)
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for _, r := range text {
		switch r {
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteString(".")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	b.WriteString(`\z`)
	compiled, err := regexp.Compile(b.String())
	if err != nil {
		return fmt.Errorf("pattern %q can't be used; use plain text with * and ?", text)
	}
	p.text, p.match = text, compiled.MatchString
	return nil
}

// authorises reports whether the conditions show whom the operator trusts: a program can choose its
// command, and its user can load any library into any executable. Users can't choose the others.
func (m *Match) authorises() bool {
	return m.User != nil || m.Group != nil || m.Unit != nil || m.Cgroup != nil || m.Container != nil
}

// Rules are the rules of a file, with users and groups as numbers.
type Rules []resolvedRule

type resolvedRule struct {
	Rule
	uid, gid int
}

// Grant is what a rule gives to a program.
type Grant struct {
	Rule  string // name; empty: no rule matches
	Hints model.HintChange
	// Priority is the highest priority that the rule authorises, beyond the cap of the user; up to 0:
	// none.
	Priority model.Priority
}

// Resolve looks up the users and groups of the rules. Errors call the file name.
func (f *File) Resolve(name string) (Rules, error) {
	var all Errors
	out := make(Rules, 0, len(f.Rules))
	for _, r := range f.Rules {
		rule := resolvedRule{Rule: r}
		var err error
		if r.Match.User != nil {
			rule.uid, err = r.Match.User.UID()
		}
		if err == nil && r.Match.Group != nil {
			rule.gid, err = r.Match.Group.GID()
		}
		if err != nil {
			cause, remedy, _ := strings.Cut(err.Error(), "; ")
			all = append(all, &Error{File: name, Line: r.line, Column: r.column, Cause: r.Name + ": " + cause, Remedy: remedy})
		}
		out = append(out, rule)
	}
	if len(all) > 0 {
		return nil, all
	}
	return out, nil
}

// For returns what the first matching rule gives to a program.
func (r Rules) For(owner identity.User, command string, p *identity.Program) Grant {
	if p == nil {
		p = &identity.Program{}
	}
	for i := range r {
		rule := &r[i]
		if !rule.matches(owner, command, p) {
			continue
		}
		g := Grant{Rule: rule.Name, Hints: rule.Hints.HintChange}
		if top, said := g.Hints.Top(); said && rule.authorised(p) {
			g.Priority = max(top, 0)
		}
		return g
	}
	return Grant{}
}

func (r *resolvedRule) matches(owner identity.User, command string, p *identity.Program) bool {
	m := &r.Match
	is := func(pattern *Pattern, text string) bool { return pattern == nil || text != "" && pattern.match(text) }
	return (m.User == nil || owner.Host() && owner.UID == r.uid) &&
		(m.Group == nil || owner.Host() && slices.Contains(p.Groups, r.gid)) &&
		is(m.Executable, p.Executable) && is(m.Unit, p.Unit()) && is(m.Cgroup, p.Cgroup) && is(m.Container, containerName(owner)) &&
		(m.Command == nil || matchesCommand(m.Command, command))
}

// authorised reports whether the operator, not the user, decided that the rule applies. A user creates
// cgroups with any name below its own.
func (r *resolvedRule) authorised(p *identity.Program) bool {
	m := &r.Match
	return m.User != nil || m.Group != nil || p.CgroupByRoot && (m.Unit != nil || m.Cgroup != nil || m.Container != nil)
}

func containerName(owner identity.User) string {
	if owner.Container == "" {
		return ""
	}
	return path.Base(owner.Container)
}

func matchesCommand(p *Pattern, command string) bool {
	first, _, _ := strings.Cut(command, " ")
	return command != "" && (p.match(command) || p.match(first) || p.match(path.Base(first)))
}

// UID returns the number of a user.
func (n Name) UID() (int, error) {
	if id, err := n.number(); err == nil {
		return id, nil
	}
	u, err := user.Lookup(string(n))
	if err != nil {
		return 0, fmt.Errorf("no user %q; use a name or a uid", string(n))
	}
	return strconv.Atoi(u.Uid)
}

// GID returns the number of a group.
func (n Name) GID() (int, error) {
	if id, err := n.number(); err == nil {
		return id, nil
	}
	g, err := user.LookupGroup(string(n))
	if err != nil {
		return 0, fmt.Errorf("no group %q; use a name or a gid", string(n))
	}
	return strconv.Atoi(g.Gid)
}

func (n Name) number() (int, error) {
	id, err := strconv.ParseInt(string(n), 10, 64)
	if err == nil && (id < 0 || id >= 1<<32-1) {
		err = errors.New("out of range")
	}
	return int(id), err
}
