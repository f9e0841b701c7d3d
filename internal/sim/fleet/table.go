// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// outcomesFile is the table of node outcomes, made by `make capacity-table`.
//
//go:embed outcomes.csv
var outcomesFile []byte

const tableHead = `# Outcome of a GPU that tenants share, by make capacity-table. Loads are parts of the GPU's time.
# Each line: P99 of a request in ms at own load %s ("-": saturated), then what all batch jobs keep at own load %s.
sharing,cost,own,other,other_load,kernel,batch,p99,kept
`

// formatTable writes the table: one line for all loads of the observed service.
func formatTable(mixes []mix, results []outcome) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, tableHead, loadList(ownLoads[1:]), loadList(ownLoads))
	for i := 0; i < len(mixes); i += len(ownLoads) {
		m := &mixes[i]
		fmt.Fprintf(&b, "%s,%g,%d,%d,%g,%d,%d", m.how, m.cost, m.own, m.other, m.otherLoad, m.kernel, m.batch)
		for k, sep := range results[i+1 : i+len(ownLoads)] {
			fmt.Fprintf(&b, "%c%s", ", "[min(k, 1)], formatFloat(sep.p99, 3))
		}
		for k, r := range results[i : i+len(ownLoads)] {
			fmt.Fprintf(&b, "%c%s", ", "[min(k, 1)], formatFloat(r.kept, 4))
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func formatFloat(v float64, decimals int) string {
	if math.IsInf(v, 1) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

func loadList(loads []float64) string {
	var text []string
	for _, v := range loads {
		text = append(text, strconv.FormatFloat(v, 'g', -1, 64))
	}
	return strings.Join(text, ", ")
}

// line is a line of the table.
type line struct {
	p99  [6]float64 // by ownLoads; the first is that of the second
	kept [6]float64
}

// Outcomes is the table for one way of sharing at one cost.
type Outcomes struct {
	// by own shape, other shape, other load, and batchIndex
	lines [3][3][3][5]line
}

type tableKey struct {
	how  Sharing
	cost float64
}

// readTables parses the file. Every line must be there, once and in order.
func readTables(file []byte) (map[tableKey]*Outcomes, error) {
	var rows [][]string
	for text := range strings.Lines(string(file)) {
		if text = strings.TrimSpace(text); text != "" && text[0] != '#' && !strings.HasPrefix(text, "sharing,") {
			rows = append(rows, strings.Split(text, ","))
		}
	}
	out := map[tableKey]*Outcomes{}
	var err error
	for _, t := range tabulated {
		for _, cost := range t.costs {
			o := &Outcomes{}
			out[tableKey{t.how, cost}] = o
			lines(func(own, other, kernel, batch int, otherLoad float64) {
				if err != nil || len(rows) == 0 {
					err = errors.Join(err, errors.New("read node outcomes: lines are missing; run `make capacity-table`"))
					return
				}
				want := fmt.Sprintf("%s,%g,%d,%d,%g,%d,%d", t.how, cost, own, other, otherLoad, kernel, batch)
				row := rows[0]
				rows = rows[1:]
				if len(row) != 9 || strings.Join(row[:7], ",") != want {
					err = fmt.Errorf("read node outcomes: line %s is not where it belongs; run `make capacity-table`", want)
					return
				}
				l := &o.lines[own][other][indexOf(otherLoads, otherLoad)][batchIndex(kernel, batch)]
				if err = errors.Join(parseFloats(row[7], l.p99[1:]), parseFloats(row[8], l.kept[:])); err != nil {
					return
				}
				l.p99[0] = l.p99[1]
			})
		}
	}
	if err == nil && len(rows) > 0 {
		err = errors.New("read node outcomes: too many lines; run `make capacity-table`")
	}
	return out, err
}

func parseFloats(text string, to []float64) error {
	fields := strings.Fields(text)
	if len(fields) != len(to) {
		return fmt.Errorf("read node outcomes: %q has not %d values", text, len(to))
	}
	for i, f := range fields {
		if f == "-" {
			to[i] = math.Inf(1)
			continue
		}
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return fmt.Errorf("read node outcomes: %w", err)
		}
		to[i] = v
	}
	return nil
}

func indexOf(all []float64, v float64) int {
	for i := range all {
		if all[i] == v {
			return i
		}
	}
	return 0
}

func batchIndex(kernel, n int) int {
	if n == 0 {
		return 0
	}
	i := 0
	for i < len(batchCounts)-1 && n > batchCounts[i] {
		i++
	}
	return 1 + kernel*len(batchCounts) + i
}

// tables are the embedded ones. They are checked by a test, so that reading them cannot fail.
var tables = sync.OnceValues(func() (map[tableKey]*Outcomes, error) { return readTables(outcomesFile) })

// Table returns the tabulated outcomes.
func Table(how Sharing, cost float64) (*Outcomes, error) {
	switch how {
	case Exclusive:
		how, cost = TimeSlicing, 1 // a GPU with one tenant has no switches
	case TimeSlicing, MPS:
		cost = 1 // only XSched's costs vary
	}
	all, err := tables()
	if err != nil {
		return nil, err
	}
	o := all[tableKey{how, cost}]
	if o == nil {
		return nil, fmt.Errorf("no outcomes of %s at %g times the measured costs; use 0, 0.5, 1 or 1.5", how, cost)
	}
	return o, nil
}

// shapeFor returns the next longer tabulated shape.
func shapeFor(length time.Duration) (int, bool) {
	for i, s := range requestShapes {
		if length <= s.length() {
			return i, true
		}
	}
	return 0, false
}

func kernelFor(length time.Duration) (int, bool) {
	for i, k := range batchKernels {
		if length <= k {
			return i, true
		}
	}
	return 0, false
}

// at returns the grid points around a load and the weight of the second.
func at(grid []float64, load float64) (lo, hi int, part float64, ok bool) {
	for i := 1; i < len(grid); i++ {
		if load <= grid[i] {
			return i - 1, i, (load - grid[i-1]) / (grid[i] - grid[i-1]), true
		}
	}
	return 0, 0, 0, false
}

// lerp interpolates. The conversion keeps the compiler from fusing operations, so that all
// architectures give the same result.
func lerp(a, b, part float64) float64 {
	switch {
	case part == 0:
		return a
	case math.IsInf(a, 1) || math.IsInf(b, 1):
		return math.Inf(1)
	}
	return a + float64((b-a)*part)
}

// grow interpolates between positive values on a logarithmic scale, because waits grow faster than
// loads.
func grow(a, b, part float64) float64 {
	if a <= 0 || b <= 0 || part == 0 || math.IsInf(a, 1) || math.IsInf(b, 1) {
		return lerp(a, b, part)
	}
	return a * math.Exp(math.Log(b/a)*part)
}

// P99 returns the P99 in milliseconds of a service of a shape and load next to other services and
// batch jobs. Beyond the grid it is +Inf. Between loads it is interpolated.
func (o *Outcomes) P99(own int, load float64, other int, otherLoad float64, kernel, batch int) float64 {
	return o.between(own, load, other, otherLoad, kernel, batch, math.Inf(1), grow, func(l *line) *[6]float64 { return &l.p99 })
}

// Kept returns what all batch jobs of a GPU keep together, in GPUs.
func (o *Outcomes) Kept(own int, load float64, other int, otherLoad float64, kernel, batch int) float64 {
	if batch == 0 {
		return 0
	}
	return o.between(own, load, other, otherLoad, kernel, batch, 0, lerp, func(l *line) *[6]float64 { return &l.kept })
}

func (o *Outcomes) between(own int, load float64, other int, otherLoad float64, kernel, batch int, beyond float64, mid func(a, b, part float64) float64, values func(*line) *[6]float64) float64 {
	i, j, part, ok := at(ownLoads, load)
	a, b, otherPart, otherOK := at(otherLoads, otherLoad)
	if !ok || !otherOK || load+otherLoad >= saturated {
		return beyond
	}
	n := batchIndex(kernel, batch)
	low, high := other, max(other, 1) // the shortest next to a service count as the second shortest
	if a == 0 {
		low = 0 // without others, their shape is 0
	}
	x, y := values(&o.lines[own][low][a][n]), values(&o.lines[own][high][b][n])
	if otherPart == 0 {
		return mid(x[i], x[j], part)
	}
	return mid(mid(x[i], x[j], part), mid(y[i], y[j], part), otherPart)
}
