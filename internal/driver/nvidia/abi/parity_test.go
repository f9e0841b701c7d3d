// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"xsched/tools/rmlayout/header"
)

// interfaceData is the content of one data file: a branch whose tags all agree.
type interfaceData struct {
	tags      []string
	constants map[string]uint64
	controls  map[string]control
	structs   map[string]map[string]header.Field // by name; field "" holds the size
}

type control struct {
	number uint64
	params string
	open   bool // to unprivileged callers
}

// branches reads all data files.
func branches(t *testing.T) map[string]interfaceData {
	t.Helper()
	files, err := filepath.Glob("testdata/R*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no data files", err)
	}
	out := map[string]interfaceData{}
	for _, name := range files {
		out[strings.TrimSuffix(filepath.Base(name), ".txt")] = read(t, name)
	}
	return out
}

func read(t *testing.T, name string) interfaceData {
	t.Helper()
	d := interfaceData{constants: map[string]uint64{}, controls: map[string]control{}, structs: map[string]map[string]header.Field{}}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		w := strings.Fields(lines.Text())
		switch {
		case len(w) == 0 || w[0] == "#":
		case w[0] == "tags" && d.tags == nil:
			d.tags = w[1:]
		case w[0] == "constant" && len(w) == 3:
			d.constants[w[1]] = number(w[2])
		case w[0] == "control" && len(w) == 5:
			d.controls[w[1]] = control{number(w[2]), w[3], w[4] == "non-privileged"}
		case w[0] == "struct" && len(w) == 3:
			d.structs[w[1]] = map[string]header.Field{"": {Size: int(number(w[2]))}}
		case w[0] == "field" && len(w) == 4:
			s, f, _ := strings.Cut(w[1], ".")
			d.structs[s][f] = header.Field{Name: f, Offset: int(number(w[2])), Size: int(number(w[3]))}
		default:
			t.Fatalf("%s: %q: the tags of this branch differ, or the line is unknown", name, lines.Text())
		}
	}
	return d
}

// shared reports whether a branch has the interface of this package.
func shared(branch string) bool { return branch >= "R535" }

// ours lists the constants of this package, from its source.
func ours(t *testing.T) map[string]uint64 {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "abi.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{Importer: importer.ForCompiler(set, "source", nil)}).Check("abi", set, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, name := range pkg.Scope().Names() {
		if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok && strings.HasPrefix(name, "NV") || name == "KEPLER_CHANNEL_GROUP_A" {
			out[name], _ = constant.Uint64Val(c.Val())
		}
	}
	return out
}

var goStructs = []any{
	NVOS00{}, NVOS21{}, NVOS64{}, NVOS54{}, DisableChannels{}, Timeslice{}, GroupInfo{}, WorkSubmitToken{}, GPUID{}, ComputeModeRules{}, FBInfo{},
}

// layoutOf returns a Go struct's layout in the driver's names.
func layoutOf(v any) (name string, fields map[string]header.Field) {
	t := reflect.TypeOf(v)
	fields = map[string]header.Field{"": {Size: int(t.Size())}}
	for i := range t.NumField() {
		f := t.Field(i)
		switch tag := f.Tag.Get("rm"); {
		case i == 0:
			name = tag
		case tag != "":
			fields[tag] = header.Field{Name: tag, Offset: int(f.Offset), Size: int(f.Type.Size())}
		}
	}
	return name, fields
}

func TestGoMatchesEveryBranch(t *testing.T) {
	constants := ours(t)
	known := 0
	for branch, d := range branches(t) {
		if !shared(branch) {
			continue
		}
		known++
		if len(d.tags) == 0 {
			t.Errorf("%s: no tags", branch)
		}
		for _, v := range goStructs {
			name, fields := layoutOf(v)
			if !maps.Equal(fields, d.structs[name]) {
				t.Errorf("%s: %s is %v here, %v there", branch, name, fields, d.structs[name])
			}
		}
		for name, want := range d.constants {
			if got, ok := constants[name]; !ok || got != want {
				t.Errorf("%s: %s is %#x here, %#x there", branch, name, got, want)
			}
		}
		for name, c := range d.controls {
			if constants[name] != c.number {
				t.Errorf("%s: %s is %#x here, %#x there", branch, name, constants[name], c.number)
			}
			if !c.open {
				t.Errorf("%s: %s needs privileges", branch, name)
			}
			if s, ok := d.structs[c.params]; ok && s[""].Size == 0 {
				t.Errorf("%s: %s has no parameters", branch, name)
			}
		}
	}
	if known < 11 {
		t.Errorf("%d branches", known)
	}
}

// TestFBInfo: the list of the memory's properties has a size of its own in each branch.
func TestFBInfo(t *testing.T) {
	name, fields := layoutOf(GetFBInfo{})
	for branch, d := range branches(t) {
		number, err := strconv.Atoi(branch[1:])
		if err != nil {
			t.Fatal(err)
		}
		theirs, list := d.structs[name], fields["fbInfoList"]
		if !shared(branch) {
			continue
		}
		list.Size = theirs["fbInfoList"].Size
		if FBInfoBytes(number) != theirs[""].Size || fields["fbInfoListSize"] != theirs["fbInfoListSize"] || list != theirs["fbInfoList"] || list.Offset+list.Size != theirs[""].Size {
			t.Errorf("%s: %d bytes here, %+v there", branch, FBInfoBytes(number), theirs)
		}
	}
}

