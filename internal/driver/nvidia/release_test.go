// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// knownDrivers lists the driver branches with a known ABI.
func knownDrivers() []string {
	var names []string
	for _, b := range branches {
		names = append(names, fmt.Sprintf("R%d", b))
	}
	return names
}

func TestGrades(t *testing.T) {
	for version, want := range map[string]Grade{
		"515.43.04": Unsupported, "530.30.02": Unsupported, "470.1": Unsupported, "nonsense": Unsupported,
		"535.43.02": SameABI, "550.163.01": SameABI, "580.95.05": SameABI, "595.45.04": SameABI,
		measuredVersion: Measured, virtualVersion: Measured,
		"540.1": Unlisted, "610.3": Unlisted,
	} {
		g, err := grade(version)
		if g != want || (err == nil) != (want >= SameABI) {
			t.Errorf("%s: %v %v", version, g, err)
		}
		if want == Unlisted && (!errors.Is(err, ErrUnknownDriver) || !strings.Contains(err.Error(), "--self-test")) {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// The branch table and the data files of the parity test cover the same branches from the first on.
func TestTableMatchesData(t *testing.T) {
	files, err := filepath.Glob("abi/testdata/R*.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Join(knownDrivers(), " ")
	data := ""
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		data += name + " "
		if name >= knownDrivers()[0] && !strings.Contains(known, name) {
			t.Errorf("%s has data, but is not in the table", name)
		}
	}
	for _, b := range knownDrivers() {
		if !strings.Contains(data, b) {
			t.Errorf("%s has no data file", b)
		}
	}
}

func tested(o driver.Outcome, stop, slices bool) *driver.SelfTest {
	return &driver.SelfTest{Outcome: o, Stop: stop, Slices: slices, Reason: "because"}
}

func TestEvidenceDecides(t *testing.T) {
	const sameABI = "550.54.14"
	for name, c := range map[string]struct {
		version string
		test    *driver.SelfTest
		level   model.Level
		slices  bool
		words   string
	}{
		"measured":               {measuredVersion, nil, model.LevelInterrupt, true, ""},
		"measured, passed":       {measuredVersion, tested(driver.OutcomePassed, true, true), model.LevelInterrupt, true, ""},
		"measured, inconclusive": {measuredVersion, tested(driver.OutcomeInconclusive, false, false), model.LevelInterrupt, true, ""},
		"measured, failed":       {measuredVersion, tested(driver.OutcomeFailed, false, true), model.LevelBlock, true, "failed the self-test (because)"},
		"measured, no slices":    {measuredVersion, tested(driver.OutcomeFailed, true, false), model.LevelInterrupt, false, ""},
		"same ABI":               {sameABI, nil, model.LevelBlock, false, "has not passed the self-test yet"},
		"same ABI, passed":       {sameABI, tested(driver.OutcomePassed, true, true), model.LevelInterrupt, true, ""},
		"same ABI, inconclusive": {sameABI, tested(driver.OutcomeInconclusive, false, false), model.LevelBlock, false, "has not passed the self-test (because)"},
		"same ABI, failed":       {sameABI, tested(driver.OutcomeFailed, false, false), model.LevelBlock, false, "failed the self-test"},
		"unlisted, passed":       {"610.1", tested(driver.OutcomePassed, true, true), model.LevelInterrupt, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fake := newFakeRM()
			d := gated(fake, c.version)
			if c.test != nil {
				d.release.Load().levels.setTest(fakeDevice, *c.test)
			}
			s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
			defer s.Close()
			fake.newContext(t, s, 0xc1d00001, fakeGPU, 4)
			caps, err := s.Resolve(context.Background())
			got := caps[fakeDevice]
			if err != nil || got.MaxLevel != c.level || got.Slices != c.slices || !strings.Contains(got.Reason, c.words) || (c.words == "") != (got.Reason == "") {
				t.Errorf("%+v %v", got, err)
			}
			// Without evidence not even the side-effect-free form of the request may be sent.
			if n := fake.calls[abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS]; (n > 0) != (c.level == model.LevelInterrupt) {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// A driver with an unknown ABI is never called.
func TestUnknownDriverIsNotCalled(t *testing.T) {
	for _, version := range []string{"525.60.11", "610.1"} {
		fake := newFakeRM()
		d := gated(fake, version)
		s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
		fake.newContext(t, s, 0xc1d00001, fakeGPU, 4)
		caps, err := s.Resolve(context.Background())
		if len(caps) > 0 || err != nil || len(fake.calls) > 0 {
			t.Errorf("%s: %+v %v %v", version, caps, err, fake.calls)
		}
		if why, _ := s.Why(); !strings.Contains(why, version) {
			t.Error(why)
		}
		s.Close()
	}
}

// A negative probe applies to its process; several processes must agree before it applies to all,
// and then it expires.
func TestRefusalsNeedSeveralProcessesAndExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeRM()
		r := &refusing{fake, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, abi.NV_ERR_NOT_SUPPORTED}
		d := gated(r, measuredVersion)
		resolve := func(pid int) driver.Capability {
			s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
			s.process = pid
			defer s.Close()
			fake.newContext(t, s, 0xc1d00000+uint32(pid), fakeGPU, 4)
			caps, err := s.Resolve(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return caps[fakeDevice]
		}
		// Repeated refusals of one process count once.
		for range 5 {
			if c := resolve(1); c.MaxLevel != model.LevelBlock || !strings.Contains(c.Reason, "not supported") {
				t.Errorf("%+v", c)
			}
		}
		if _, known := d.Verdict(fakeDevice); known {
			t.Error("learnt from one process")
		}
		resolve(2)
		if _, known := d.Verdict(fakeDevice); known {
			t.Error("learnt from two processes")
		}
		resolve(3)
		if v, known := d.Verdict(fakeDevice); !known || v.Stop || !strings.Contains(v.Reason, "3 processes") {
			t.Errorf("not learnt from three processes: %+v", v)
		}
		before := fake.calls[abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS]
		if c := resolve(4); c.MaxLevel != model.LevelBlock || fake.calls[abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS] != before {
			t.Errorf("probed despite a verdict: %+v", c)
		}
		time.Sleep(refusalAge + time.Second)
		if _, known := d.Verdict(fakeDevice); known {
			t.Error("the verdict does not expire")
		}
		r.cmd = 0 // the cause is gone
		if c := resolve(5); c.MaxLevel != model.LevelInterrupt {
			t.Errorf("%+v", c)
		}
	})
}

// A driver upgrade under a running daemon is detected, and the old evidence is not used.
func TestRefreshNoticesAnUpgrade(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write := func(version string) {
		_ = os.MkdirAll(filepath.Join(root, "sys/module/nvidia"), 0o755)
		if err := os.WriteFile(filepath.Join(root, "sys/module/nvidia/version"), []byte(version+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := newDriver(newFakeRM(), System{Root: root}, false); err == nil {
		t.Error("found a driver without a module")
	}
	write(measuredVersion)
	d, err := newDriver(newFakeRM(), System{Root: root}, false)
	if err != nil {
		t.Fatal(err)
	}
	d.keepTests(dir, "v1")
	if err := d.CacheLevels(dir); err != nil {
		t.Fatal(err)
	}
	if err := d.learn(fakeDevice, 1, Verdict{Stop: true, Slices: true}); err != nil {
		t.Fatal(err)
	}
	if d.Refresh() {
		t.Error("changed without a change")
	}
	write("550.54.14")
	if !d.Refresh() || d.Version() != "550.54.14" {
		t.Errorf("still %s", d.Version())
	}
	if v, _ := d.Verdict(fakeDevice); v.Stop || !strings.Contains(v.Reason, "550.54.14") {
		t.Errorf("%+v", v)
	}
	_ = os.RemoveAll(filepath.Join(root, "sys"))
	if d.Refresh() || d.Version() != "550.54.14" {
		t.Error("an unloaded module counts as a change")
	}
	write(measuredVersion)
	if !d.Refresh() {
		t.Error("not noticed")
	}
	if v, probed := d.Verdict(fakeDevice); !probed || !v.Stop {
		t.Error("lost the verdict of this release")
	}
}

func TestKeptTests(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	information := filepath.Join(root, "proc/driver/nvidia/gpus", fakeDevice.String(), "information")
	gpu := func(uuid string) {
		_ = os.MkdirAll(filepath.Dir(information), 0o755)
		if err := os.WriteFile(information, []byte("Model: \t NVIDIA H200\nGPU UUID: \t "+uuid+"\nDevice Minor: \t 0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gpu("GPU-1234")
	open := func(driverVersion, version string) *Driver {
		d := gated(newFakeRM(), driverVersion)
		d.system = System{Root: root}
		d.keepTests(dir, version)
		return d
	}
	d := open("550.54.14", "v1")
	if _, ok := d.release.Load().levels.tested(fakeDevice); ok {
		t.Fatal("a result without a test")
	}
	result := driver.SelfTest{SelfTestKey: d.testKey(fakeDevice), Outcome: driver.OutcomePassed, Stop: true, Slices: true, When: time.Now()}
	if result.UUID != "GPU-1234" || result.Name != "NVIDIA H200" {
		t.Errorf("%+v", result.SelfTestKey)
	}
	// A running daemon picks up results of another process, such as `xsched doctor`.
	running := open("550.54.14", "v1")
	if err := d.saveTest(fakeDevice, result); err != nil {
		t.Fatal(err)
	}
	if !reload(running) {
		t.Error("missed a new result")
	}
	known := func(d *Driver) bool {
		_, ok := d.release.Load().levels.tested(fakeDevice)
		return ok
	}
	if !known(running) || !known(open("550.54.14", "v1")) {
		t.Error("the result is not used")
	}
	if known(open("550.90.07", "v1")) || known(open("550.54.14", "v2")) {
		t.Error("the result of another release is used")
	}
	gpu("GPU-????????-????-????-????-????????????")
	if !known(open("550.54.14", "v1")) {
		t.Error("a GPU without UUID counts as another GPU")
	}
	gpu("GPU-9999")
	if known(open("550.54.14", "v1")) {
		t.Error("the result of another GPU is used")
	}
	gpu("GPU-1234")
	path := filepath.Join(dir, testFile)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if known(open("550.54.14", "v1")) {
		t.Error("used a file that others can write")
	}
	_ = os.Chmod(path, 0o644)
	if err := os.WriteFile(path, []byte("{nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d := open("550.54.14", "v1"); known(d) || d.saveTest(fakeDevice, result) != nil || !known(open("550.54.14", "v1")) {
		t.Error("a corrupted file is not replaced")
	}
}

// reload is Refresh without reading the version, which these tests set.
func reload(d *Driver) bool {
	d.refresh.Lock()
	defer d.refresh.Unlock()
	return d.loadTests()
}

// versionsTable renders the table of docs/platforms/nvidia.md from the branch table and the data
// files.
func versionsTable(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| branch | grade | layouts compared |\n|---|---|---|\n")
	for _, branch := range knownDrivers() {
		text, err := os.ReadFile("abi/testdata/" + branch + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		var tags []string
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "tags "); ok {
				tags = append(tags, strings.Fields(rest)...)
			}
		}
		grade := SameABI.String()
		for version, where := range measured {
			if "R"+strings.SplitN(version, ".", 2)[0] == branch {
				grade = fmt.Sprintf("%s: measured on %s; other releases: %s", version, where, grade)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %d tags, %s to %s |\n", branch, grade, len(tags), tags[0], tags[len(tags)-1])
	}
	return b.String()
}

func TestDocsShowTheTable(t *testing.T) {
	page, err := os.ReadFile("../../../docs/platforms/nvidia.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := versionsTable(t); !strings.Contains(string(page), table) {
		t.Errorf("docs/platforms/nvidia.md does not contain this table:\n%s", table)
	}
}
