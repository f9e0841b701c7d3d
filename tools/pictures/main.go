// SPDX-License-Identifier: Apache-2.0

// Pictures draws the charts of the documentation. Each scene of docs/policies/scenes, simulated under its policy, becomes
// docs/policies/NAME_gen.svg. The measurements of docs/results/h200.json.gz become docs/result.svg. A fixed scene of
// `xsched top` becomes docs/top.svg. It also updates the example of docs/simulator.md.
//
//	go run ./tools/pictures [-root .] [-strategies]
//
// With -strategies it runs the comparison of docs/strategies.md instead, and dates it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"xsched/internal/policy"
	"xsched/internal/record"
	"xsched/internal/sim"
)

func main() {
	root := flag.String("root", ".", "of the repository")
	compare := flag.Bool("strategies", false, "update docs/strategies.md instead")
	flag.Parse()
	draw := pictures
	if *compare {
		draw = func(root string) (map[string][]byte, error) {
			return strategies(root, time.Now().Format(time.DateOnly))
		}
	}
	if err := run(*root, draw); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(root string, draw func(root string) (map[string][]byte, error)) error {
	all, err := draw(root)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := os.WriteFile(filepath.Join(root, name), all[name], 0o644); err != nil {
			return fmt.Errorf("write picture: %w", err)
		}
	}
	return nil
}

// longest limits the displayed part of a scene.
const longest = time.Second

// pictures draws every scene and returns the pictures by file name.
func pictures(root string) (map[string][]byte, error) {
	scenes, err := filepath.Glob(filepath.Join(root, "docs/policies/scenes/*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("find scenes: %w", err)
	}
	out := map[string][]byte{}
	for _, scene := range scenes {
		s, err := sim.Load(scene)
		if err != nil {
			return nil, err
		}
		res, err := sim.Run(context.Background(), s, sim.Options{Draw: min(s.Duration.D()-s.Warmup.D(), longest)})
		if err != nil {
			return nil, fmt.Errorf("simulate %s: %w", scene, err)
		}
		var b bytes.Buffer
		if err := res.WriteTimeline(&b); err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(scene), ".yaml")
		out[filepath.Join("docs/policies", name+"_gen.svg")] = b.Bytes()
	}
	liveView(out)
	return out, errors.Join(example(root, out), result(root, out), overview(root, out))
}

// overview writes the table of docs/policies/README.md: the policies of the registry,
// each with the first table of its page.
func overview(root string, out map[string][]byte) error {
	const (
		page   = "docs/policies/README.md"
		header = "| decides by | hints it reads | suspends | use it for |\n"
		rule   = "|---|---|---|---|\n"
	)
	names := policy.Names()
	slices.SortFunc(names, func(a, b string) int { return policy.Number(a) - policy.Number(b) })
	var table strings.Builder
	table.WriteString("| no. | name " + header + "|---|---" + rule)
	for _, name := range names {
		own := strings.ToLower(name) + ".md"
		text, err := os.ReadFile(filepath.Join(root, "docs/policies", own))
		if err != nil {
			return fmt.Errorf("read page of policy %s: %w", name, err)
		}
		_, rest, found := strings.Cut(string(text), header+rule)
		if !found {
			return fmt.Errorf("%s has no table with the columns %s", own, header)
		}
		row, _, _ := strings.Cut(rest, "\n")
		fmt.Fprintf(&table, "| %d | [%s](%s) %s\n", policy.Number(name), name, own, row)
	}
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	out[page], err = replaceBlock(page, text, "policies", table.String())
	return err
}

// replaceBlock replaces the text between the markers of a generated block.
func replaceBlock(page string, text []byte, name, block string) ([]byte, error) {
	begin := "<!-- by make pictures: " + name + " -->\n"
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, ends := strings.Cut(rest, "<!-- end -->\n")
	if !found || !ends {
		return nil, fmt.Errorf("%s has no block %q", page, name)
	}
	return []byte(head + begin + block + "<!-- end -->\n" + tail), nil
}

// example updates the example of docs/simulator.md: its table, its picture, and its replay.
func example(root string, out map[string][]byte) error {
	const page = "docs/simulator.md"
	s, err := sim.Load(filepath.Join(root, "examples/scenarios/inference.yaml"))
	if err != nil {
		return err
	}
	res, err := sim.Run(context.Background(), s, sim.Options{Policies: []string{"native", "HPF:suspend", "HPF"}, Draw: 60 * time.Millisecond})
	if err != nil {
		return fmt.Errorf("simulate example: %w", err)
	}
	var table, picture, replay bytes.Buffer
	if err := errors.Join(res.WriteTable(&table), res.WriteSVG(&picture), replayed(s, &replay)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	for name, block := range map[string]string{"inference": table.String(), "replay": replay.String()} {
		if text, err = replaceBlock(page, text, name, "```\n"+block+"```\n"); err != nil {
			return err
		}
	}
	out[page], out["docs/simulator-inference_gen.svg"] = text, picture.Bytes()
	return nil
}

// replayed records the example and replays it natively.
func replayed(s *sim.Scenario, w io.Writer) error {
	dir, err := os.MkdirTemp("", "pictures")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file, o := filepath.Join(dir, "inference.rec"), sim.Options{}
	log, err := record.Create(file, record.Options{Header: s.RecordHeader("1.0", o), Wait: true})
	if err != nil {
		return err
	}
	o.Record = log
	if _, err := sim.Run(context.Background(), s, o); err != nil {
		return fmt.Errorf("record example: %w", err)
	}
	if err := log.Close(); err != nil {
		return err
	}
	r, err := record.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	rec, err := sim.ReadRecording(r)
	if err != nil {
		return err
	}
	res, err := sim.Replay(context.Background(), rec, "native")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w, rec.Summary()); err != nil {
		return err
	}
	return res.WriteTable(w)
}