// Branches before R535 must differ, or they belong in the driver table.
func TestOlderBranchesDiffer(t *testing.T) {
	for branch, d := range branches(t) {
		if shared(branch) {
			continue
		}
		for _, v := range []any{NVOS21{}, NVOS64{}} {
			if name, fields := layoutOf(v); maps.Equal(fields, d.structs[name]) {
				t.Errorf("%s has our %s", branch, name)
			}
		}
	}
}

// cNames maps the shim's structs and fields to the driver's names.
var cNames = map[string]struct {
	name   string
	fields map[string]string
}{
	"rm_alloc":    {"NVOS21_PARAMETERS", map[string]string{"root": "hRoot", "parent": "hObjectParent", "object": "hObjectNew", "object_class": "hClass", "params": "pAllocParms"}},
	"rm_alloc_32": {"NVOS21_PARAMETERS", map[string]string{"params_bytes": "paramsSize", "status": "status"}},
	"rm_alloc_48": {"NVOS64_PARAMETERS", map[string]string{"rights": "pRightsRequested", "params_bytes": "paramsSize", "flags": "flags", "status": "status"}},
	"rm_free":     {"NVOS00_PARAMETERS", map[string]string{"root": "hRoot", "parent": "hObjectParent", "object": "hObjectOld", "status": "status"}},
	"rm_control": {"NVOS54_PARAMETERS", map[string]string{
		"client": "hClient", "object": "hObject", "command": "cmd", "flags": "flags", "params": "params", "params_bytes": "paramsSize", "status": "status",
	}},
	"rm_timeslice": {"NVA06C_CTRL_TIMESLICE_PARAMS", map[string]string{"microseconds": "timesliceUs"}},
	"rm_disable_channels": {"NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", map[string]string{
		"disable": "bDisable", "count": "numChannels", "only_scheduling": "bOnlyDisableScheduling", "rewind": "bRewindGpPut",
		"event": "pRunlistPreemptEvent", "clients": "hClientList", "channels": "hChannelList",
	}},
}

// shimHeader is the shim's copy of the interface.
func shimHeader(t *testing.T) *header.File {
	t.Helper()
	text, err := os.ReadFile("../../../../shim/driver/rm/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	return header.Parse(string(text))
}

func TestShimMatchesEveryBranch(t *testing.T) {
	h := shimHeader(t)
	all := branches(t)
	for cName, want := range cNames {
		s, err := h.Struct(cName)
		if err != nil {
			t.Error(err)
			continue
		}
		for branch, d := range all {
			if !shared(branch) {
				continue
			}
			theirs := d.structs[want.name]
			if cName != "rm_alloc" && s.Size != theirs[""].Size {
				t.Errorf("%s: %s has %d bytes in the shim, %d there", branch, cName, s.Size, theirs[""].Size)
			}
			for field, name := range want.fields {
				got, ok := s.Field(field)
				got.Name = name
				if !ok || got != theirs[name] {
					t.Errorf("%s: %s.%s is %+v in the shim, %+v there", branch, cName, field, got, theirs[name])
				}
			}
		}
	}
	numbers := map[string]uint64{"RM_DISABLE_MAX_CHANNELS": NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES}
	for name, request := range map[string]uint32{
		"NV_ESC_RM_FREE": Request(NV_ESC_RM_FREE, Size[NVOS00]()), "NV_ESC_RM_CONTROL": Request(NV_ESC_RM_CONTROL, Size[NVOS54]()),
		"NV_ESC_RM_ALLOC_32": Request(NV_ESC_RM_ALLOC, Size[NVOS21]()), "NV_ESC_RM_ALLOC_48": Request(NV_ESC_RM_ALLOC, Size[NVOS64]()),
	} {
		numbers[name] = uint64(request)
	}
	constants := ours(t)
	for _, name := range slices.Concat(h.Names("NVA06C_"), h.Names("NV2080_"), h.Names("NV01_"), h.Names("NV20_"), h.Names("KEPLER_")) {
		numbers[name] = constants[name]
	}
	for name, want := range numbers {
		if got, err := h.Number(name); err != nil || got != want {
			t.Errorf("%s is %#x in the shim (%v), %#x here", name, got, err, want)
		}
	}
}

func TestBytes(t *testing.T) {
	v := NVOS54{HClient: 0xc1d00001, HObject: 0x5c000003, Cmd: NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, ParamsSize: 536}
	b := Bytes(&v)
	if len(b) != 32 || fmt.Sprintf("%x", b[:12]) != "0100d0c10300005c0b118020" {
		t.Errorf("% x", b)
	}
	b[28] = 7
	if v.Status != 7 {
		t.Error("Bytes is a copy")
	}
	if again, ok := Decode[NVOS54](b); !ok || again != v {
		t.Errorf("%+v", again)
	}
	if _, ok := Decode[NVOS54](b[:31]); ok {
		t.Error("a short struct was decoded")
	}
	if _, ok := Decode[NVOS54](append(b, 0)); ok {
		t.Error("a long struct was decoded")
	}
	if r := Request(NV_ESC_RM_CONTROL, Size[NVOS54]()); r != 0xC020462A {
		t.Errorf("%#x", r)
	}
}
