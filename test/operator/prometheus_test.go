// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// monitoringTool returns a program of Debian's package prometheus.
func monitoringTool(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, ".setup/prometheus", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if path, err = exec.LookPath(name); err != nil {
		t.Skipf("no %s: run `make setup`", name)
	}
	return path
}

// TestLongAlertRules: the rules load, and their unit tests pass.
func TestLongAlertRules(t *testing.T) {
	tool := monitoringTool(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "xsched-alerts.yml"},
		{"test", "rules", "xsched-alerts.test.yml"},
		{"check", "rules", "xsched-fleet.yml"},
		{"test", "rules", "xsched-fleet.test.yml"},
	} {
		cmd := exec.Command(tool, args...)
		cmd.Dir = filepath.Join(root, "deploy/prometheus")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, text)
		}
	}
}

// prometheus is a running server that scrapes a daemon every second.
type prometheus struct {
	t    *testing.T
	http string
}

// newPrometheus starts a server with the project's configuration and rules, in which minutes are seconds.
func newPrometheus(t *testing.T, target, token string) *prometheus {
	t.Helper()
	program := monitoringTool(t, "prometheus")
	dir := t.TempDir()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, "deploy/prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := strings.NewReplacer("scrape_interval: 15s", "scrape_interval: 1s", "/etc/prometheus/xsched.token", token, "127.0.0.1:50000", target).Replace(read("prometheus.yml"))
	rules := regexp.MustCompile(`\[\d+[mh]\]`).ReplaceAllString(read("xsched-alerts.yml"), "[8s]")
	rules = regexp.MustCompile(`for: \d+m`).ReplaceAllString(rules, "for: 2s")
	write("xsched-alerts.yml", rules)
	p := &prometheus{t: t, http: freePort(t)}
	cmd := exec.Command(program, "--config.file="+write("prometheus.yml", "global: {evaluation_interval: 1s}\n"+config),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.http, "--log.level=warn")
	log := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = log, log
	start(t, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of prometheus:\n%s", log)
		}
	})
	eventually(t, "prometheus is ready", func() bool {
		reply, err := http.Get("http://" + p.http + "/-/ready")
		if err != nil {
			return false
		}
		_ = reply.Body.Close()
		return reply.StatusCode == http.StatusOK
	})
	return p
}

// freePort returns an address that nobody uses now.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// ask queries the server's interface.
func (p *prometheus) ask(path string, into any) error {
	reply, err := http.Get("http://" + p.http + "/api/v1/" + path)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", reply.Status, text)
	}
	return json.Unmarshal(text, &struct{ Data any }{into})
}

// query returns the number of series that an expression has now.
func (p *prometheus) query(expr string) (int, error) {
	var reply struct{ Result []any }
	err := p.ask("query?query="+url.QueryEscape(expr), &reply)
	return len(reply.Result), err
}

// alert returns the state of an alert for a program; empty: inactive. pid 0: any.
func (p *prometheus) alert(name string, pid int) string {
	var reply struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	if err := p.ask("alerts", &reply); err != nil {
		return err.Error()
	}
	for _, a := range reply.Alerts {
		if a.Labels["alertname"] == name && (pid == 0 || a.Labels["pid"] == strconv.Itoa(pid)) {
			return a.State
		}
	}
	return ""
}

func (p *prometheus) awaitAlert(name string, pid int, state string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("alert %s for pid %d is %q", name, pid, state), func() bool { return p.alert(name, pid) == state })
}

// TestLongPrometheus: Debian's Prometheus scrapes a daemon. Alerts fire when a program starves, when one misses
// its latency target and when the daemon is gone, and resolve.
func TestLongPrometheus(t *testing.T) {
	monitoringTool(t, "prometheus")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-the-operator-test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, "--http-token-file", token, "--devices", "1")
	p := newPrometheus(t, d.http, token)
	eventually(t, "a scrape succeeds", func() bool { n, _ := p.query(`up{job="xsched"} == 1 and xs_up == 1`); return n == 1 })

	program := product(t, "build/virtual/tenant")
	low := d.tenant(program, 2000, "--priority", "-10")
	high := d.tenant(program, 3000, "--slo", "1ms")
	low.tell(t, "loop")
	eventually(t, "a name in the metrics", func() bool { n, _ := p.query(`xs_tenant_state{tenant="tenant"}`); return n == 2 })
	high.tell(t, "loop")
	p.awaitAlert("XSchedTenantStarves", low.pid(), "firing")
	p.awaitAlert("XSchedSLOMissed", high.pid(), "firing")
	if state := p.alert("XSchedTenantStarves", high.pid()); state != "" {
		t.Errorf("the program that runs starves: %s", state)
	}
	checkScrape(t, d, token)
	checkDashboard(t, p)

	high.tell(t, "pause")
	p.awaitAlert("XSchedTenantStarves", low.pid(), "")
	p.awaitAlert("XSchedSLOMissed", high.pid(), "")
	d.kill()
	p.awaitAlert("XSchedDown", 0, "firing")
	d.start("--http-token-file", token, "--devices", "1")
	p.awaitAlert("XSchedDown", 0, "")
}

// checkScrape lets promtool read the text format.
func checkScrape(t *testing.T, d *daemon, token string) {
	t.Helper()
	secret, err := os.ReadFile(token)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.http+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(secret)))
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	cmd := exec.Command(monitoringTool(t, "promtool"), "check", "metrics")
	cmd.Stdin = reply.Body
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, text)
	}
}

// checkDashboard asks the queries of the dashboard. Those of what the test has must give a result.
func checkDashboard(t *testing.T, p *prometheus) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/grafana/xsched.json"))
	if err != nil {
		t.Fatal(err)
	}
	queries := regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllStringSubmatch(string(text), -1)
	if len(queries) < 10 {
		t.Errorf("%d queries", len(queries))
	}
	empty := 0
	for _, q := range queries {
		var expr string
		if err := json.Unmarshal([]byte(q[1]), &expr); err != nil {
			t.Fatal(err)
		}
		expr = strings.NewReplacer("$instance", ".*", "$__rate_interval", "8s").Replace(expr)
		n, err := p.query(expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
		}
		if n == 0 {
			t.Logf("no result: %s", expr)
			empty++
		}
	}
	if empty > len(queries)/4 {
		t.Errorf("%d of %d queries have no result", empty, len(queries))
	}
}
