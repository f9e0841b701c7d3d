// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// exported returns the names of all metrics and series of a scrape.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	text := scrape(t, newWorld())
	for _, m := range regexp.MustCompile(`(?m)^(?:# TYPE )?(xs_\w+)`).FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	return out
}

// TestDeployedMetrics: the dashboard, the alert rules and the documentation use only metrics that exist, and
// the dashboard filters by the machine.
func TestDeployedMetrics(t *testing.T) {
	known := exported(t)
	for _, name := range []string{
		"../../deploy/grafana/xsched.json", "../../deploy/prometheus/xsched-alerts.yml", "../../deploy/prometheus/xsched-alerts.test.yml",
		"../../deploy/prometheus/xsched-fleet.yml", "../../deploy/prometheus/xsched-fleet.test.yml", "../../docs/monitoring.md",
	} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`\bxs_\w+`).FindAllString(string(text), -1)
		if len(found) < 10 {
			t.Errorf("%s uses %d metrics", name, len(found))
		}
		for _, metric := range found {
			if !known[metric] {
				t.Errorf("%s: there is no %s in /metrics", name, metric)
			}
		}
	}
	for _, expr := range dashboardQueries(t, "xsched.json") {
		if strings.Count(expr, "xs_") != strings.Count(expr, `instance=~"$instance"`) {
			t.Errorf("not by instance: %s", expr)
		}
	}
}

// TestFleetBoard: the board of the fleet uses only recorded series, by node, class or namespace.
func TestFleetBoard(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/prometheus/xsched-fleet.yml")
	if err != nil {
		t.Fatal(err)
	}
	recorded, used := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(string(rules), -1) {
		recorded[m[1]] = true
	}
	for _, expr := range dashboardQueries(t, "xsched-fleet.json") {
		found := regexp.MustCompile(`\bxs(?:ched:[\w:]+|_\w+)`).FindAllString(expr, -1)
		for _, name := range found {
			if used[name] = true; !recorded[name] && name != "xs_up" {
				t.Errorf("%s is not recorded", name)
			}
		}
		if len(found) == 0 || strings.Count(expr, "=~\"$") < len(found) {
			t.Errorf("no series, or not by a variable: %s", expr)
		}
	}
	if len(used) < 12 {
		t.Errorf("the board uses %d series", len(used))
	}
}

// dashboardQueries returns the expressions of a dashboard's panels.
func dashboardQueries(t *testing.T, name string) (out []string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d: a duplicate, too wide or without a query", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			out = append(out, target.Expr)
		}
	}
	if board.UID == "" || len(out) < 10 {
		t.Errorf("uid %q, %d queries", board.UID, len(out))
	}
	return out
}
