// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"xsched/internal/model"
	"xsched/internal/strict"
)

// Hint is a model.Hint in the form of a scenario: the names of the table without their unit, durations
// such as 20ms, `slo: {p: 99, latency: 20ms}` and, because no process exists, `nice`.
type Hint model.Hint

func (h *Hint) model() model.Hint { return model.Hint(*h) }

// scenarioName returns the name of a hint in a scenario.
func scenarioName(f *model.HintField) string { return strings.TrimSuffix(f.Name, "_us") }

// UnmarshalYAML reads the hints of a tenant.
func (h *Hint) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return &Error{Line: node.Line, Cause: "hint is not a mapping", Remedy: "write `hint: {priority: 10}`"}
	}
	fields := model.HintFields()
	var change model.HintChange
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Value == "nice" {
			if err := value.Decode(&h.Nice); err != nil {
				return &Error{Line: value.Line, Cause: fmt.Sprintf("nice %q is not a number", value.Value)}
			}
			continue
		}
		if key.Value == "slo" && value.Kind == yaml.MappingNode {
			if err := setSLO(&change, value); err != nil {
				return err
			}
			continue
		}
		at := slices.IndexFunc(fields, func(f model.HintField) bool { return scenarioName(&f) == key.Value })
		if at < 0 {
			return strict.UnknownField(key, append(hintNames(fields), "nice"))
		}
		if err := setHint(&change, &fields[at], value); err != nil {
			return err
		}
	}
	change.Apply((*model.Hint)(h))
	return nil
}

func hintNames(fields []model.HintField) []string {
	var names []string
	for i := range fields {
		if fields[i].Name != "slo_percentile" {
			names = append(names, scenarioName(&fields[i]))
		}
	}
	return names
}

func setHint(c *model.HintChange, f *model.HintField, node *yaml.Node) error {
	if node.Kind != yaml.ScalarNode {
		return &Error{Line: node.Line, Cause: scenarioName(f) + " is not a plain value", Remedy: "use " + f.Range()}
	}
	value, err := f.Parse(node.Value)
	if err != nil {
		return &Error{Line: node.Line, Cause: err.Error()}
	}
	c.Set(f.Name, value)
	return nil
}

// setSLO reads the mapping form of a latency target.
func setSLO(c *model.HintChange, node *yaml.Node) error {
	names := map[string]string{"p": "slo_percentile", "latency": "slo_us"}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, ok := names[node.Content[i].Value]
		if !ok {
			return strict.UnknownField(node.Content[i], []string{"p", "latency"})
		}
		if err := setHint(c, model.FieldOf(name), node.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}
