// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Case is one selection of a scenario's tenants.
type Case struct {
	Name    string   `yaml:"name"`
	About   string   `yaml:"about"`
	Tenants []string `yaml:"tenants"`
}

// Split returns one scenario for each of the named cases, for all cases without a name, or the
// scenario itself if it has no cases.
func (s *Scenario) Split(names ...string) ([]*Scenario, error) {
	if len(s.Cases) == 0 && len(names) == 0 {
		return []*Scenario{s}, nil
	}
	var known []string
	for i := range s.Cases {
		known = append(known, s.Cases[i].Name)
	}
	if len(names) == 0 {
		names = known
	}
	var out []*Scenario
	for _, name := range names {
		at := slices.Index(known, name)
		if at < 0 {
			return nil, fmt.Errorf("%s has no case %q; it has %s", s.Name, name, orNothing(known))
		}
		c, one := &s.Cases[at], *s
		one.Name, one.About, one.Cases, one.Tenants = s.Name+": "+c.Name, c.About, nil, nil
		for i := range s.Tenants {
			if slices.Contains(c.Tenants, s.Tenants[i].Name) {
				one.Tenants = append(one.Tenants, s.Tenants[i])
			}
		}
		out = append(out, &one)
	}
	return out, nil
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (s *Scenario) checkCases(c *checker) {
	c.at, c.name = "", ""
	seen := map[string]bool{}
	for i := range s.Cases {
		k, path := &s.Cases[i], fmt.Sprintf("cases.%d", i)
		c.require(k.Name != "" && !seen[k.Name], path, fmt.Sprintf("case %d has no name of its own", i+1), "set `name:`")
		c.require(len(k.Tenants) > 0, path, "case "+k.Name+" has no tenants", "list names of tenants")
		seen[k.Name] = true
		for _, name := range k.Tenants {
			known := slices.ContainsFunc(s.Tenants, func(t Tenant) bool { return t.Name == name })
			c.require(known, path+".tenants", fmt.Sprintf("case %s: there is no tenant %q", k.Name, name), "name one of `tenants:`")
		}
	}
}
