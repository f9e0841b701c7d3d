// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"xsched/internal/sim/fleet"
)

const root = "../.."

// TestPageIsCurrent checks that the tables and the picture show the stored figures.
func TestPageIsCurrent(t *testing.T) {
	f, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	files, err := f.draw(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale (%v); run `make capacity`", name, err)
		}
	}
	for i, m := range fleet.Mixes() {
		if i >= len(f.Mixes) || f.Mixes[i].Name != m.Name || f.Mixes[i].About != m.About || len(f.Mixes[i].Others) != len(changes) || len(f.Mixes[i].Fleets) != len(sizes) {
			t.Errorf("the figures of mix %s are missing or old; run `make capacity`", m.Name)
		}
	}
}

// TestFiguresAreCurrent simulates one mix again.
func TestFiguresAreCurrent(t *testing.T) {
	f, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	m, err := fleet.FindMix("training")
	if err != nil {
		t.Fatal(err)
	}
	got, err := needs(t.Context(), m, nodes)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Mixes, func(m mixFigures) bool { return m.Name == "training" })
	gpus := func(f fleetNeeds) map[string]string {
		out := map[string]string{}
		for name, n := range f.Needs {
			out[name] = f.count(fleet.Sharing(name)) + ", " + n.Rule
		}
		return out
	}
	if i < 0 || !maps.Equal(gpus(*got), gpus(f.Mixes[i].of(nodes))) {
		t.Errorf("simulated %+v; the figures are stale, run `make capacity`", got)
	}
}
