// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const templates = "../../../deploy/helm/xsched/templates/"

// TestViewersOnlyView: the chart's roles for viewers permit what the view needs. Whoever may run a program in
// a pod of the chart is root on its node. Only the role that says so permits that.
func TestViewersOnlyView(t *testing.T) {
	text, err := os.ReadFile(templates + "viewer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^\{\{.*\}\}$|\{\{.*?\}\}`).ReplaceAll(text, nil)
	var have []string
	for in := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    []struct{ Resources, Verbs []string }
		}
		if err := in.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range object.Rules {
			have = append(have, object.Kind+" "+object.Metadata.Name+": "+strings.Join(rule.Verbs, ", ")+" "+strings.Join(rule.Resources, ", "))
		}
	}
	want := []string{
		"ClusterRole xsched-nodeviews: get nodeviews",
		"Role xsched-viewer: get, list pods",
		"Role xsched-viewer: get, create pods/portforward",
		"Role xsched-viewer: create serviceaccounts/token",
		"ClusterRole xsched-viewer: list pods",
		"ClusterRole xsched-reviews: create tokenreviews",
		"ClusterRole xsched-reviews: create subjectaccessreviews",
	}
	if !slices.Equal(have, want) {
		t.Errorf("viewers may\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	all, err := filepath.Glob(templates + "*.yaml")
	if err != nil || len(all) < 10 {
		t.Fatalf("%d templates, %v", len(all), err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if found := regexp.MustCompile(`pods/(exec|attach|ephemeralcontainers)`).Find(text); found != nil && filepath.Base(path) != "node-root.yaml" {
			t.Errorf("%s permits %s", filepath.Base(path), found)
		}
	}
}
