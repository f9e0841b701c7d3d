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

// testStore keeps the results of self-tests on disk, over the daemon's end and for
// `xsched doctor`.
type testStore struct {
	dir     string // empty: nothing is kept
	version string // of XSched
	seen    time.Time
}

// keepTests keeps the results of self-tests in a folder; they hold for one version of XSched.
func (d *Driver) keepTests(dir, version string) {
	d.refresh.Lock()
	defer d.refresh.Unlock()
	d.tests = testStore{dir: dir, version: version}
	d.loadTests()
}

// loadTests takes over results that are new on disk, for the loaded driver and the GPUs of this
// machine, and says whether there were any. What can't be read is ignored: a test more does no harm.
// Preconditions: d.refresh is held.
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
		if old, ok := c.tested(gpu); !ok || t.When.After(old.When) {
			c.setTest(gpu, t)
			changed = true
		}
	}
	return changed
}

// testKey is what a result on a GPU holds for.
func (d *Driver) testKey(gpu model.DeviceID) driver.SelfTestKey {
	k := driver.SelfTestKey{Driver: d.Version(), Version: d.tests.version, GPU: gpu.String()}
	for _, g := range d.system.GPUs() {
		if g.PCI == k.GPU {
			k.Name, k.UUID = g.Name, g.UUID
		}
	}
	if strings.Contains(k.UUID, "?") {
		k.UUID = "" // as the driver writes it before the GPU's first use
	}
	return k
}

// sameKey compares keys; a UUID that is not known is no difference.
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

// saveTest notes a result, here and on disk. An inconclusive one is not worth keeping.
func (d *Driver) saveTest(gpu model.DeviceID, t driver.SelfTest) error {
	d.refresh.Lock()
	defer d.refresh.Unlock()
	if t.Driver == d.Version() {
		d.release.Load().levels.setTest(gpu, t)
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

// readTests reads results. Only a plain file that nobody else can have written counts.
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
