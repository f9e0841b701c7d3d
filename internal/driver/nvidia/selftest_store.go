// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
)

const (
	testFile      = "selftest.json"
	testFileBytes = 1 << 20
	testFileLines = 64 // results kept, newest first
)

// testStore persists self-test results for later daemons and `xsched doctor`.
type testStore struct {
	dir     string // empty: no persistence
	version string // XSched version
	seen    time.Time
}

// keepTests persists results in dir; they are valid for one version of XSched.
func (d *Driver) keepTests(dir, version string) {
	d.refresh.Lock()
	defer d.refresh.Unlock()
	d.tests = testStore{dir: dir, version: version}
	d.loadTests()
}

// loadTests loads new results for the loaded driver and this machine's GPUs, and reports whether
// there were any. Unreadable data is ignored, because another test does no harm. Preconditions:
// d.refresh is held.
func (d *Driver) loadTests() (changed bool) {
	if d.tests.dir == "" {
		return false
	}
	path := filepath.Join(d.tests.dir, testFile)
	info, err := os.Lstat(path)
	if err != nil || info.ModTime().Equal(d.tests.seen) {
		return false
	}
	d.tests.seen = info.ModTime()
	c := d.release.Load().levels
	for _, t := range readTests(path) {
		gpu, err := model.ParseDeviceID(t.GPU)
		if err != nil || !sameKey(t.SelfTestKey, d.testKey(gpu)) {
			continue
		}
		if old, ok := c.tested(gpu); !ok || t.When.After(old.When) || old.Outcome == driver.OutcomeInconclusive {
			c.setTest(gpu, t)
			changed = true
		}
	}
	if changed {
		d.generation.Add(1)
	}
	return changed
}

// testKey identifies the configuration of a GPU's result.
func (d *Driver) testKey(gpu model.DeviceID) driver.SelfTestKey {
	k := driver.SelfTestKey{Driver: d.Version(), Version: d.tests.version, GPU: gpu.String()}
	for _, g := range d.system.GPUs() {
		if g.PCI == k.GPU {
			k.Name, k.UUID = g.Name, g.UUID
		}
	}
	if strings.Contains(k.UUID, "?") {
		k.UUID = "" // the driver's placeholder before the GPU's first use
	}
	return k
}

// sameKey compares keys; an unknown UUID matches any.
func sameKey(a, b driver.SelfTestKey) bool {
	if a.UUID == "" || b.UUID == "" {
		a.UUID, b.UUID = "", ""
	}
	return a == b
}

func (c *levelCache) setTest(gpu model.DeviceID, t driver.SelfTest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tests == nil {
		c.tests = map[model.DeviceID]driver.SelfTest{}
	}
	c.tests[gpu] = t
}

// saveTest records a result in memory, and on disk if it is conclusive. An inconclusive result never
// replaces a conclusive one.
func (d *Driver) saveTest(gpu model.DeviceID, t driver.SelfTest) error {
	d.refresh.Lock()
	defer d.refresh.Unlock()
	levels := d.release.Load().levels
	old, known := levels.tested(gpu)
	conclusive := known && old.Outcome != driver.OutcomeInconclusive && sameKey(old.SelfTestKey, t.SelfTestKey)
	if t.Driver == d.Version() && (t.Outcome != driver.OutcomeInconclusive || !conclusive) {
		levels.setTest(gpu, t)
		d.generation.Add(1)
	}
	if d.tests.dir == "" || t.Outcome == driver.OutcomeInconclusive {
		return nil
	}
	if err := os.MkdirAll(d.tests.dir, 0o755); err != nil {
		return fmt.Errorf("keep self-test: %w", err)
	}
	path := filepath.Join(d.tests.dir, testFile)
	list := slices.DeleteFunc(readTests(path), func(old driver.SelfTest) bool { return sameKey(old.SelfTestKey, t.SelfTestKey) })
	list = append([]driver.SelfTest{t}, list...)
	if err := writeJSON(path, list[:min(len(list), testFileLines)]); err != nil {
		return fmt.Errorf("keep self-test: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		d.tests.seen = info.ModTime()
	}
	return nil
}

// readTests reads results, only from a regular file that no other user can write.
func readTests(path string) []driver.SelfTest {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 ||
		st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil
	}
	var list []driver.SelfTest
	b, err := io.ReadAll(io.LimitReader(f, testFileBytes))
	if err != nil || json.Unmarshal(b, &list) != nil {
		return nil
	}
	return list
}
