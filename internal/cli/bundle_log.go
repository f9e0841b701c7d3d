// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of the daemon's log in a support bundle.
const (
	bundleLines = 2000
	bundleBytes = 512 << 10
	bundleWait  = 10 * time.Second // for journalctl
)

// serviceLog returns the last lines that the service wrote to its log, at most bundleBytes of them. The
// daemon writes to standard error; only systemd keeps that.
func serviceLog(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bundleWait)
	defer cancel()
	units := []string{"--unit", "xsched.service", "--unit", "xsched-guardian.service"}
	cmd := exec.CommandContext(ctx, "journalctl", append(units, "--output", "cat", "--no-pager", "--quiet", "--lines", strconv.Itoa(bundleLines))...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("systemd keeps no log of the service here (%w); add what the daemon wrote to standard error", err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the service has no log, or only root may read it; repeat with sudo")
	}
	if len(out) > bundleBytes {
		out = out[len(out)-bundleBytes:]
		_, out, _ = bytes.Cut(out, []byte("\n")) // the first line is not whole
	}
	return out, nil
}

// publicKeys are the attributes of log lines that say nothing about users: numbers, settings, devices.
var publicKeys = []string{
	"time", "level", "msg", "pid", "pids", "device", "gpu", "driver", "version", "policy", "mode", "quantum_us", "queue", "slice",
	"scheduling", "outcome", "took", "waited", "lines", "bytes", "records", "dropped", "keys", "key", "supervisor", "guardian", "message",
}

// causeKeys are attributes with a cause, of which only names are hidden: paths, and quoted text.
var causeKeys = []string{"err", "reason", "evidence", "how"}

const hidden = "(hidden)"

var (
	attribute = regexp.MustCompile(`([A-Za-z_][\w.]*)=("(?:[^"\\]|\\.)*"|\S*)`)
	quoted    = regexp.MustCompile(`/[^\s"':;,]*|\\?"[^"]*"`)
)

// log hides what a log line may say about users. A line that is not one of the daemon is left out.
func (r *redactor) log(text []byte) []byte {
	var out bytes.Buffer
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		var fields map[string]any
		switch {
		case strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &fields) == nil:
			for _, key := range slices.Sorted(maps.Keys(fields)) {
				fields[key] = shownValue(key, fields[key])
			}
			b, _ := json.Marshal(fields) // was JSON
			out.Write(append(b, '\n'))
		case strings.HasPrefix(line, "time="):
			out.WriteString(attribute.ReplaceAllStringFunc(line, func(pair string) string {
				key, value, _ := strings.Cut(pair, "=")
				return key + "=" + fmt.Sprint(shownValue(key, value))
			}) + "\n")
		default:
			out.WriteString(hidden + "\n")
		}
	}
	return out.Bytes()
}

// shownValue returns the value of an attribute as a redacted bundle shows it.
func shownValue(key string, value any) any {
	switch text, isText := value.(string); {
	case slices.Contains(publicKeys, key):
		return value
	case slices.Contains(causeKeys, key) && isText:
		inner := strings.TrimSuffix(strings.TrimPrefix(text, `"`), `"`)
		return strings.Replace(text, inner, quoted.ReplaceAllLiteralString(inner, hidden), 1)
	}
	return hidden
}
