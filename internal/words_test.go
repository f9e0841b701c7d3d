// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// houseWords have a standard term each.
var houseWords = map[string]string{
	"beside": "next to, concurrently with", "fed": "launch-bound, submitted", "highs": "the latency-critical queues", "hush": "suppress notifications",
	"loosen": "release control", "lows": "the lower-priority queues", "lull": "idle gap", "outsider": "unmanaged program", "outsiders": "unmanaged programs",
	"told": "notified, asked", "wish": "request", "wished": "requested", "wishes": "requests",
}

// wordyPackages have house words. The list only gets shorter.
var wordyPackages = []string{
	"internal/amdlog", "internal/bench/demo", "internal/bench/modes", "internal/bench/pair", "internal/cli", "internal/control", "internal/engine",
	"internal/kube/gang", "internal/kube/gangs", "internal/kube/node", "internal/kube/nri", "internal/loop", "internal/policy", "internal/sim",
	"internal/wire", "test/chaos", "tools/pictures",
}

// TestHouseWords: identifiers and comments use the terms of the field.
func TestHouseWords(t *testing.T) {
	clean := map[string]bool{}
	for _, f := range sources(t) {
		pkg := path.Dir(f.path)
		if f.isGenerated() || f.isTest() || slices.Contains(wordyPackages, pkg) {
			continue
		}
		clean[pkg] = true
		check := func(text string) {
			for _, word := range wordsOf(text) {
				if better := houseWords[word]; better != "" {
					t.Errorf("%s: %q is a house word; write for example %s", f.path, word, better)
				}
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				check(name.Name)
			}
			return true
		})
		for _, group := range f.ast.Comments {
			check(group.Text())
		}
	}
	if len(clean) < 60 {
		t.Errorf("only %d packages are clean", len(clean))
	}
}

var word = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// wordsOf returns the words of a text or an identifier, in lower case.
func wordsOf(text string) []string {
	words := word.FindAllString(text, -1)
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}

func TestWordsOf(t *testing.T) {
	if got := strings.Join(wordsOf("SetTell(fedHigh), 2 lows"), " "); got != "set tell fed high lows" {
		t.Error(got)
	}
}
