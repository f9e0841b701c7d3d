// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseConfig changes the default by a comma-separated list: a variant (upstream, dkms), a scheduler
// (hws, mes, none), the interface's version (1.11 to 1.17), and by-pid for the numbering of queues.
func ParseConfig(driver string) (Config, error) {
	config := DefaultConfig()
	if driver == "" {
		return config, nil
	}
	for word := range strings.SplitSeq(driver, ",") {
		minor, isVersion := strings.CutPrefix(word, "1.")
		n, err := strconv.ParseUint(minor, 10, 32)
		switch {
		case word == string(Upstream) || word == string(DKMS):
			config.Variant = Variant(word)
		case word == string(HWS) || word == string(MES) || word == string(NoHWS):
			config.Scheduler = Scheduler(word)
		case word == string(ByPID):
			config.Numbers = ByPID
		case isVersion && err == nil && n >= 11 && n <= minorRingTest:
			config.Minor = uint32(n)
		default:
			return Config{}, fmt.Errorf("emulate driver %q: unknown %q; use upstream, dkms, hws, mes, none, 1.11 to 1.17 or by-pid", driver, word)
		}
	}
	return config, nil
}
