// SPDX-License-Identifier: Apache-2.0

package strict

import "testing"

type pet struct {
	Name  string         `yaml:"name"`
	Legs  int            `yaml:"legs"`
	Likes []string       `yaml:"likes"`
	Ages  map[string]int `yaml:"ages"`
	Owner *pet           `yaml:"owner"`
	Inner string
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		"name: a\nlegs: 4\nlikes: [b]\nages: {x: 1}\nowner: {name: c}": "",
		"legs: four":              `line 1: "four" is not a whole number`,
		"likes: b":                `line 1: "b" is not a list`,
		"name:\n  a: b":           "line 2: a mapping is not a string",
		"ages: {x: y}":            `line 1: "y" is not a whole number`,
		"ages: [1]":               "line 1: a list is not a mapping",
		"owner:\n  nam: c":        `line 2: unknown field "nam"; known here are name, legs, likes, ages, owner`,
		"Inner: a":                `line 1: unknown field "Inner"; known here are name, legs, likes, ages, owner`,
		"name: a\nname: b":        "line 2: mapping key \"name\" already defined at line 1; correct the YAML syntax; indent with spaces",
		"name: a\n---\nname: b":   "the file contains more than one document; remove everything after `---`",
		"name: a\n\tlegs: 4":      "line 2: found a tab character that violates indentation; correct the YAML syntax; indent with spaces",
		"a: &x {name: b}\nb: *x":  `line 1: unknown field "a"; known here are name, legs, likes, ages, owner`,
		"name: &x b\nlikes: [*x]": "",
	} {
		root, err := Root([]byte(text))
		if err == nil {
			err = Decode(root, &pet{})
		}
		if got := message(err); got != want {
			t.Errorf("%q:\n got %s\nwant %s", text, got, want)
		}
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "null\n"} {
		if root, err := Root([]byte(text)); root != nil || err != nil {
			t.Errorf("%q: %v, %v", text, root, err)
		}
	}
}

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*Error{
		"f:2:3: a; b": {File: "f", Line: 2, Column: 3, Cause: "a", Remedy: "b"}, "f: a": {File: "f", Cause: "a"}, "line 2: a": {Line: 2, Cause: "a"}, "a": {Cause: "a"},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
