// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// fakeTenantEnv turns the test binary into a load generator without a GPU.
const fakeTenantEnv = "BENCH_FAKE_TENANT"

func TestMain(m *testing.M) {
	if kind := os.Getenv(fakeTenantEnv); kind != "" {
		fakeTenant(kind)
		return
	}
	os.Exit(m.Run())
}

// fakeTenant speaks the protocol: three iterations at once for "loop", and for "rate" one
// every 10 ms until something else is said.
func fakeTenant(kind string) {
	fmt.Println("R")
	lines := make(chan string)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	n, rated := 0, false
	tick := time.NewTicker(10 * time.Millisecond)
	for {
		select {
		case <-tick.C:
			if rated {
				now := monotonic()
				n++
				fmt.Printf("I %d %d\n", now-100_000, now)
			}
			continue
		case line, open := <-lines:
			if !open {
				return
			}
			cmd, _, _ := strings.Cut(line, " ")
			rated = cmd == "rate" || cmd == "loop" && kind == "steady"
			switch {
			case cmd == "loop" && kind == "dies":
				fmt.Fprintln(os.Stderr, "out of luck")
				os.Exit(3)
			case cmd == "loop" && kind != "steady":
				for ; n < 3; n++ {
					fmt.Printf("I %d %d\n", 1000*n, 1000*n+500)
				}
			case cmd == "pause" && kind != "deaf":
				fmt.Println("P")
			case cmd == "quit":
				sum := "abc"
				if kind == "wrong" {
					sum = "abd"
				}
				if kind == "stuck" {
					time.Sleep(time.Minute)
				}
				fmt.Printf("S %d %s abc\n", n, sum)
				return
			}
		}
	}
}

func startFake(t *testing.T, kind string) *tenant {
	t.Helper()
	tn, err := startTenant("fake", []string{os.Args[0]}, withEnv(fakeTenantEnv+"="+kind))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tn.kill)
	if err := tn.await(context.Background(), "R", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	return tn
}

func TestTenantProtocol(t *testing.T) {
	tn := startFake(t, "good")
	ctx := context.Background()
	if err := tn.tell("loop"); err != nil {
		t.Fatal(err)
	}
	if err := tn.pause(ctx); err != nil {
		t.Fatal(err)
	}
	if got := tn.taken(); len(got) != 3 || got[2] != (Sample{2000, 2500}) {
		t.Errorf("samples = %v", got)
	}
	if err := tn.quit(10 * time.Second); err != nil {
		t.Error(err)
	}
	if got := tn.report(); got != (finalLine{launches: 3, ok: true}) {
		t.Errorf("report = %+v", got)
	}
}

func TestTenantsThatFail(t *testing.T) {
	ctx := context.Background()
	t.Run("wrong checksum", func(t *testing.T) {
		tn := startFake(t, "wrong")
		if err := tn.quit(10 * time.Second); err != nil || tn.report().ok {
			t.Errorf("quit = %v, report = %+v", err, tn.report())
		}
	})
	t.Run("dies", func(t *testing.T) {
		tn := startFake(t, "dies")
		_ = tn.tell("loop")
		if err := tn.pause(ctx); err == nil {
			t.Error("a dead tenant paused")
		}
		if err := tn.quit(10 * time.Second); err == nil || !strings.Contains(err.Error(), "exit status 3: out of luck") {
			t.Errorf("quit = %v", err)
		}
	})
	t.Run("deaf", func(t *testing.T) {
		tn := startFake(t, "deaf")
		if err := tn.await(ctx, "P", 50*time.Millisecond); err == nil {
			t.Error("no answer is an answer")
		}
	})
	t.Run("stuck", func(t *testing.T) {
		tn := startFake(t, "stuck")
		if err := tn.quit(100 * time.Millisecond); err == nil {
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
