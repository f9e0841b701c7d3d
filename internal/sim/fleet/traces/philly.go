// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// phillyJob is a job of the Philly trace.
type phillyJob struct {
	ID        string          `json:"jobid"`
	Submitted string          `json:"submitted_time"`
	Attempts  []phillyAttempt `json:"attempts"`
}

type phillyAttempt struct {
	Start  string `json:"start_time"`
	End    string `json:"end_time"`
	Detail []struct {
		GPUs []string `json:"gpus"`
	} `json:"detail"`
}

// readPhilly reads cluster_job_log: one list of jobs. A job's run time is that of all of its attempts, and its
// GPUs are those of the last one.
func readPhilly(r io.Reader, each func(record, string)) error {
	in := json.NewDecoder(r)
	if open, err := in.Token(); err != nil || open != json.Delim('[') {
		return errors.Join(errors.New("the file is no list of jobs; use cluster_job_log"), err)
	}
	for n := 1; in.More(); n++ {
		if n > maxRows {
			return nil
		}
		var job phillyJob
		if err := in.Decode(&job); err != nil {
			return fmt.Errorf("job %d: %w", n, err)
		}
		each(job.record())
	}
	return nil
}

func (j *phillyJob) record() (record, string) {
	one := record{name: j.ID, part: 1}
	submitted, ok := clockTime(j.Submitted)
	var ran time.Duration
	for i := range j.Attempts {
		a := &j.Attempts[i]
		start, started := clockTime(a.Start)
		end, ended := clockTime(a.End)
		if !started || !ended { // a mistake in the log, or the job still ran
			continue
		}
		if ran == 0 {
			one.start = start
		}
		ran += end - start
		one.gpus = 0
		for _, machine := range a.Detail {
			one.gpus += len(machine.GPUs)
		}
	}
	one.submit, one.end = submitted, one.start+ran
	return one, unless(ok && ran > 0)
}
