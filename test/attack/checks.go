// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/test/proc"
)

// checkMetrics: the victims stay visible to monitoring.
func checkMetrics(w *world) (wrong []string) {
	text, err := ask(probeLimit, func(ctx context.Context) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.http+"/metrics", nil)
		if err != nil {
			return "", err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		all, err := io.ReadAll(answer.Body)
		return string(all), err
	})
	if err != nil {
		return []string{"/metrics fails: " + err.Error()}
	}
	for _, v := range []*victim{w.service, w.job, w.second} {
		if !strings.Contains(text, fmt.Sprintf("pid=%q", strconv.Itoa(v.pid()))) {
			wrong = append(wrong, "/metrics does not show the "+v.name)
		}
	}
	return wrong
}

// checkRefusalLog: an operator finds another user's refusals in the log.
func checkRefusalLog(w *world) []string {
	const tries = 10
	var pids []string
	for range tries {
		cmd := unitLimits{}.wrap(w.self(), otherUID, w.self(), "act", "refused", w.dir, w.platform.Name, w.http)
		cmd.Env = w.env("other")
		if err := proc.Start(cmd); err != nil {
			return []string{"start a refused program: " + err.Error()}
		}
		pids = append(pids, strconv.Itoa(cmd.Process.Pid))
		_ = cmd.Wait()
	}
	time.Sleep(200 * time.Millisecond)
	log, found := strings.Join(w.daemon.log.Lines(1<<20), "\n"), 0
	for _, pid := range pids {
		if strings.Contains(log, `"pid":`+pid+`,`) || strings.Contains(log, `"pid":`+pid+`}`) {
			found++
		}
	}
	if found < tries/2 {
		return []string{fmt.Sprintf("the log has %d of %d refusals of another user", found, tries)}
	}
	return nil
}

// checkHistory: a GPU that is used for the first time gets its timeline.
func checkHistory(w *world) []string {
	v := &victim{w: w, name: "late", uid: otherUID, home: "other", kernelUS: 500, load: "rate 100", device: gpus - 1}
	defer v.kill()
	if err := v.start(); err != nil {
		return []string{err.Error()}
	}
	spans := 0
	await(3*time.Second, func() bool {
		h, err := ask(time.Second, func(ctx context.Context) (control.History, error) {
			return w.client.History(ctx, control.HistoryRequest{})
		})
		if err != nil {
			return false
		}
		for _, d := range h.Devices {
			for _, s := range d.Spans {
				if s.PID == v.pid() {
					spans++
				}
			}
		}
		return spans > 0
	})
	if spans == 0 {
		return []string{"the history has no span of a program on a GPU that was not used before"}
	}
	return nil
}

// checkNames: what the command line prints has no control characters of a stranger.
func checkNames(w *world) (wrong []string) {
	for _, args := range [][]string{{"list"}, {"list", "--json"}, {"status"}, {"logs"}} {
		cmd := exec.Command(filepath.Join(w.folder, "xsched"), args...)
		cmd.Env = w.env("")
		text, err := cmd.CombinedOutput()
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("xsched %s: %v", strings.Join(args, " "), err))
		}
		for _, r := range string(text) {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				wrong = append(wrong, fmt.Sprintf("xsched %s prints the character %U", strings.Join(args, " "), r))
				break
			}
		}
	}
	return wrong
}
