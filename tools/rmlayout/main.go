// SPDX-License-Identifier: Apache-2.0

// Command rmlayout records the part of the NVIDIA driver's interface that XSched uses, per branch.
// That is escapes, classes, control commands with access rights, status codes and layouts. The input
// is a clone of https://github.com/NVIDIA/open-gpu-kernel-modules with its tags. The parity test of
// internal/driver/nvidia/abi reads the output, which holds only names and numbers.
//
//	go run ./tools/rmlayout -repo CLONE -out internal/driver/nvidia/abi/testdata
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"xsched/tools/rmlayout/header"
)

// Paths in the driver's sources.
const (
	sdk       = "src/common/sdk/nvidia/inc/"
	generated = "src/nvidia/generated/"
)

var (
	headers = []string{
		sdk + "nvos.h", sdk + "nvstatuscodes.h", "src/nvidia/arch/nvalloc/unix/include/nv_escape.h",
		sdk + "class/cl0000.h", sdk + "class/cl0080.h", sdk + "class/cl2080.h", sdk + "class/cla06c.h",
		sdk + "ctrl/ctrlxxxx.h", sdk + "ctrl/ctrl2080/ctrl2080fb.h", sdk + "ctrl/ctrl2080/ctrl2080fifo.h", sdk + "ctrl/ctrl2080/ctrl2080gpu.h", sdk + "ctrl/ctrla06c.h", sdk + "ctrl/ctrlc36f.h",
		"src/nvidia/inc/kernel/rmapi/control.h",
	}
	methods = []string{generated + "g_subdevice_nvoc.c", generated + "g_kernel_channel_group_api_nvoc.c", generated + "g_kernel_channel_nvoc.c"}

	structs = []string{
		"NVOS00_PARAMETERS", "NVOS21_PARAMETERS", "NVOS54_PARAMETERS", "NVOS64_PARAMETERS",
		"NV2080_CTRL_FB_INFO", "NV2080_CTRL_FB_GET_INFO_V2_PARAMS", "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", "NV2080_CTRL_GPU_GET_ID_PARAMS", "NV2080_CTRL_GPU_QUERY_COMPUTE_MODE_RULES_PARAMS",
		"NVA06C_CTRL_TIMESLICE_PARAMS", "NVA06C_CTRL_GET_INFO_PARAMS", "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS",
	}
	controls = []string{
		"NV2080_CTRL_CMD_FB_GET_INFO_V2", "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS", "NV2080_CTRL_CMD_GPU_GET_ID", "NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES",
		"NVA06C_CTRL_CMD_GET_INFO", "NVA06C_CTRL_CMD_GET_TIMESLICE", "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE", "NVA06C_CTRL_CMD_SET_TIMESLICE",
		"NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN",
	}
	constants = []string{
		"KEPLER_CHANNEL_GROUP_A", "NV01_DEVICE_0", "NV01_ROOT", "NV20_SUBDEVICE_0", "NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE", "NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES",
		"NV_ESC_RM_ALLOC", "NV_ESC_RM_CONTROL", "NV_ESC_RM_FREE",
	}
	statuses = []string{
		"NV_ERR_BUSY_RETRY", "NV_ERR_INSUFFICIENT_PERMISSIONS", "NV_ERR_INVALID_CLIENT", "NV_ERR_INVALID_OBJECT",
		"NV_ERR_INVALID_OBJECT_HANDLE", "NV_ERR_INVALID_OWNER", "NV_ERR_NOT_SUPPORTED", "NV_ERR_OBJECT_NOT_FOUND", "NV_ERR_TIMEOUT", "NV_OK",
	}
)

func main() {
	repo := flag.String("repo", "", "clone of open-gpu-kernel-modules, with its tags")
	out := flag.String("out", "internal/driver/nvidia/abi/testdata", "directory for the data files")
	flag.Parse()
	if err := run(*repo, *out); err != nil {
		fmt.Fprintln(os.Stderr, "rmlayout:", err)
		os.Exit(1)
	}
}

