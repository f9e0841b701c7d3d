// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"flag"
	"os"
	"testing"
)

// TestMain fixes rapid's seed, so that a failure is due to a change of the code. Use
// -rapid.seed N and -histories N to try others.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.seed" })
	if !given {
		if err := flag.Set("rapid.seed", "20261115"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
