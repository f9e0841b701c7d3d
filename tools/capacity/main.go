// SPDX-License-Identifier: Apache-2.0

// Capacity answers how many GPUs a fleet needs: it writes the figures of docs/kubernetes/capacity.md.
//
//	go run ./tools/capacity -table
//
// simulates the mixes of tenants on one GPU for internal/sim/fleet/outcomes.csv.
//
//	go run ./tools/capacity
//
// simulates the fleets, writes docs/kubernetes/capacity.json, and redraws table and picture.
// With -draw it only redraws them.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"xsched/internal/sim/fleet"
)

const figuresFile = "docs/kubernetes/capacity.json"

func main() {
	root := flag.String("root", ".", "of the repository")
	table := flag.Bool("table", false, "simulate the mixes on one GPU instead, which takes minutes")
	only := flag.Bool("draw", false, "redraw the stored figures")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *root, *table, *only); err != nil {
		fmt.Fprintln(os.Stderr, "capacity:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, table, only bool) error {
	if table {
		text, err := fleet.Tabulate(ctx, func(part float64) { fmt.Fprintf(os.Stderr, "\r%5.1f %%", 100*part) })
		fmt.Fprintln(os.Stderr)
		if err != nil {
			return err
		}
		return write(root, "internal/sim/fleet/outcomes.csv", text)
	}
	if !only {
		f, err := simulate(ctx)
		if err != nil {
			return err
		}
		text, err := json.MarshalIndent(f, "", " ")
		if err != nil {
			return fmt.Errorf("encode figures: %w", err)
		}
		if err := write(root, figuresFile, append(text, '\n')); err != nil {
			return err
		}
	}
	f, err := load(root)
	if err != nil {
		return err
	}
	files, err := f.draw(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := write(root, name, text); err != nil {
			return err
		}
	}
	return nil
}

func write(root, name string, text []byte) error {
	if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// load reads the stored figures.
func load(root string) (*figures, error) {
	text, err := os.ReadFile(filepath.Join(root, figuresFile))
	if err != nil {
		return nil, fmt.Errorf("read figures: %w", err)
	}
	f := &figures{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("read %s: %w", figuresFile, err)
	}
	return f, nil
}
