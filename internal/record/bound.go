// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"io"
)

// Bounds on what a file makes its reader allocate. Recordings may come from strangers, and gzip expands
// up to a thousandfold.
const (
	// maxDensity is the most text per byte of the file. Recordings of all scenes in docs/policies/scenes
	// have 4 to 9, measured with `xsched sim FILE --record` on 2026-11-18.
	maxDensity = 64
	// freeText is not counted: short recordings of one repeated event are denser.
	freeText = 1 << 20
	// maxObjects is the most JSON objects of a line. Each becomes a value of up to half a kilobyte. A
	// checkpoint of 16,384 queues has 300,000.
	maxObjects = 1 << 20
)

// errDense reports a file that no daemon writes.
var errDense = fmt.Errorf("%w: it expands to more than %d times its size; replay only recordings that xsched wrote", ErrCorrupt, maxDensity)

// counter counts the bytes of a file.
type counter struct {
	in io.Reader
	n  int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.n += int64(n)
	return n, err
}

// dense fails when the text grows out of proportion to the file.
type dense struct {
	text io.Reader
	file *counter
	n    int64
}

func (d *dense) Read(b []byte) (int, error) {
	n, err := d.text.Read(b)
	if d.n += int64(n); d.n > freeText+maxDensity*d.file.n {
		return 0, errDense
	}
	return n, err
}
