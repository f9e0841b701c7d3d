// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"flag"
	"os"
	"testing"
)

// TestMain has rapid try the same histories every time: a change is judged by what it changes. Others
// are tried with -rapid.seed N, and with -histories N.
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
