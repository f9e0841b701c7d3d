// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func sample() Data {
	top := 5
	return Data{
		Version: Version, Boot: "b", Settings: map[string]Setting{"policy": {"FIFO", "file HPF"}},
		Processes: []Process{{PID: 7, Start: 9, Hints: map[string]string{"priority": "5"}, Ceiling: &top, Held: true}},
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", FileName)
	if d, err := Load(path); err != nil || !reflect.DeepEqual(d, Data{Version: Version}) {
		t.Errorf("no file: %+v, %v", d, err)
	}
	for range 2 { // the second replaces the first
		if err := Save(path, sample()); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := Load(path); err != nil || !reflect.DeepEqual(d, sample()) {
		t.Errorf("%+v, %v", d, err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
		t.Errorf("%v", names)
	}
}

// TestSetAside: a file that can't be used is kept under another name, and the daemon starts without it.
func TestSetAside(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "torn": `{"version":1,"boot":"b"`, "garbage": "\x00\x01", "newer": `{"version":2,"boot":"b"}`, "unknown": `{"version":1,"boot":"b","x":1}`,
		"tail": `{"version":1,"boot":"b"} x`, "PID": `{"version":1,"boot":"b","processes":[{"pid":-1,"start":1}]}`, "list": `[]`,
	} {
		path := filepath.Join(t.TempDir(), FileName)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Load(path)
		if err == nil || !strings.Contains(err.Error(), path+".bad") || !reflect.DeepEqual(d, Data{Version: Version}) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		if kept, err := os.ReadFile(path + ".bad"); err != nil || string(kept) != text {
			t.Errorf("%s: %q, %v", name, kept, err)
		}
		if _, err := Load(path); err != nil {
			t.Errorf("%s, second start: %v", name, err)
		}
	}
}

// TestForeignFile: what others can write is not believed.
func TestForeignFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	if err := Save(path, sample()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if d, err := Load(path); err == nil || d.Settings != nil {
		t.Errorf("writable by all: %+v, %v", d, err)
	}
	if err := os.Symlink(path+".bad", path); err != nil {
		t.Fatal(err)
	}
	if d, err := Load(path); err == nil || d.Settings != nil {
		t.Errorf("a link: %+v, %v", d, err)
	}
}

func TestUnwritable(t *testing.T) {
	if err := Save("/proc/xsched/"+FileName, sample()); err == nil {
		t.Error("no error")
	}
}

// FuzzParse checks that what is accepted has the form that Save writes.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"boot":"b","settings":{"policy":{"value":"FIFO","over":"file HPF"}},"processes":[{"pid":7,"start":9,"held":true}]}`))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), FileName)
		if err := Save(path, d); err != nil {
			t.Fatal(err)
		}
		if again, err := Load(path); err != nil || len(again.Processes) != len(d.Processes) || len(again.Settings) != len(d.Settings) {
			t.Fatalf("%+v, %+v, %v", d, again, err)
		}
	})
}
