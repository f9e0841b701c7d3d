// SPDX-License-Identifier: Apache-2.0

// Hintgen writes the hint definitions of model.Hint for the shim, the wire contract, the HTTP
// interface and Python. It also writes the shim's lists of policies and of upstream's
// variables without effect.
//
//	go run ./tools/hintgen [-root .]
package main

import (
	_ "embed" // forms.txt
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"xsched/internal/control/upstream"
	"xsched/internal/model"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	all, err := files()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hintgen:", err)
		os.Exit(1)
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(*root, name), []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "hintgen: write:", err)
			os.Exit(1)
		}
	}
}

// outputs maps each generated file to its template in forms.txt.
var outputs = map[string]string{
	"shim/core/hints_gen.h":                "core",
	"shim/include/xsched/wire_hints_gen.h": "wire",
	"shim/include/xsched/hints_gen.h":      "api",
	"internal/control/hints_gen.go":        "go",
	"python/xsched/hints_gen.py":           "python",
	"shim/api/variables_gen.h":             "variables",
}

//go:embed forms.txt
var forms string

// policyBit selects the policy in a HINT frame. A policy is not a hint, but shares the word.
const policyBit = 12

type bit struct {
	Name string
	Mask uint32
	API  bool
}

func files() (map[string]string, error) {
	fields := model.HintFields()
	var bits []bit
	for _, f := range fields {
		if f.Mask == 1<<policyBit {
			return nil, fmt.Errorf("hint %s: bit %d is taken by the policy", f.Name, policyBit)
		}
		if len(bits) == 0 || bits[len(bits)-1].Mask != f.Mask {
			bits = append(bits, bit{f.Bit, f.Mask, f.API})
		}
	}
	bits = append(bits, bit{"POLICY", 1 << policyBit, true})
	all := uint32(0)
	for _, b := range bits {
		all |= b.Mask
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"upper": strings.ToUpper, "camel": camel, "kind": func(f model.HintField) string { return kinds[f.Kind] },
		"lower": strings.ToLower, "named": func(f model.HintField) bool { return f.Kind == model.HintName },
		"literal": literal, "add": func(a, b int64) int64 { return a + b }, "gotype": goType, "pytype": pyType,
	}).Parse(forms)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, form := range outputs {
		var b strings.Builder
		err := t.ExecuteTemplate(&b, form, map[string]any{"Fields": fields, "Bits": bits, "All": all, "Kinds": kinds, "Variables": upstream.Variables(), "Policies": slices.Concat(upstream.Policies(), upstream.OwnPolicies())})
		if err != nil {
			return nil, err
		}
		out[name] = b.String()
		if strings.HasSuffix(name, ".go") {
			code, err := format.Source([]byte(out[name]))
			if err != nil {
				return nil, err
			}
			out[name] = string(code)
		}
	}
	return out, nil
}

var kinds = []string{
	model.HintNumber: "NUMBER", model.HintTime: "TIME", model.HintPercentile: "PERCENTILE",
	model.HintSwitch: "SWITCH", model.HintLevel: "LEVEL", model.HintName: "NAME", model.HintBytes: "BYTES",
}

// camel converts slo_percentile to SLOPercentile; SLO stays.
func camel(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(strings.ToLower(name), "_") {
		if word == "slo" || word == "us" {
			b.WriteString(strings.ToUpper(word))
		} else {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

func literal(n int64) string {
	if n < 0 {
		return fmt.Sprintf("(%d)", n)
	}
	return fmt.Sprint(n)
}

// goType returns the field's type in the HTTP interface.
func goType(f model.HintField) string {
	switch {
	case f.Kind == model.HintName:
		return "string"
	case f.Kind == model.HintSwitch:
		return "bool"
	case f.Kind == model.HintPercentile:
		return "float64"
	case f.Kind == model.HintTime, f.Kind == model.HintBytes:
		return "int64"
	case f.Priority:
		return "int32"
	}
	return "int"
}

func pyType(f model.HintField) string {
	switch f.Kind {
	case model.HintName:
		return "str"
	case model.HintSwitch:
		return "bool"
	case model.HintPercentile:
		return "float"
	}
	return "int"
}
