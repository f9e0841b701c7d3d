// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench/benchtest"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

func startFake(t *testing.T, kind string) *Tenant {
	t.Helper()
	tn, err := StartTenant("fake", []string{os.Args[0]}, WithEnv(benchtest.TenantEnv+"="+kind))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tn.Kill)
	if err := tn.Await(context.Background(), "R", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	return tn
}

func TestTenantProtocol(t *testing.T) {
	tn := startFake(t, "good")
	ctx := context.Background()
	if err := tn.Tell("loop"); err != nil {
		t.Fatal(err)
	}
	if err := tn.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if got := tn.Samples(); len(got) != 3 || got[2] != (Sample{2000, 2500}) {
		t.Errorf("samples = %v", got)
	}
	if err := tn.Quit(10 * time.Second); err != nil {
		t.Error(err)
	}
	if got := tn.Final(); got != (finalLine{Launches: 3, OK: true}) {
		t.Errorf("report = %+v", got)
	}
}

func TestTenantsThatFail(t *testing.T) {
	ctx := context.Background()
	t.Run("wrong checksum", func(t *testing.T) {
		tn := startFake(t, "wrong")
		if err := tn.Quit(10 * time.Second); err != nil || tn.Final().OK {
			t.Errorf("quit = %v, report = %+v", err, tn.Final())
		}
	})
	t.Run("dies", func(t *testing.T) {
		tn := startFake(t, "dies")
		_ = tn.Tell("loop")
		if err := tn.Pause(ctx); err == nil {
			t.Error("a dead tenant paused")
		}
		if err := tn.Quit(10 * time.Second); err == nil || !strings.Contains(err.Error(), "exit status 3: out of luck") {
			t.Errorf("quit = %v", err)
		}
	})
	t.Run("deaf", func(t *testing.T) {
		tn := startFake(t, "deaf")
		if err := tn.Await(ctx, "P", 50*time.Millisecond); err == nil {
			t.Error("no answer is an answer")
		}
	})
	t.Run("stuck", func(t *testing.T) {
		tn := startFake(t, "stuck")
		if err := tn.Quit(100 * time.Millisecond); err == nil {
			t.Error("a stuck tenant ended")
		}
	})
}

func TestParseSample(t *testing.T) {
	for _, bad := range []string{"", "I", "I 1", "I 1 x", "I 2 1", "J 1 2", "I 1 2 3"} {
		if s, ok := parseSample([]byte(bad)); ok {
			t.Errorf("%q gives %v", bad, s)
		}
	}
	for _, bad := range []string{"", "S 1 2", "S x 1 1", "S 1 2 3 4"} {
		if f, ok := parseFinal(bad); ok {
			t.Errorf("%q gives %v", bad, f)
		}
	}
}
