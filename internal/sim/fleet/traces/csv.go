// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// line is a line of a CSV file, by the names of its columns.
type line struct {
	columns map[string]int
	width   int // of a line that holds all of them
	row     []string
	err     error // the first
}

func (l *line) text(name string) string { return strings.TrimSpace(l.row[l.columns[name]]) }

// number reads a column; an empty one is not there.
func (l *line) number(name string) (v float64, there bool) {
	text := l.text(name)
	if text == "" || text == "nan" || text == "None" {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	if (err != nil || v < 0 || v > 1e12) && l.err == nil {
		l.err = fmt.Errorf("%s %q is not a number in 0..1e12", name, text)
	}
	return v, err == nil
}

func (l *line) seconds(name string) (time.Duration, bool) {
	v, there := l.number(name)
	return time.Duration(min(v, 1e9) * float64(time.Second)), there
}

// clockTime reads a time of the day and date, as seconds since 2000.
func clockTime(text string) (time.Duration, bool) {
	t, err := time.Parse(time.DateTime, text)
	if err != nil {
		return 0, false
	}
	return t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), true
}

// readCSV calls each for every line. Without a heading the columns are those that are wanted, in this order:
// Alibaba publishes some tables and their headings as separate files.
func readCSV(r io.Reader, headless bool, wanted []string, each func(*line)) error {
	in := csv.NewReader(r)
	in.ReuseRecord = true
	in.FieldsPerRecord = -1
	l := &line{columns: map[string]int{}}
	for n := 1; ; n++ {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			if n == 1 {
				return errors.New("the file is empty")
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("read CSV: %w", err)
		}
		if n == 1 {
			heading := row[0] == wanted[0] || slices.Contains(row, wanted[0])
			if !heading && !headless {
				return fmt.Errorf("line 1 has no column %s; use the published file with its heading", wanted[0])
			}
			if err := l.name(row, wanted, heading); err != nil {
				return err
			}
			if heading {
				continue
			}
		}
		if l.row = row; len(row) < l.width {
			return fmt.Errorf("line %d has %d of %d columns", n, len(row), l.width)
		}
		if each(l); l.err != nil {
			return fmt.Errorf("line %d: %w", n, l.err)
		}
		if n > maxRows {
			return nil
		}
	}
}

// name finds the wanted columns. Every line must reach the last of them.
func (l *line) name(row, wanted []string, heading bool) error {
	for i, column := range wanted {
		if heading {
			if i = slices.Index(row, column); i < 0 {
				return fmt.Errorf("line 1 has no column %s", column)
			}
		}
		l.columns[column] = i
		l.width = max(l.width, i+1)
	}
	return nil
}

// unless returns why a line is left out.
func unless(ran bool) string {
	if ran {
		return ""
	}
	return "never ran"
}

// readAlibaba2023 reads the pods of cluster-trace-gpu-v2023. Latency-sensitive pods are services.
func readAlibaba2023(r io.Reader, each func(record, string)) error {
	columns := []string{"name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time", "scheduled_time"}
	return readCSV(r, false, columns, func(l *line) {
		gpus, _ := l.number("num_gpu")
		milli, _ := l.number("gpu_milli")
		one := record{name: strings.Clone(l.text("name")), service: l.text("qos") == "LS", gpus: int(min(gpus, 4096)), part: min(milli/1000, 1)}
		if spec := l.text("gpu_spec"); spec != "nan" {
			one.models = strings.Clone(spec)
		}
		var scheduled bool
		one.submit, _ = l.seconds("creation_time")
		one.end, _ = l.seconds("deletion_time")
		one.start, scheduled = l.seconds("scheduled_time")
		each(one, unless(scheduled))
	})
}

// readAlibaba2020 reads the tasks of cluster-trace-gpu-v2020. Each is a job; its instances are a gang.
func readAlibaba2020(r io.Reader, each func(record, string)) error {
	columns := []string{"job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type"}
	return readCSV(r, true, columns, func(l *line) {
		instances, _ := l.number("inst_num")
		percent, _ := l.number("plan_gpu")
		one := record{name: strings.Clone(l.text("job_name")) + "/" + l.text("task_name"), part: min(percent/100, 1)}
		one.gpus = int(min(max(instances, 1)*max(percent/100, 1), 4096))
		if percent == 0 {
			one.gpus = 0
		}
		if kind := l.text("gpu_type"); kind != "MISC" { // several old models
			one.models = strings.Clone(kind)
		}
		var started, ended bool
		one.start, started = l.seconds("start_time")
		one.end, ended = l.seconds("end_time")
		one.submit = one.start
		each(one, unless(started && ended))
	})
}

// readHelios reads the jobs of a cluster of HeliosData.
func readHelios(r io.Reader, each func(record, string)) error {
	columns := []string{"job_id", "gpu_num", "state", "submit_time", "start_time", "end_time"}
	return readCSV(r, false, columns, func(l *line) {
		gpus, _ := l.number("gpu_num")
		one := record{name: strings.Clone(l.text("job_id")), gpus: int(min(gpus, 4096)), part: 1}
		var submitted, started, ended bool
		one.submit, submitted = clockTime(l.text("submit_time"))
		one.start, started = clockTime(l.text("start_time"))
		one.end, ended = clockTime(l.text("end_time"))
		each(one, unless(submitted && started && ended))
	})
}
