// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// TestStrategies checks the result of the comparison on two rows: just in time, the request is as fast
// as with the low suspended throughout, and the low keeps nearly what it keeps natively. With batches
// it keeps as much.
func TestStrategies(t *testing.T) {
	rows := []contest{{length: 9 * time.Millisecond, load: 0.4}, {length: 26 * time.Millisecond, load: 0.4, pace: 0.1}}
	scores, err := compete(rows, 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		native, whole, ours, batches := scores[i][0], scores[i][3], scores[i][5], scores[i][6]
		if ours.p99 > whole.p99+0.03 || ours.p99 > native.p99 || ours.kept < native.kept-0.05 || whole.kept > native.kept-0.2 {
			t.Errorf("%v: native %+v, whole request %+v, just in time %+v", rows[i].length, native, whole, ours)
		}
		if batches.p99 > whole.p99+0.1 || batches.p99 > native.p99 || batches.kept < native.kept-0.01 {
			t.Errorf("%v: native %+v, batches %+v", rows[i].length, native, batches)
		}
	}
	again, err := compete(rows[:1], 100)
	if err != nil || again[0][5] != scores[0][5] {
		t.Errorf("a second run gives %+v, the first %+v, %v", again[0], scores[0], err)
	}
}

// TestLongStrategiesAreCurrent checks that docs/strategies.md is what the present strategies give.
func TestLongStrategiesAreCurrent(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, strategiesPage))
	if err != nil {
		t.Fatal(err)
	}
	date := regexp.MustCompile(`Simulated (\S+) by`).FindSubmatch(page)
	if date == nil {
		t.Fatalf("%s has no date", strategiesPage)
	}
	all, err := strategies(root, string(date[1]))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale (%v); run `make strategies`", name, err)
		}
	}
}
