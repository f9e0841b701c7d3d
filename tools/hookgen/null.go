// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// nullDriver defines every symbol of CUDA's table as a function that returns success;
// null.c overrides those with results. Each one exists twice, because cuGetProcAddress
// may return addresses that the driver does not export.
func nullDriver(calls []call) []byte {
	var b bytes.Buffer
	b.WriteString(generated(cuda))
	b.WriteString("#include \"null/null.h\"\n\n")
	for _, c := range calls {
		nullFunction(&b, c, "XSI_CU_")
		fmt.Fprintf(&b, "static CUresult internal_%s(%s) { return %s(%s); }\n",
			c.symbol, c.parameters(), c.symbol, c.arguments())
	}
	b.WriteString("\nconst struct xsn_symbol xsn_symbols[XSI_CU_SLOTS] = {\n")
	for _, c := range calls {
		fmt.Fprintf(&b, "    [XSI_CU_%s] = {%q, %q, (void *)%s, (void *)internal_%s, %d, %d},\n",
			c.symbol, c.symbol, c.api, c.symbol, c.symbol, c.since, b2i(c.thread))
	}
	b.WriteString("};\n")
	return b.Bytes()
}

func nullFunction(b *bytes.Buffer, c call, prefix string) {
	fmt.Fprintf(b, "__attribute__((weak)) %s %s(%s) {\n", c.returns(), c.symbol, c.parameters())
	for i := range c.types {
		fmt.Fprintf(b, "  (void)a%d;\n", i)
	}
	fmt.Fprintf(b, "  return xsn_called(%s%s);\n}\n", prefix, c.symbol)
}

// nullRuntime does the same for HIP's table. XSN_NAME renames the functions for tests
// that also link the hooks.
func nullRuntime(calls []call) []byte {
	var b bytes.Buffer
	b.WriteString(generated(hip))
	b.WriteString("#include \"null/null_hip.h\"\n\n")
	for _, c := range calls {
		n := c
		n.symbol = "XSN_NAME(" + c.symbol + ")"
		fmt.Fprintf(&b, "%s %s(%s);\n", n.returns(), n.symbol, c.prototype())
		fmt.Fprintf(&b, "__attribute__((weak)) %s %s(%s) {\n", c.returns(), n.symbol, c.parameters())
		for i := range c.types {
			fmt.Fprintf(&b, "  (void)a%d;\n", i)
		}
		fmt.Fprintf(&b, "  return xsn_called(XSI_HIP_%s);\n}\n", c.symbol)
	}
	b.WriteString("\nconst struct xsn_symbol xsn_symbols[XSI_HIP_SLOTS] = {\n")
	for _, c := range calls {
		fmt.Fprintf(&b, "    {%q, (void *)XSN_NAME(%s)},\n", c.symbol, c.symbol)
	}
	b.WriteString("};\n")
	return b.Bytes()
}

// versionMap assigns each name the version node of the real library.
func versionMap(calls []call) []byte {
	var b bytes.Buffer
	b.WriteString(generated(hip))
	nodes := map[string][]string{}
	for _, c := range calls {
		nodes[c.node] = append(nodes[c.node], c.symbol)
	}
	before := ""
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		fmt.Fprintf(&b, "hip_%s {\n  global:\n", node)
		for _, symbol := range nodes[node] {
			fmt.Fprintf(&b, "    %s;\n", symbol)
		}
		if before == "" {
			b.WriteString("    xsn_*;\n  local:\n    *;\n};\n")
		} else {
			fmt.Fprintf(&b, "} hip_%s;\n", before)
		}
		before = node
	}
	return b.Bytes()
}

// invocations calls every hooked function of the table with zeros and a stream, to
// test that every line has a hook.
func invocations(calls []call) []byte {
	var b bytes.Buffer
	b.WriteString(generated(hip))
	b.WriteString("#include \"runtime/hip/test_invoke.h\"\n")
	for _, c := range calls {
		if c.kind == "use" {
			continue
		}
		fmt.Fprintf(&b, "\nstatic hipError_t invoke_%s(void *function, struct invocation_arguments *with) {\n  (void)with;\n", c.symbol)
		arguments := make([]string, len(c.types))
		for i, t := range c.types {
			arguments[i] = argument(c, i, t)
		}
		fmt.Fprintf(&b, "  return ((__typeof__(&%s))function)(%s);\n}\n", c.symbol, strings.Join(arguments, ", "))
	}
	b.WriteString("\nconst struct invocation invocations[XSI_HIP_HOOKS] = {\n")
	for _, c := range calls {
		if c.kind != "use" {
			fmt.Fprintf(&b, "    {%q, %q, %q, \"hip_%s\", %d, invoke_%s},\n", c.symbol, c.kind, c.detail, c.node, b2i(c.thread), c.symbol)
		}
	}
	b.WriteString("};\n")
	return b.Bytes()
}

// argument returns the test's value of a parameter.
func argument(c call, position int, t string) string {
	switch t {
	case "hipStream_t":
		return "with->stream"
	case "hipStream_t *":
		return "&with->created"
	case "hipEvent_t":
		return "with->event"
	case "hipMemcpyKind":
		return "with->kind"
	case "const char *":
		return "with->symbol"
	case "const hipLaunchConfig_t *", "const HIP_LAUNCH_CONFIG *":
		return "(" + t + ")&with->config"
	case "hipLaunchParams *":
		return "&with->list"
	case "hipStreamBatchMemOpParams *":
		return "with->operations"
	case "hipFunctionLaunchParams *":
		return "&with->functions"
	case "void **":
		return "with->pointers"
	}
	if (c.kind == "hand" || c.symbol == "hipStreamBatchMemOp") && position == 1 && (t == "int" || t == "unsigned") {
		return "1"
	}
	if strings.HasSuffix(t, "*") || strings.HasPrefix(t, "hip") && strings.HasSuffix(t, "_t") {
		return "(" + t + ")0"
	}
	return "(" + t + "){0}"
}
