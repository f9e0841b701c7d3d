// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// isolate moves a guardian from the daemon's cgroup to the given one. Otherwise one kill of the
// daemon's cgroup, such as memory.oom.group, ends both. The administrator names the cgroup, because
// leaving the daemon's own means leaving its limits.
func isolate(cgroup string, pid int) error {
	if cgroup == "" {
		return nil
	}
	if err := os.Mkdir(cgroup, 0o755); err != nil && !os.IsExist(err) {
		return fmt.Errorf("create guardian's cgroup: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(cgroup, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("move guardian to its cgroup: %w", err)
	}
	_, err = f.WriteString(strconv.Itoa(pid))
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("move guardian to its cgroup: %w", err)
	}
	return nil
}
