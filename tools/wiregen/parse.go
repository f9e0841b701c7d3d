// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

type header struct {
	base    *header // its constants and structs are usable; nil: none
	defines []define
	enums   []enum
	structs []structure
}

type define struct {
	name  string // without XSW_
	value int64
	hex   bool
}

type enum struct {
	name    string // without xsw_
	members []define
}

type structure struct {
	name   string
	fields []field
	bytes  int
	align  int
}

type field struct {
	name    string
	ctype   string // uint32_t, ... or a structure's name
	nested  bool
	foreign bool // nested and declared in the base
	count   int  // 0: not an array
	offset  int
	bytes   int // of the whole field
}

var scalars = map[string]int{"uint32_t": 4, "int32_t": 4, "uint64_t": 8, "int64_t": 8, "char": 1}

var (
	reComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	reDefine  = regexp.MustCompile(`^#define\s+XSW_(\w+)\s+\(?(-?(?:0x[0-9a-fA-F]+|[0-9]+))\)?$`)
	reGuard   = regexp.MustCompile(`^#define XSCHED_\w+_H$`)
	reAssert  = regexp.MustCompile(`^_Static_assert\(.*\);$`)
	reOpen    = regexp.MustCompile(`^(enum|struct)\s+xsw_(\w+)\s*\{$`)
	reMember  = regexp.MustCompile(`^XSW_(\w+)\s*=\s*(-?[0-9]+),$`)
	reField   = regexp.MustCompile(`^(?:(uint32_t|int32_t|uint64_t|int64_t|char)|struct\s+xsw_(\w+))\s+(\w+)(?:\[(\w+)\])?;$`)
)

// parse parses a header that may use base's declarations.
func parse(src string, base *header) (*header, error) {
	// Comments keep their line breaks, so that errors name the right line.
	src = reComment.ReplaceAllStringFunc(src, func(c string) string {
		return strings.Repeat("\n", strings.Count(c, "\n"))
	})
	h := &header{base: base}
	var en *enum
	var st *structure
	for i, line := range strings.Split(src, "\n") {
		line = strings.TrimSpace(line)
		bad := func(why string) error { return fmt.Errorf("line %d: %s: %q", i+1, why, line) }
		switch {
		case line == "":
		case line == "};" && en != nil:
			h.enums = append(h.enums, *en)
			en = nil
		case line == "};" && st != nil:
			if st.bytes%st.align != 0 {
				return nil, bad("implicit padding at the end of struct " + st.name)
			}
			h.structs = append(h.structs, *st)
			st = nil
		case en != nil:
			m := reMember.FindStringSubmatch(line)
			if m == nil {
				return nil, bad("not an enum member")
			}
			v, err := strconv.ParseInt(m[2], 0, 64)
			if err != nil {
				return nil, bad(err.Error())
			}
			en.members = append(en.members, define{name: m[1], value: v})
		case st != nil:
			if err := h.addField(st, line); err != nil {
				return nil, bad(err.Error())
			}
		case reDefine.MatchString(line):
			m := reDefine.FindStringSubmatch(line)
			v, err := strconv.ParseInt(m[2], 0, 64)
			if err != nil {
				return nil, bad(err.Error())
			}
			h.defines = append(h.defines, define{m[1], v, strings.HasPrefix(m[2], "0x")})
		case reOpen.MatchString(line):
			m := reOpen.FindStringSubmatch(line)
			if m[1] == "enum" {
				en = &enum{name: m[2]}
			} else {
				st = &structure{name: m[2], align: 1}
			}
		case strings.HasPrefix(line, "#include"), strings.HasPrefix(line, "#ifndef"),
			strings.HasPrefix(line, "#endif"), reGuard.MatchString(line), reAssert.MatchString(line):
		default:
			return nil, bad("not understood")
		}
	}
	if en != nil || st != nil {
		return nil, fmt.Errorf("unclosed block at the end")
	}
	return h, nil
}

func (h *header) addField(st *structure, line string) error {
	m := reField.FindStringSubmatch(line)
	if m == nil {
		return fmt.Errorf("not a field")
	}
	f := field{ctype: m[1], name: m[3], offset: st.bytes}
	size, align := scalars[m[1]], scalars[m[1]]
	if m[2] != "" {
		in := h.structure(m[2])
		if in == nil {
			return fmt.Errorf("struct %s is not declared before", m[2])
		}
		f.ctype, f.nested, size, align = m[2], true, in.bytes, in.align
		f.foreign = !h.own(m[2])
	}
	f.bytes = size
	if m[4] != "" {
		n, err := h.length(m[4])
		if err != nil {
			return err
		}
		f.count, f.bytes = n, size*n
	}
	if f.offset%align != 0 {
		return fmt.Errorf("implicit padding before %s", f.name)
	}
	st.fields = append(st.fields, f)
	st.bytes += f.bytes
	st.align = max(st.align, align)
	return nil
}

func (h *header) length(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil && n > 0 {
		return n, nil
	}
	for _, d := range h.defines {
		if "XSW_"+d.name == s && d.value > 0 {
			return int(d.value), nil
		}
	}
	if h.base != nil {
		return h.base.length(s)
	}
	return 0, fmt.Errorf("array length %s is not known", s)
}

func (h *header) structure(name string) *structure {
	for i := range h.structs {
		if h.structs[i].name == name {
			return &h.structs[i]
		}
	}
	if h.base != nil {
		return h.base.structure(name)
	}
	return nil
}

// own reports whether a struct is declared here, not in the base.
func (h *header) own(name string) bool {
	for i := range h.structs {
		if h.structs[i].name == name {
			return true
		}
	}
	return false
}
