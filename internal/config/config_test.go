// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"xsched/internal/model"
)

// TestMistakes: every mistake is reported with line, column, cause and remedy.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"polcy: HPF\n":                          `f:1:1: unknown key "polcy"; use policy, mode,`,
		"policy: NOPE\n":                        `f:1:9: unknown policy "NOPE"; use `,
		"policy:\n":                             `f:1:8: the key has no value; remove the key`,
		"policy: [HPF]\n":                       `f:1:9: a list is not a value`,
		"mode: level\n":                         `f:1:7: mode "level" needs a level; use level 1`,
		"mode: live 2\n":                        "f:1:7: mode live takes no level; use `level 2`",
		"quantum: 5\n":                          `f:1:10: "5" is not a duration; write 20ms`,
		"quantum: 1us\n":                        `f:1:10: 1us is out of range; use 100us to 10s`,
		"starvation_bound: -1s\n":               `f:1:19: -1s is out of range; use 0s to 1h0m0s`,
		"limits:\n  max_sessions: 0\n":          `f:2:17: 0 is out of range; use 1 to 65536`,
		"limits:\n  max_sessions: \"9\"\n":      `f:2:17: "9" is not a whole number; use 1 to 65536`,
		"limits:\n  max_sessions: 9.5\n":        `f:2:17: "9.5" is not a whole number`,
		"limits: 5\n":                           "f:1:9: this is not a mapping; write `key: value` lines",
		"http: {address: localhost}\n":          `f:1:17: "localhost" is not an address; use HOST:PORT or off`,
		"http: {token_file: 5}\n":               `f:1:20: 5 is not text; put it in quotes`,
		"http: {token_file: \"\"}\n":            `f:1:20: the value is empty`,
		"log: {level: loud}\n":                  `f:1:14: unknown value "loud"; use debug, info, warn, error`,
		"gpus: {1: {policy: HPF}}\n":            `f:1:8: "1" is not a PCI address`,
		"caps: {users: {a b: {priority: 1}}}\n": `f:1:16: "a b" is not a name; use a name or a number`,
		"caps: {default: {priority: 300}}\n":    `f:1:28: 300 is out of range; use -255 to 255`,
		"caps: {default: {share: 0}}\n":         `f:1:25: 0 is out of range; use 1 to 100`,
		"rules: {}\n":                           "f:1:8: this is not a list; begin each entry with `- `",
		"rules:\n- hints: {priority: 1}\n":      "f:2:3: rule 1 matches nothing; add `match:`",
		"rules:\n- match: {user: a}\n":          "f:2:3: rule 1 gives no hints; add",
		"rules:\n- match: {environ: a}\n":       `f:2:11: unknown key "environ"; use command,`,
		"rules:\n- match: {command: \"\"}\n":    `f:2:20: a pattern has 0 bytes; use 1 to 1024`,
		"rules:\n- hints: {priority: 256}\n":    `f:2:21: priority 256 is out of range; use -256 to 255`,
		"rules:\n- hints: {prio: 1}\n":          `f:2:11: unknown hint "prio"; use priority,`,
		"policy: HPF\npolicy: FIFO\n":           `f:2:1: key "policy" exists already in line 1; remove one`,
		"policy: &x HPF\n":                      `f:1:9: anchors and aliases are not supported; write the value out`,
		"a: &x 1\nb: *x\n":                      `f:1:1: unknown key "a"`,
		"<<: {policy: HPF}\n":                   `f:1:1: unknown key "<<"`,
		"policy: HPF\n---\npolicy: FIFO\n":      "f: the file contains more than one document; remove everything after `---`",
		"policy: [\n":                           `f:`,
		"\tpolicy: HPF\n":                       `f:1: found character that cannot start any token; correct the YAML syntax`,
		"[1, 2]\n":                              `f:1:1: this is not a mapping`,
		"{[1]: 2}\n":                            `f:1:2: a key is one word`,
		"log: {level: info, level: info}\n":     `f:1:20: key "level" exists already in line 1`,
		"rules: [{name: a, match: {user: a}, hints: {k: 1}}, {name: a, match: {user: a}, hints: {k: 1}}]\n": `f:1:53: rule "a" exists already in line 1; give each rule`,
	} {
		_, err := Parse("f", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
			continue
		}
		var all Errors
		if !errors.As(err, &all) || all[0].Cause == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %#v", text, err)
		}
	}
	_, err := Parse("f", []byte("policy: A\nmode: B\nquantum: C\n"))
	var all Errors
	if !errors.As(err, &all) || len(all) != 3 || !strings.HasSuffix(err.Error(), "(and 2 more; see `xsched config check`)") {
		t.Errorf("%v", err)
	}
	if _, err := Parse("f", make([]byte, maxBytes+1)); err == nil {
		t.Error("a large file is accepted")
	}
}