func run(repo, out string) error {
	if repo == "" {
		return errors.New("-repo is missing; clone https://github.com/NVIDIA/open-gpu-kernel-modules")
	}
	list, err := git(repo, "tag", "--list", "[0-9]*", "--sort=version:refname")
	if err != nil {
		return err
	}
	branches := map[string][]section{}
	for tag := range strings.FieldsSeq(list) {
		branch, _, _ := strings.Cut(tag, ".")
		text, err := layout(repo, tag)
		if err != nil {
			return fmt.Errorf("%s: %w", tag, err)
		}
		branches[branch] = add(branches[branch], tag, text)
	}
	if len(branches) == 0 {
		return errors.New("the clone has no tags; fetch them with `git fetch --tags`")
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for branch, sections := range branches {
		if err := os.WriteFile(filepath.Join(out, "R"+branch+".txt"), []byte(render(sections)), 0o644); err != nil {
			return err
		}
		fmt.Printf("R%s: %d layouts\n", branch, len(sections))
	}
	return nil
}

// section is a layout and its tags.
type section struct {
	tags []string
	text string
}

// add appends a tag to the section with the same layout.
func add(list []section, tag, text string) []section {
	for i := range list {
		if list[i].text == text {
			list[i].tags = append(list[i].tags, tag)
			return list
		}
	}
	return append(list, section{[]string{tag}, text})
}

func render(sections []section) string {
	var b strings.Builder
	b.WriteString("# Written by tools/rmlayout from the sources of github.com/NVIDIA/open-gpu-kernel-modules at these tags.\n")
	for _, s := range sections {
		fmt.Fprintf(&b, "tags %s\n%s", strings.Join(s.tags, " "), s.text)
	}
	return b.String()
}

// layout returns the layout of one tag.
func layout(repo, tag string) (string, error) {
	texts, err := show(repo, tag, headers)
	if err != nil {
		return "", err
	}
	f := header.Parse(texts...)
	var b strings.Builder
	for _, name := range constants {
		n, err := f.Number(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "constant %s %#x\n", name, n)
	}
	if err := writeStatuses(&b, strings.Join(texts, "\n")); err != nil {
		return "", err
	}
	if err := writeControls(&b, repo, tag, f); err != nil {
		return "", err
	}
	for _, name := range structs {
		s, err := f.Struct(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "struct %s %d\n", name, s.Size)
		for _, m := range s.Fields {
			fmt.Fprintf(&b, "field %s.%s %d %d\n", name, m.Name, m.Offset, m.Size)
		}
	}
	return b.String(), nil
}

func writeStatuses(b *strings.Builder, text string) error {
	for _, name := range statuses {
		m := regexp.MustCompile(`NV_STATUS_CODE\(` + name + `,\s*(0x[0-9A-Fa-f]+)`).FindStringSubmatch(text)
		if m == nil {
			return fmt.Errorf("no status %s", name)
		}
		n, err := header.Parse().Number(m[1])
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "constant %s %#x\n", name, n)
	}
	return nil
}

// writeControls writes each command with the access right in the tag's table of exported methods,
// and its parameter struct.
func writeControls(b *strings.Builder, repo, tag string, f *header.File) error {
	texts, err := show(repo, tag, methods)
	if err != nil {
		return err
	}
	table := strings.Join(texts, "\n")
	free, err := f.Number("RMCTRL_FLAGS_NON_PRIVILEGED")
	if err != nil {
		return err
	}
	for _, name := range controls {
		n, err := f.Number(name)
		if err != nil {
			return err
		}
		m := regexp.MustCompile(fmt.Sprintf(`/\*flags=\*/\s*(0x[0-9a-f]+)u,\s*/\*accessRight=\*/\s*(0x[0-9a-f]+)u,\s*/\*methodId=\*/\s*%#xu,\s*/\*paramSize=\*/\s*sizeof\((\w+)\)`, n)).FindStringSubmatch(table)
		if m == nil {
			return fmt.Errorf("%s (%#x) is not exported", name, n)
		}
		flags, _ := f.Number(m[1])
		access := "privileged"
		if flags&free != 0 && m[2] == "0x0" {
			access = "non-privileged"
		}
		fmt.Fprintf(b, "control %s %#x %s %s\n", name, n, m[3], access)
	}
	return nil
}

// show reads files of a tag; all must exist.
func show(repo, tag string, paths []string) ([]string, error) {
	var out []string
	for _, path := range paths {
		text, err := git(repo, "show", tag+":"+path)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

func git(repo string, args ...string) (string, error) {
	out, err := exec.Command("git", slices.Concat([]string{"-C", repo}, args)...).Output()
	if err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			err = errors.New(strings.TrimSpace(string(e.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return string(out), nil
}
