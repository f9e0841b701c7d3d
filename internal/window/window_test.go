// SPDX-License-Identifier: Apache-2.0

package window_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"xsched/internal/window"
)

// TestMembers checks rules that need many processes: 1 is init, 10 a terminal with the windows 100 and
// 101, 20 a browser, 30 a tmux server.
func TestMembers(t *testing.T) {
	parents := map[int]int{10: 1, 11: 10, 12: 11, 20: 12, 21: 20, 30: 1, 31: 30, 40: 1}
	for pid := 1000; pid < 1100; pid++ { // a chain below 12
		parents[pid] = pid - 1
	}
	parents[1000] = 12
	environs := map[int]map[string]string{
		12: {"DISPLAY": ":0", "WINDOWID": "101"},
		20: {"DISPLAY": ":0", "WINDOWID": "101"},
		21: {"DISPLAY": ":0", "WINDOWID": "101"},
		31: {"DISPLAY": "unix:0.0", "WINDOWID": "0x65"}, // 101
		40: {"DISPLAY": ":1", "WINDOWID": "101"},
	}
	processes := window.Processes{
		Parent: func(pid int) int { return parents[pid] },
		Getenv: func(pid int, name string) string { return environs[pid][name] },
	}
	windows := []window.Window{{ID: 100, PID: 10}, {ID: 101, PID: 10}, {ID: 200, PID: 20}, {ID: 300, Reason: "no PID"}, {ID: 400, PID: 1, Shell: true}}
	programs := slices.Sorted(maps.Keys(parents))
	for name, c := range map[string]struct {
		active []window.ID
		want   []int
	}{
		"no window":               {nil, nil},
		"root or unlisted window": {[]window.ID{7}, nil},
		"no process":              {[]window.ID{300}, nil},
		"desktop":                 {[]window.ID{400}, nil},
		"browser":                 {[]window.ID{200}, []int{20, 21}},
		"other terminal window":   {[]window.ID{100}, []int{10, 11}},
		"terminal window":         {[]window.ID{101}, []int{10, 11, 12, 31}},
		"dialog of the browser":   {[]window.ID{300, 200}, []int{20, 21}},
	} {
		state := window.State{Active: c.active, Windows: windows}
		got := slices.DeleteFunc(window.Members(":0", &state, programs, processes), func(pid int) bool { return pid >= 1000 })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	// A process that is its own parent, or too far below, ends the walk.
	parents[40] = 40
	state := window.State{Active: []window.ID{100}, Windows: windows}
	if got := window.Members(":0", &state, []int{40, 1099}, processes); len(got) != 0 {
		t.Errorf("a circle or a long chain belongs to %v", got)
	}
}

func TestDisplayName(t *testing.T) {
	for name, want := range map[string]string{":0": ":0", ":0.1": ":0", "unix:3.0": ":3", "localhost:10.0": "localhost:10", "": "", "x": "x"} {
		if got := window.DisplayName(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestListOfPrograms(t *testing.T) {
	list, err := window.Parse([]byte(`
programs:
  - name: render
    command: [blender, scene.blend]
    priority: 10
  - name: train
    command: [python3, train.py]
    priority: -10
    hints: {level: 3, slo: 20ms, window-active: true}
    dir: /tmp
    env: {EPOCHS: 3}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"[--priority=10]", "[--priority=-10 --level=3 --window-active=true --slo=20ms]"} {
		flags, err := list[i].Flags()
		if err != nil || fmt.Sprint(flags) != want {
			t.Errorf("%s: %v, %v", list[i].Name, flags, err)
		}
	}
	if list[1].Env["EPOCHS"] != "3" || list[1].Dir != "/tmp" || list[0].Command[1] != "scene.blend" {
		t.Errorf("%+v", list)
	}
	for text, want := range map[string]string{
		"":             "the list is empty; give it at least `programs: [{name: NAME, command: [CMD]}]`",
		"programs: []": "the list is empty; give it at least `programs: [{name: NAME, command: [CMD]}]`",
		"programs: [{name: a, command: [b]}]\n---\nx: 1":                  "the file contains more than one document; remove everything after `---`",
		"programs:\n  - name: a\n    comand: [b]":                         `line 3: unknown field "comand"; known here are name, command, priority, hints, dir, env`,
		"programs: [{name: a, command: b}]":                               `line 1: "b" is not a list`,
		"programs: {a: 1}":                                                "line 1: a mapping is not a list",
		"programs: [{name: a, command: []}]":                              "program \"a\": no command given; use `command: [CMD, ARG]`",
		"programs: [{name: a b, command: [b]}]":                           `program 1 has the name "a b"; use letters, digits, dots, dashes and underscores`,
		"programs: [{name: ../a, command: [b]}]":                          `program 1 has the name "../a"; use letters, digits, dots, dashes and underscores`,
		"programs: [{name: a, command: [b]}, {name: a, command: [c]}]":    `two programs have the name "a"; rename one`,
		"programs: [{name: a, command: [b], priority: 300}]":              `program "a": priority 300 is out of range; use -256 to 255`,
		"programs: [{name: a, command: [b], priority: high}]":             `line 1: "high" is not a whole number`,
		"programs: [{name: a, command: [b], hints: {speed: 3}}]":          "program \"a\": unknown hint \"speed\"; see `xsched run --help`",
		"programs: [{name: a, command: [b], hints: {priority: 3}}]":       "program \"a\": a priority among the hints; use `priority:` beside `command:`",
		"programs: [{name: a, command: [b], hints: {level: 7}}]":          "",
		"programs: [{name: a, command: [b], env: {\"A=B\": c}}]":          `program "a": "A=B" is not the name of a variable`,
		"programs: [{name: a, command: [b], name: c}]":                    "",
		"programs: [{name: a, command: [b]}]\nprogram: [{name: a}]":       `line 2: unknown field "program"; known here are programs`,
		"programs: [{name: a, command: [b]":                               "",
		"programs: [{name: a, command: [b], hints: {slo: 20 ms}}]":        "",
		"programs: [{name: a, command: [b], hints: {share: 101}}]":        "",
		"programs: [{name: a, command: [\"\"]}]":                          "program \"a\": no command given; use `command: [CMD, ARG]`",
		"programs: [{name: a, command: [b], hints: {level: 3, lvel: 2}}]": "program \"a\": unknown hint \"lvel\"; see `xsched run --help`",
	} {
		_, err := window.Parse([]byte(text))
		if err == nil || want != "" && err.Error() != want {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
		}
	}
}
