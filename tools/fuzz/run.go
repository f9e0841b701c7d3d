// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// build writes one instrumented test binary per package to dir, and this command.
func build(ctx context.Context, targets []target, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	done := map[string]bool{}
	for _, t := range targets {
		if done[t.pkg] {
			continue
		}
		done[t.pkg] = true
		if err := goCommand(ctx, "test", "-c", "-fuzz=Fuzz", "-ldflags=-s -w", "-o", binary(dir, t), "./"+t.pkg); err != nil {
			return fmt.Errorf("build %s: %w", t.pkg, err)
		}
	}
	return goCommand(ctx, "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "fuzz"), "./tools/fuzz")
}

func goCommand(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "go", args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}

func binary(dir string, t target) string {
	return filepath.Join(dir, strings.ReplaceAll(t.pkg, "/", "-")+".fuzz")
}

// result is the outcome of one target.
type result struct {
	target
	took   time.Duration
	inputs int64
	err    error
	output []byte
}

// fuzzAll runs the targets, o.jobs at a time.
func fuzzAll(ctx context.Context, targets []target, o *options) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	dir := o.bin
	if dir == "" {
		dir = "build/fuzz/bin"
		if err := build(ctx, targets, dir); err != nil {
			return err
		}
	}
	// Tests run in the folder of their package.
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	corpus, err := filepath.Abs(o.corpus)
	if err != nil {
		return err
	}
	if err := unpack(corpusFile, corpus); err != nil {
		return err
	}
	var (
		mu   sync.Mutex
		wait sync.WaitGroup
		done []result
		errs []error
	)
	free := make(chan struct{}, max(1, o.jobs))
	for _, t := range targets {
		if !only.MatchString(t.String()) {
			continue
		}
		limit := o.others
		if t.faces == facesUsers {
			limit = o.users
		}
		free <- struct{}{}
		wait.Go(func() {
			defer func() { <-free }()
			r := fuzz(ctx, t, dir, filepath.Join(corpus, t.id()), limit)
			mu.Lock()
			defer mu.Unlock()
			done = append(done, r)
			if r.err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", t, r.err))
				fmt.Printf("FAIL %s: %v\n%s", t, r.err, r.output)
				return
			}
			fmt.Printf("ok   %-45s %6.0f s %12d inputs\n", t, r.took.Seconds(), r.inputs)
		})
	}
	wait.Wait()
	if o.keep {
		errs = append(errs, record(done, recordFile), pack(corpus, corpusFile))
	}
	return errors.Join(errs...)
}

// deadline is what the fuzzing engine reports if its time ends at the wrong moment; it is no failure
// of the target. See golang.org/issue/48591.
var deadline = []byte("context deadline exceeded")

// fuzz runs one target on one core.
func fuzz(ctx context.Context, t target, bin, corpus, limit string) result {
	if err := os.MkdirAll(corpus, 0o755); err != nil {
		return result{target: t, err: err}
	}
	start := time.Now()
	c := exec.CommandContext(ctx, binary(bin, t), "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+limit,
		"-test.fuzzcachedir="+corpus, "-test.parallel=1", "-test.fuzzminimizetime=1s", "-test.timeout=0")
	c.Dir = filepath.FromSlash(t.pkg)
	out, err := c.CombinedOutput()
	r := result{target: t, took: time.Since(start), inputs: inputs(out), err: err, output: out}
	if err != nil && bytes.Contains(out, deadline) && !bytes.Contains(out, []byte("Failing input")) {
		r.err = nil
	}
	return r
}

var execs = regexp.MustCompile(`execs: (\d+)`)

// inputs returns the number of inputs that the engine reported last.
func inputs(out []byte) int64 {
	all := execs.FindAllSubmatch(out, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(string(all[len(all)-1][1]), 10, 64)
	return n
}
