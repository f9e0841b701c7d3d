# SPDX-License-Identifier: Apache-2.0
#
# Needs Go, gcc, make and git. Whatever else a target needs it installs or
# builds itself, and says so; what can't be had is skipped with one line, or
# fails when XSCHED_CI=1.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

GO ?= go
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
HOST_ARCH := $(shell $(GO) env GOHOSTARCH)
ifeq ($(HOST_ARCH),arm64)
CROSS_ARCH := amd64
CROSS_CC ?= x86_64-linux-gnu-gcc
CROSS_PACKAGES := gcc-x86-64-linux-gnu libc6-dev-amd64-cross
else
CROSS_ARCH := arm64
CROSS_CC ?= aarch64-linux-gnu-gcc
CROSS_PACKAGES := gcc-aarch64-linux-gnu libc6-dev-arm64-cross
endif

# Commands are shown in short; V=1 shows them whole.
Q := $(if $(filter-out 0,$(V)),,@)
short = $(if $(Q),@printf '  %-5s %s\n' '$(1)' '$(2)')

export CGO_ENABLED := 0
LDFLAGS := -s -w -X xsched/internal/cli.version=$(VERSION)
GO_BUILD := $(GO) build -trimpath -ldflags '$(LDFLAGS)'
GO_TOOL := $(GO) tool -modfile=go.tool.mod

# ---- C ------------------------------------------------------------------------

C_WARN := -Wall -Wextra -Werror
C_BASE := -std=c11 -D_GNU_SOURCE -g $(C_WARN) -Ishim/include -Ishim
C_FLAGS := $(C_BASE) -O2 -fPIC -fvisibility=hidden -ftls-model=initial-exec
# By file name: since glibc 2.34 plain -ldl and -lpthread are empty archives, but
# on an older glibc the shim must load these two (shim/core/compat.h).
C_LIBS := -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
SO_FLAGS := -shared -Wl,-z,defs -Wl,-z,relro -Wl,-z,now

