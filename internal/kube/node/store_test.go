// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/kube/cdi"
)

var errKilled = errors.New("killed")

// killer ends the operation after a number of steps.
func killer(steps int) func(string) error {
	return func(string) error {
		if steps--; steps < 0 {
			return errKilled
		}
		return nil
	}
}

func records(t *testing.T, numbers ...int) map[types.UID]claimRecord {
	t.Helper()
	out := map[types.UID]claimRecord{}
	for _, n := range numbers {
		claim := allocated(n, []string{gpu0}, 0, class(fmt.Sprintf(`"priority":%d`, n)))
		r, err := readClaim(claim)
		if err != nil {
			t.Fatal(err)
		}
		out[claim.UID] = r
	}
	return out
}

// consistent checks that exactly these claims have effects.
func (f *folders) consistent(t *testing.T, s *store, numbers ...int) {
	t.Helper()
	var specs []string
	pods := map[string]int32{}
	for _, n := range numbers {
		specs = append(specs, string(uid(claimKind, n)))
		pods[fmt.Sprintf("pod-%d", n)] = int32(n)
	}
	if got := f.specs(t); !slices.Equal(got, specs) {
		t.Errorf("specifications of %v, want %v", got, specs)
	}
	if got := f.daemon.podsGranted(t); !maps.Equal(got, pods) {
		t.Errorf("grants of %v, want %v", got, pods)
	}
	if got := len(s.known()); got != len(numbers) {
		t.Errorf("%d claims in the checkpoint, want %d", got, len(numbers))
	}
	if s.pending() {
		t.Error("grants not sent")
	}
}

// TestKilledAnywhere kills the plugin after each step of preparing and giving back, and starts it again.
// The kubelet repeats what it got no answer to.
func TestKilledAnywhere(t *testing.T) {
	const steps = 8 // of two claims
	for killed := range steps + 1 {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			f, ctx := newFolders(t), t.Context()
			if err := f.store(t, nil).prepare(ctx, records(t, 1)); err != nil {
				t.Fatal(err)
			}
			// restart is a start and the first look at the daemon.
			restart := func() *store {
				s := f.store(t, nil)
				if err := s.repair(ctx); err != nil {
					t.Fatal(err)
				}
				return s
			}
			err := f.store(t, killer(killed)).prepare(ctx, records(t, 2, 3))
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			s := restart()
			if err := s.prepare(ctx, records(t, 2, 3)); err != nil {
				t.Fatal(err)
			}
			f.consistent(t, s, 1, 2, 3)

			again := f.store(t, killer(killed))
			err = again.unprepare(ctx, []types.UID{uid(claimKind, 2), uid(claimKind, 3)})
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			s = restart()
			if err := s.unprepare(ctx, []types.UID{uid(claimKind, 2), uid(claimKind, 3)}); err != nil {
				t.Fatal(err)
			}
			f.consistent(t, s, 1)
			if err := s.unprepare(ctx, []types.UID{uid(claimKind, 1)}); err != nil {
				t.Fatal(err)
			}
			f.consistent(t, s)
		})
	}
	// The last round must have been one without a kill.
	if err := newFolders(t).store(t, killer(steps)).prepare(t.Context(), records(t, 2, 3)); err != nil {
		t.Fatalf("more than %d steps", steps)
	}
}

// TestKilledBeforeRepair: a pod's grant is there as soon as the daemon answers, also if nobody asks again.
func TestKilledBeforeRepair(t *testing.T) {
	f := newFolders(t)
	if err := f.store(t, killer(0)).prepare(t.Context(), records(t, 4)); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	s := f.store(t, nil)
	if !s.pending() {
		t.Error("a new process must send the grants")
	}
	if err := s.repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.consistent(t, s, 4)
}

func TestDaemonDown(t *testing.T) {
	f := newFolders(t)
	s := f.store(t, nil)
	f.daemon.set(func() { f.daemon.down = true })
	if err := s.prepare(t.Context(), records(t, 1)); !errors.Is(err, errDown) {
		t.Fatalf("prepared without the daemon: %v", err)
	}
	f.daemon.set(func() { f.daemon.down = false })
	if err := s.prepare(t.Context(), records(t, 1)); err != nil {
		t.Fatal(err)
	}
	f.consistent(t, s, 1)
	f.daemon.set(func() { f.daemon.down = true })
	if err := s.unprepare(t.Context(), []types.UID{uid(claimKind, 1)}); err != nil {
		t.Fatalf("a pod's end waits for the daemon: %v", err)
	}
	if !s.pending() {
		t.Error("the daemon still has the grant")
	}
	f.daemon.set(func() { f.daemon.down = false })
	if err := s.repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.consistent(t, s)
}

// TestOtherFiles: the folder of specifications belongs to all drivers of the node.
func TestOtherFiles(t *testing.T) {
	f := newFolders(t)
	if err := os.MkdirAll(f.cdi, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vendor.yaml", "gpu.xsched.dev-stale.json", "gpu.xsched.dev-half.json.new", "gpu.xsched.dev-notes.txt"} {
		if err := os.WriteFile(filepath.Join(f.cdi, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f.store(t, nil)
	if got := f.specs(t); !slices.Equal(got, []string{"notes.txt", "vendor.yaml"}) {
		t.Errorf("left: %v", got)
	}
}

func TestSpecification(t *testing.T) {
	f := newFolders(t)
	s := f.store(t, nil)
	if err := s.prepare(t.Context(), records(t, 7)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(f.cdi, "gpu.xsched.dev-"+string(uid(claimKind, 7))+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var spec cdi.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	if spec.Version != "0.6.0" || spec.Kind != "gpu.xsched.dev/claim" || len(spec.Devices) != 1 || spec.Devices[0].Name != string(uid(claimKind, 7))+"-0" {
		t.Errorf("%+v", spec)
	}
	e := spec.Devices[0].Edits
	if !slices.Contains(e.Env, "LD_PRELOAD=/usr/lib/xsched/libxsched.so") || len(e.Mounts) != 2 || e.Mounts[0].HostPath != "/run/xsched/client" || e.Mounts[0].ContainerPath != "/run/xsched" {
		t.Errorf("%+v", e)
	}
	if g, ok := s.grantOf(spec.Devices[0].Name); !ok || *g.Priority != 7 {
		t.Errorf("grant of the device: %+v", g)
	}
	for _, name := range []string{"", "-", "x-0", string(uid(claimKind, 7)) + "-1", string(uid(claimKind, 7)) + "--1"} {
		if _, ok := s.grantOf(name); ok {
			t.Errorf("%q has a grant", name)
		}
	}
}

func TestDamagedCheckpoint(t *testing.T) {
	for text, part := range map[string]string{"{": "is damaged", `{"version":2}`: "has version 2"} {
		f := newFolders(t)
		file := filepath.Join(f.data, "checkpoint.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := (&store{file: file}).open()
		if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