func TestEmptyFile(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "null\n", "rules:\ncaps:\n  users:\ngpus:\nhttp:\n"} {
		f, err := Parse("f", []byte(text))
		if err != nil || len(f.Values()) != 0 || len(f.Rules) != 0 {
			t.Errorf("%q: %+v, %v", text, f, err)
		}
	}
}

// example returns deploy/config.yaml with every key in force.
func example(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("../../deploy/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`(?m)^#(\S.*|  .*)$`)
	return key.ReplaceAll(text, []byte("$1"))
}

// TestExample: the example documents every key of the schema, with the defaults of the flags.
func TestExample(t *testing.T) {
	if f, err := Read("../../deploy/config.yaml", os.Getuid()); err != nil || len(f.Values()) != 0 || len(f.Rules) != 0 {
		t.Fatalf("as it is: %+v, %v", f, err)
	}
	f, err := Parse("example", example(t))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, v := range f.Values() {
		has[v.Key] = true
	}
	for _, k := range Keys() {
		if !has[k.Key] {
			t.Errorf("no key %s", k.Key)
		}
	}
	m := reflect.ValueOf(f.Rules[0].Match)
	for i := range m.NumField() {
		if m.Field(i).IsNil() {
			t.Errorf("no condition %s", m.Type().Field(i).Tag.Get("yaml"))
		}
	}
	if f.Caps.Default == nil || len(f.Caps.Users) == 0 || len(f.Caps.Groups) == 0 || len(f.GPUs) == 0 {
		t.Errorf("%+v %+v", f.Caps, f.GPUs)
	}
}

// TestSchema: the JSON schema has every key, and closes every mapping.
func TestSchema(t *testing.T) {
	text, err := json.Marshal(Schema())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Keys() {
		if name := k.Key[strings.LastIndexByte(k.Key, '.')+1:]; !bytes.Contains(text, []byte(fmt.Sprintf("%q:{", name))) {
			t.Errorf("no key %s", k.Key)
		}
	}
	var walk func(s map[string]any)
	walk = func(s map[string]any) {
		if _, closed := s["additionalProperties"]; s["properties"] != nil && !closed {
			t.Errorf("%v accepts unknown keys", s)
		}
		for _, v := range s {
			if inner, ok := v.(map[string]any); ok {
				walk(inner)
			}
		}
	}
	walk(Schema())
}

func TestReadTrusts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("policy: fifo\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Read(path, os.Getuid())
	if err != nil || *f.Policy != "FIFO" {
		t.Fatalf("%+v, %v", f, err)
	}
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, os.Getuid()); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a file that others can write: %v", err)
	}
	if _, err := Check(path); err != nil {
		t.Error(err)
	}
	if os.Getuid() == 0 {
		if err := errors.Join(os.Chmod(path, 0o644), os.Chown(path, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path, 0); err == nil || !strings.Contains(err.Error(), "belongs to uid 65534") {
			t.Errorf("a file of another user: %v", err)
		}
	}
	if _, err := Read(filepath.Dir(path), os.Getuid()); err == nil || !strings.Contains(err.Error(), "not a plain file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Read(path+"x", os.Getuid()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestPriorityRangeIsThatOfHints(t *testing.T) {
	field, _ := reflect.TypeFor[Cap]().FieldByName("Priority")
	if want := fmt.Sprintf("%d..%d", model.PriorityMin, model.PriorityMax); field.Tag.Get("range") != want {
		t.Errorf("%s, want %s", field.Tag.Get("range"), want)
	}
}

// FuzzParse checks that a file is accepted with all values in range, or refused with a cause in one line,
// and that the values of an accepted file are accepted again.
func FuzzParse(f *testing.F) {
	f.Add(example(f))
	for _, seed := range []string{"", "policy: HPF", "mode: level 2\nhold: 0s", "rules: [{match: {user: 0}, hints: {slo: 1ms}}]", "caps: {users: {1: {share: 5}}}", "a: &b [*b]", "? {a: b}\n: c", "policy: |\n  HPF\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse("f", text)
		if err != nil {
			var all Errors
			if !errors.As(err, &all) || len(all) == 0 || len(all) > maxErrors+1 || all[0].Cause == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		_ = file.Warnings("f")
		for _, r := range file.Rules {
			var h model.Hint
			if r.Hints.Apply(&h); h.Check() != nil || r.Match == (Match{}) || r.Name == "" {
				t.Fatalf("%+v", r)
			}
		}
		for _, v := range file.Values() {
			key := v.Value
			parts := strings.Split(v.Key, ".")
			again := ""
			for i, part := range parts {
				again += strings.Repeat(" ", i) + part + ":"
				if i < len(parts)-1 {
					again += "\n"
				}
			}
			if slices.Contains([]string{"limits.max_sessions", "limits.max_sessions_per_user"}, v.Key) {
				again += " " + key
			} else {
				again += fmt.Sprintf(" %q", key)
			}
			next, err := Parse("again", []byte(again))
			if err != nil || len(next.Values()) != 1 || next.Values()[0] != v {
				t.Fatalf("%s of %q: %v", again, text, err)
			}
		}
	})
}