HEADERS := $(shell find shim -name '*.h' -o -name '*.inc')
# What libxsched.so is made of. A new driver or runtime is a new folder.
SHIM_SOURCES := $(filter-out $(wildcard shim/*/test_* shim/*/*/test_*), \
	$(wildcard shim/core/*.c shim/driver/*.c shim/driver/*/*.c shim/runtime/*.c shim/runtime/*/*.c shim/runtime/*/*.S shim/api/*.c))

# Lines "product: word..." of a list file, each as one word "product:source|source|-flag". A source
# without a folder is in the list's own.
list = $(if $(wildcard $(1)),$(shell awk -v dir=$(dir $(1)) '{ sub(/\#.*/, "") } NF { sub(/[ \t]*:[ \t]*/, ": "); line = $$1; \
	for (i = 2; i <= NF; i++) line = line (i > 2 ? "|" : "") ($$i ~ /^-|\// ? $$i : dir $$i); print line }' $(1)))
comma := ,
name_of = $(firstword $(subst :, ,$(1)))
words_of = $(subst |, ,$(patsubst $(call name_of,$(1)):%,%,$(1)))
sources_of = $(filter-out -%,$(call words_of,$(1)))
flags_of = $(filter -%,$(call words_of,$(1)))
maps_of = $(patsubst --version-script=%,%,$(filter --version-script=%,$(subst -Wl$(comma),,$(call flags_of,$(1)))))

VIRTUAL := $(call list,shim/virtual/SOURCES.txt)
NULL := $(call list,shim/null/SOURCES.txt)
GPREEMPT := $(call list,shim/gpreempt/SOURCES.txt)
TESTS := $(call list,shim/tests.txt)

# $(call objects,folder,sources): where the objects of sources go
objects = $(patsubst %,$(1)/obj/%.o,$(2))

# $(call shim_rules,folder,compiler)
define shim_rules
$(1)/obj/%.c.o: %.c Makefile
	@mkdir -p $$(@D)
	$$(call short,CC,$$@)
	$(Q)$(2) $(C_FLAGS) -MMD -MP -c -o $$@ $$<

$(1)/obj/%.S.o: %.S Makefile
	@mkdir -p $$(@D)
	$$(call short,CC,$$@)
	$(Q)$(2) $(C_FLAGS) -MMD -MP -c -o $$@ $$<

# Changes when a source comes or goes, which no time stamp would tell.
$(1)/obj/sources: always
	@mkdir -p $$(@D)
	@echo '$(SHIM_SOURCES)' | cmp -s - $$@ || echo '$(SHIM_SOURCES)' > $$@

$(1)/libxsched.so: $(call objects,$(1),$(SHIM_SOURCES)) shim/libxsched.map $(1)/obj/sources
	$$(call short,LINK,$$@)
	$(Q)$(2) $(C_FLAGS) $(SO_FLAGS) -Wl,-z,nodelete -Wl,-soname,libxsched.so -Wl,--version-script=shim/libxsched.map \
		-o $$@ $$(filter %.o,$$^) $(C_LIBS)

-include $(patsubst %.o,%.d,$(call objects,$(1),$(SHIM_SOURCES)))
endef

# $(call product_rule,folder,compiler,line): a shared library or a program made of listed sources
define product_rule
$(1)/$(call name_of,$(3)): $(call sources_of,$(3)) $(call maps_of,$(3)) $(HEADERS) Makefile
	@mkdir -p $$(@D)
	$$(call short,BUILD,$$@)
	$(Q)$(2) $(C_FLAGS) $(if $(findstring .so,$(call name_of,$(3))),$(SO_FLAGS) -Wl$(comma)-soname$(comma)$(notdir $(call name_of,$(3)))) \
		-o $$@ $(call sources_of,$(3)) $(call flags_of,$(3)) $(C_LIBS)
endef

TEST_FLAGS_plain := -O2
TEST_FLAGS_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
TEST_FLAGS_tsan := -O1 -fsanitize=thread -fno-omit-frame-pointer

# $(call variant_rules,variant): objects shared by the tests of one variant
define variant_rules
build/test/$(1)/obj/%.o: % Makefile
	@mkdir -p $$(@D)
	$(Q)$(CC) $(C_BASE) $(TEST_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<
-include $$(patsubst %,build/test/$(1)/obj/%.d,$$(sort $$(foreach line,$$(TESTS),$$(call sources_of,$$(line)))))
$$(foreach line,$$(TESTS),$$(eval $$(call test_rule,$(1),$$(line))))
endef

# $(call test_rule,variant,line): a test with macros of its own has objects of its own
define test_rule
build/test/$(1)/$(call name_of,$(2)): shim/tests.txt Makefile $(if $(filter -D%,$(call flags_of,$(2))),$(call sources_of,$(2)) $(HEADERS),$(patsubst %,build/test/$(1)/obj/%.o,$(call sources_of,$(2))))
	@mkdir -p $$(@D)
	$$(call short,BUILD,$$@)
	$(Q)$(CC) $(C_BASE) $(TEST_FLAGS_$(1)) -o $$@ $$(filter %.o %.c %.S,$$^) $(call flags_of,$(2)) $(C_LIBS)
endef

CROSS_DIR := build/$(CROSS_ARCH)
$(eval $(call shim_rules,build,$(CC)))
$(eval $(call shim_rules,$(CROSS_DIR),$(CROSS_CC)))
$(foreach line,$(VIRTUAL),$(eval $(call product_rule,build/virtual,$(CC),$(line))))
$(foreach line,$(VIRTUAL),$(eval $(call product_rule,$(CROSS_DIR)/virtual,$(CROSS_CC),$(line))))
$(foreach line,$(NULL),$(eval $(call product_rule,build/null,$(CC),$(line))))
$(foreach line,$(GPREEMPT),$(eval $(call product_rule,build/gpreempt,$(CC),$(line))))
$(foreach variant,plain asan tsan,$(eval $(call variant_rules,$(variant))))

VIRTUAL_NAMES := $(foreach line,$(VIRTUAL),$(call name_of,$(line)))
NULL_NAMES := $(foreach line,$(NULL),$(call name_of,$(line)))
GPREEMPT_NAMES := $(foreach line,$(GPREEMPT),$(call name_of,$(line)))
TEST_NAMES := $(foreach line,$(TESTS),$(call name_of,$(line)))

# What the binary carries, per architecture.
EMBEDDED := libxsched.so libvgpu.so libcuda.so.1 libvkfd.so libamdhip64.so.6 tenant
internal/embedded/files/$(HOST_ARCH)/%: build/%
	@install -m 644 $< $@
internal/embedded/files/$(HOST_ARCH)/%: build/virtual/%
	@install -m 644 $< $@
internal/embedded/files/$(CROSS_ARCH)/%: $(CROSS_DIR)/%
	@install -m 644 $< $@
internal/embedded/files/$(CROSS_ARCH)/%: $(CROSS_DIR)/virtual/%
	@install -m 644 $< $@
EMBEDDED_FILES := $(addprefix internal/embedded/files/$(HOST_ARCH)/,$(EMBEDDED))
CROSS_FILES := $(addprefix internal/embedded/files/$(CROSS_ARCH)/,$(EMBEDDED))

.PHONY: always
always:

# ---- targets --------------------------------------------------------------------

.PHONY: help
help: ## list the targets
	@echo "XSched. The usual: make demo, make test, make build."
	@echo
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  %-16s %s\n' "$$name" "$$text"; done

.PHONY: all
all: build null ## everything that is built

.PHONY: build
build: toolchain $(EMBEDDED_FILES) ## bin/xsched with the shim and the virtual GPU inside
	$(GO_BUILD) -o bin/xsched ./cmd/xsched

.PHONY: toolchain
toolchain:
	@tools/need cc "$(CC)" "the C half" libc6-dev

.PHONY: shim
shim: toolchain build/libxsched.so ## build/libxsched.so

.PHONY: virtual
virtual: toolchain $(addprefix build/virtual/,$(VIRTUAL_NAMES)) ## the virtual GPU's driver stand-ins and the tenant

.PHONY: null
null: toolchain $(addprefix build/null/,$(NULL_NAMES)) ## the null driver, for the cost of a hook

.PHONY: gpreempt
gpreempt: toolchain $(addprefix build/gpreempt/,$(GPREEMPT_NAMES)) ## libgpreempt.so for AMD GPUs, and its example

.PHONY: demo
demo: build ## compare native with XSched on the virtual GPU (under a minute); writes out/demo
	bin/xsched demo --out out/demo

.PHONY: demo-amd
demo-amd: build ## the same with HIP programs over the double of AMD's driver; writes out/demo-amd
	bin/xsched demo --platform amd --out out/demo-amd

.PHONY: bench
bench: build null ## hook, decision and latency budgets; fails if one is missed
	bin/xsched bench overhead --null build/null

.PHONY: test
test: lint check-generated test-go test-histories test-c test-fuzz test-e2e test-python examples amdlog-check cross ## every check there is; what CI runs
	@echo "make test: all checks passed"

.PHONY: test-go
test-go: build ## Go tests with the race detector
	@tools/need library hsakmt.h -lhsakmt "the tests over AMD's own thunk" libhsakmt-dev || tools/need skipped $$? "the tests over AMD's own thunk"
	@tools/need shared libamdhip64.so.5 "the tests over AMD's own runtime" libamdhip64-5 || tools/need skipped $$? "the tests over AMD's own runtime"
	CGO_ENABLED=1 $(GO) test -race -timeout 8m $$($(GO) list ./... | grep -v -e '/test/e2e$$' -e '/internal/bench$$')
	@# It measures: nothing may run beside it.
	CGO_ENABLED=1 $(GO) test -race -timeout 10m ./internal/bench

# Under the race detector a sample of them is all there is time for.
HISTORIES ?= 10000
.PHONY: test-histories
test-histories: ## 10,000 generated histories for each property of each policy, and decisions among 10,000 queues
	$(GO) test -count 1 -timeout 8m -run 'Histories|ManyQueues|Alone' ./internal/engine -histories $(HISTORIES)

.PHONY: test-c
test-c: toolchain ## C tests: plain, with ASan+UBSan and with TSan
	@$(MAKE) --no-print-directory $(foreach v,plain asan tsan,$(addprefix build/test/$(v)/,$(TEST_NAMES)))
	@tools/run-c-tests $(TEST_NAMES)

# A count, not a time: a run that ends by the clock can fail by the clock ("context deadline exceeded").
FUZZ_TIME ?= 20000x
.PHONY: test-fuzz
test-fuzz: ## every fuzz target for a few seconds (FUZZ_TIME=20000x)
	@for package in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./internal/... ./tools/...); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$($(GO) list -f '{{$$d := .Dir}}{{range .TestGoFiles}}{{$$d}}/{{.}} {{end}}{{range .XTestGoFiles}}{{$$d}}/{{.}} {{end}}' $$package) | sed 's/func //' || true); do \
			echo "fuzz $$package $$target $(FUZZ_TIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_TIME) -timeout 5m $$package; \
		done; \
	done

.PHONY: test-e2e
test-e2e: all ## the built binary on the virtual GPU, with faults
	$(GO) test -count 1 -timeout 8m ./test/e2e/...

.PHONY: test-python
test-python: build ## the Python package, and the analysis code of test/gpu
	@tools/need program python3 "the Python tests" python3 && { \
	(cd python && python3 -B -m unittest discover -s tests -t .) && \
	python3 -B -m unittest discover -s test/gpu; } || tools/need skipped $$? "the Python tests"

.PHONY: examples
examples: build ## run every example on the virtual GPU
	@tools/need program python3 "the examples" python3 && examples/run-all.sh || tools/need skipped $$? "the examples"

.PHONY: amdlog-check
amdlog-check: build ## counts of amdlog against grep and awk on a generated log (tools/amdlog-check.sh a b: the big ones)
	XSCHED=bin/xsched tools/amdlog-check.sh small

.PHONY: cross
cross: ## build everything for the other architecture
	@tools/need cross "$(CROSS_CC)" "the $(CROSS_ARCH) build" $(CROSS_PACKAGES) && $(MAKE) --no-print-directory cross-build || tools/need skipped $$? "the $(CROSS_ARCH) build"

.PHONY: cross-build
cross-build: $(CROSS_FILES)
	GOARCH=$(CROSS_ARCH) $(GO_BUILD) -o bin/xsched-$(CROSS_ARCH) ./cmd/xsched
	GOARCH=$(CROSS_ARCH) $(GO) vet ./...

.PHONY: lint
lint: ## golangci-lint and gofumpt, at the versions of go.tool.mod (built once, minutes)
	@tools/need linters "$(GO)" "the linters" && { \
	$(GO_TOOL) golangci-lint run --allow-parallel-runners ./... && \
	unformatted=$$($(GO_TOOL) gofumpt -l cmd internal test tools) && \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:" $$unformatted; exit 1; fi; } || tools/need skipped $$? "the linters"

.PHONY: fmt
fmt: ## format Go (gofumpt) and, where clang-format exists, C
	$(GO_TOOL) gofumpt -w cmd internal test tools
	@if command -v clang-format >/dev/null; then clang-format -i $$(git ls-files 'shim/*.c' 'shim/*.h' | grep -v _gen); else echo "fmt: C left alone, no clang-format here"; fi

.PHONY: fix
fix: ## let the linters repair what they can
	$(GO_TOOL) golangci-lint run --fix ./...

.PHONY: generate
generate: ## write the generated files: wire contract, hooks, enums, hints, pictures
	$(GO) run ./tools/wiregen
	$(GO) run ./tools/hookgen
	$(GO) run ./tools/apigen
	$(GO) run ./tools/hintgen
	$(GO) run ./tools/pictures

.PHONY: pictures
pictures: ## simulate the scenes of docs/policies and draw their timelines
	$(GO) run ./tools/pictures

.PHONY: check-generated
check-generated: ## fail if the generated files are not what generate writes
	@before=$$(git ls-files -co --exclude-standard '*_gen.*' | sort | xargs sha256sum); \
	$(MAKE) --no-print-directory generate; \
	after=$$(git ls-files -co --exclude-standard '*_gen.*' | sort | xargs sha256sum); \
	if [ "$$before" != "$$after" ]; then diff <(echo "$$before") <(echo "$$after") || true; echo "generated files were stale; commit what make generate wrote"; exit 1; fi
	@if [ "$${XSCHED_CI:-}" = 1 ]; then git diff --exit-code -- '*_gen.*'; fi

.PHONY: dist
dist: build cross ## archives for both architectures in out/dist
	@mkdir -p out/dist
	tar -C bin -czf out/dist/xsched-$(VERSION)-linux-$(HOST_ARCH).tar.gz --transform 's,^,xsched-$(VERSION)/,' xsched -C .. LICENSE README.md
	@if [ -x bin/xsched-$(CROSS_ARCH) ]; then \
	tar -C bin -czf out/dist/xsched-$(VERSION)-linux-$(CROSS_ARCH).tar.gz --transform 's,^xsched-$(CROSS_ARCH)$$,xsched,' --transform 's,^,xsched-$(VERSION)/,' xsched-$(CROSS_ARCH) -C .. LICENSE README.md; fi
	@cd out/dist && sha256sum *.tar.gz > SHA256SUMS && ls -l

.PHONY: clean
clean: ## remove everything that was built
	rm -rf bin build out
	find internal/embedded/files -type f ! -name README -delete
