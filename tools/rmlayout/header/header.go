// SPDX-License-Identifier: Apache-2.0

// Package header computes C struct layouts from header text without a compiler, so any checkout
// works on any host. The supported subset is integers, 64-bit pointers, constant arrays, nested
// structs and alignment attributes.
package header

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Field is a member of a struct.
type Field struct {
	Name         string
	Offset, Size int
}

// Struct is the layout of one struct on a 64-bit machine.
type Struct struct {
	Name        string
	Size, Align int
	Fields      []Field
}

// Field finds a member by its name.
func (s Struct) Field(name string) (Field, bool) {
	i := slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return Field{}, false
	}
	return s.Fields[i], true
}

// basic holds the sizes of the driver's own types and those of stdint.h.
var basic = map[string]int{
	"NvU8": 1, "NvS8": 1, "NvBool": 1, "NvV8": 1, "NvU16": 2, "NvU32": 4, "NvS32": 4, "NvV32": 4, "NvHandle": 4,
	"NvU64": 8, "NvS64": 8, "NvP64": 8, "uint8_t": 1, "bool": 1, "uint16_t": 2, "uint32_t": 4, "int32_t": 4, "uint64_t": 8,
}

// File is the text of one or more headers.
type File struct {
	text    string
	defines map[string]string
}

var (
	reComment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	reDefine  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.+?)[ \t]*$`)
	reAligned = regexp.MustCompile(`NV_DECLARE_ALIGNED\(([^,]+),\s*(\d+)\)`)
	reAlign   = regexp.MustCompile(`NV_ALIGN_BYTES\((\d+)\)`)
	reMember  = regexp.MustCompile(`^(?:struct\s+)?(\w+)\s+(.+)$`)
	reArray   = regexp.MustCompile(`^(\w+)\s*\[\s*(\w+)\s*\]$`)
)

// Parse reads headers; unsupported syntax is an error only on lookup.
func Parse(texts ...string) *File {
	f := &File{text: reComment.ReplaceAllString(strings.Join(texts, "\n"), " "), defines: map[string]string{}}
	for _, m := range reDefine.FindAllStringSubmatch(f.text, -1) {
		f.defines[m[1]] = m[2]
	}
	return f
}

// Names lists the constants that begin with a prefix.
func (f *File) Names(prefix string) []string {
	all := slices.Sorted(maps.Keys(f.defines))
	return slices.DeleteFunc(all, func(n string) bool { return !strings.HasPrefix(n, prefix) })
}

// Number evaluates a constant: a number or another constant.
func (f *File) Number(name string) (uint64, error) {
	for range 8 {
		value, ok := f.defines[name]
		if !ok {
			value = name
		}
		value = strings.TrimRight(strings.Trim(value, "()"), "uUlL")
		if n, err := strconv.ParseUint(value, 0, 64); err == nil {
			return n, nil
		}
		if !ok {
			break
		}
		name = value
	}
	return 0, fmt.Errorf("%s is not a number", name)
}

// body returns the text between a struct's braces, by typedef or tag.
func (f *File) body(name string) (string, error) {
	for _, form := range []string{
		`typedef\s+struct(?:\s+\w+)?\s*\{([^{}]*)\}\s*` + name + `\s*;`,
		`struct\s+` + name + `\s*\{([^{}]*)\}`,
	} {
		if m := regexp.MustCompile(form).FindStringSubmatch(f.text); m != nil {
			return m[1], nil
		}
	}
	return "", fmt.Errorf("no struct %s", name)
}

// Struct computes the layout of a struct.
func (f *File) Struct(name string) (Struct, error) {
	body, err := f.body(name)
	if err != nil {
		if m := regexp.MustCompile(`typedef\s+(\w+)\s+` + name + `\s*;`).FindStringSubmatch(f.text); m != nil {
			s, err := f.Struct(m[1])
			s.Name = name
			return s, err
		}
		return Struct{}, err
	}
	s := Struct{Name: name, Align: 1}
	for declaration := range strings.SplitSeq(body, ";") {
		if declaration = strings.TrimSpace(declaration); declaration == "" {
			continue
		}
		if err := f.member(&s, declaration); err != nil {
			return s, fmt.Errorf("struct %s: %q: %w", name, declaration, err)
		}
	}
	s.Size = roundUp(s.Size, s.Align)
	return s, nil
}

// member adds the fields of one declaration.
func (f *File) member(s *Struct, declaration string) error {
	align := 0
	if m := reAligned.FindStringSubmatch(declaration); m != nil {
		declaration, align = m[1], atoi(m[2])
	}
	if m := reAlign.FindStringSubmatch(declaration); m != nil {
		declaration, align = strings.TrimSpace(reAlign.ReplaceAllString(declaration, "")), atoi(m[1])
	}
	m := reMember.FindStringSubmatch(strings.Join(strings.Fields(declaration), " "))
	if m == nil {
		return fmt.Errorf("not understood")
	}
	size, natural, err := f.sizeOf(m[1])
	if err != nil {
		return err
	}
	align = max(align, natural)
	for name := range strings.SplitSeq(m[2], ",") {
		name, count := strings.TrimSpace(name), 1
		if a := reArray.FindStringSubmatch(name); a != nil {
			n, err := f.Number(a[2])
			if err != nil {
				return err
			}
			name, count = a[1], int(n)
		}
		offset := roundUp(s.Size, align)
		s.Fields = append(s.Fields, Field{name, offset, count * size})
		s.Size, s.Align = offset+count*size, max(s.Align, align)
	}
	return nil
}

func (f *File) sizeOf(typ string) (size, align int, err error) {
	if n := basic[typ]; n > 0 {
		return n, n, nil
	}
	s, err := f.Struct(typ)
	return s.Size, s.Align, err
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
