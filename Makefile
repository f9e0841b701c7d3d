# SPDX-License-Identifier: Apache-2.0
#
# Builds need Go, gcc, make and git. Tests need more, which `make setup` installs. A check whose
# tools are missing is skipped with one line; with XSCHED_CI=1 it fails.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

GO ?= go
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
# The release, from the one file that states it. COMMIT tells builds of one release apart.
VERSION_HEADER := shim/include/xsched/version.h
VERSION_PARTS := $(shell sed -n 's/^.define XS_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' $(VERSION_HEADER))
API_VERSION := $(firstword $(VERSION_PARTS))
empty :=
VERSION ?= $(subst $(empty) $(empty),.,$(VERSION_PARTS))
COMMIT ?= $(shell git describe --always --dirty --exclude '*' 2>/dev/null)
HOST_ARCH := $(shell $(GO) env GOHOSTARCH)
ifeq ($(HOST_ARCH),arm64)
CROSS_ARCH := amd64
CROSS_CC ?= x86_64-linux-gnu-gcc
else
CROSS_ARCH := arm64
CROSS_CC ?= aarch64-linux-gnu-gcc
endif

# Recipes print a short form of each command; V=1 prints it in full.
Q := $(if $(filter-out 0,$(V)),,@)
short = $(if $(Q),@printf '  %-5s %s\n' '$(1)' '$(2)')

export CGO_ENABLED := 0
LDFLAGS := -s -w -X xsched/internal/version.Release=$(VERSION:v%=%) -X xsched/internal/version.Commit=$(COMMIT)
# Only release builds trim paths: builds, tests and linters then share one build cache.
TRIM ?=
GO_BUILD = $(GO) build $(TRIM) -ldflags '$(LDFLAGS)'
RUN_TESTS := $(GO) run ./tools/runtests
SETUP_BIN := .setup/bin

# ---- C ------------------------------------------------------------------------

C_WARN := -Wall -Wextra -Werror
C_BASE := -std=c11 -D_GNU_SOURCE -g $(C_WARN) -Ishim/include -Ishim -Ibuild/gen
# Debug information names no folder of this machine: a build is the same in each checkout.
C_FLAGS := $(C_BASE) -ffile-prefix-map=$(CURDIR)=. -O2 -fPIC -fvisibility=hidden -ftls-model=initial-exec
# By file name: since glibc 2.34 plain -ldl and -lpthread are empty archives, but
# on an older glibc the shim must load these two (shim/core/compat.h).
C_LIBS := -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
SO_FLAGS := -shared -Wl,-z,defs -Wl,-z,relro -Wl,-z,now

HEADERS := $(shell find shim -name '*.h' -o -name '*.inc')
# Entry points generated from the tables of hooked functions.
TABLES := $(wildcard shim/runtime/*/hooks.table)
ENTRY_POINTS := $(patsubst shim/%/hooks.table,build/gen/%/hooks_gen.c,$(TABLES)) build/gen/runtime/known_gen.c \
	build/gen/runtime/cuda/stubs_gen.S
build/gen/stamp: $(TABLES) $(wildcard shim/runtime/*/entry_points.txt) $(wildcard tools/hookgen/*.go)
	@mkdir -p $(@D)
	$(call short,GEN,$(@D))
	$(Q)$(GO) run ./tools/hookgen -out build/gen
	@touch $@
$(ENTRY_POINTS) $(addprefix build/gen/,null/null_gen.c null/null_hip_gen.c null/null_hip_gen.map runtime/hip/test_invoke_gen.c): build/gen/stamp ;

# Sources of libxsched.so. A new driver or runtime is a new folder.
SHIM_SOURCES := $(ENTRY_POINTS) $(filter-out $(wildcard shim/*/test_* shim/*/*/test_*), \
	$(wildcard shim/core/*.c shim/driver/*.c shim/driver/*/*.c shim/runtime/*.c shim/runtime/*/*.c shim/runtime/*/*.S shim/api/*.c))

# A program that was linked with one version of the interface never loads another.
SONAME := libxsched.so.$(API_VERSION)

# Exports of libxsched.so: each part lists its own names.
EXPORTS := $(wildcard shim/*/exports.txt shim/*/*/exports.txt)
build/gen/libxsched.map: $(EXPORTS) Makefile
	@mkdir -p $(@D)
	@sed 's/#.*//' $(EXPORTS) | awk 'BEGIN { print "{\n  global:" } NF { print "    " $$1 ";" } END { print "  local:\n    *;\n};" }' > $@

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
$(1)/obj/%.c.o: %.c Makefile | build/gen/stamp
	@mkdir -p $$(@D)
	$$(call short,CC,$$@)
	$(Q)$(2) $(C_FLAGS) -MMD -MP -c -o $$@ $$<

$(1)/obj/%.S.o: %.S Makefile
	@mkdir -p $$(@D)
	$$(call short,CC,$$@)
	$(Q)$(2) $(C_FLAGS) -MMD -MP -c -o $$@ $$<

# Changes when a source is added or removed, which timestamps do not show.
$(1)/obj/sources: always
	@mkdir -p $$(@D)
	@echo '$(SHIM_SOURCES)' | cmp -s - $$@ || echo '$(SHIM_SOURCES)' > $$@

$(1)/libxsched.so: $(call objects,$(1),$(SHIM_SOURCES)) build/gen/libxsched.map $(1)/obj/sources
	$$(call short,LINK,$$@)
	$(Q)$(2) $(C_FLAGS) $(SO_FLAGS) -Wl,-z,nodelete -Wl,-soname,$(SONAME) -Wl,--version-script=build/gen/libxsched.map \
		-o $$@ $$(filter %.o,$$^) $(C_LIBS)
	@ln -sf libxsched.so $$(@D)/$(SONAME)

-include $(patsubst %.o,%.d,$(call objects,$(1),$(SHIM_SOURCES)))
endef

# $(call product_rule,folder,compiler,line): a shared library or a program made of listed sources
define product_rule
$(1)/$(call name_of,$(3)): $(call sources_of,$(3)) $(call maps_of,$(3)) $(HEADERS) build/gen/stamp Makefile
	@mkdir -p $$(@D)
	$$(call short,BUILD,$$@)
	$(Q)$(2) $(C_FLAGS) $(if $(findstring .so,$(call name_of,$(3))),$(SO_FLAGS) -Wl$(comma)-soname$(comma)$(notdir $(call name_of,$(3)))) \
		-o $$@ $(call sources_of,$(3)) $(call flags_of,$(3)) $(C_LIBS)
endef

TEST_FLAGS_plain := -O2
TEST_FLAGS_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
TEST_FLAGS_tsan := -O1 -fsanitize=thread -fno-omit-frame-pointer

# Tests link all of libxsched.so except dlsym, which they call themselves.
TESTED := $(filter-out shim/runtime/dl/%,$(SHIM_SOURCES))

# $(call variant_rules,variant): the tests of one variant, and the archive they share
define variant_rules
build/test/$(1)/obj/%.o: % Makefile | build/gen/stamp
	@mkdir -p $$(@D)
	$(Q)$(CC) $(C_BASE) $(TEST_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<
build/test/$(1)/libxsched.a: $(patsubst %,build/test/$(1)/obj/%.o,$(TESTED)) build/obj/sources
	$$(call short,AR,$$@)
	$(Q)rm -f $$@ && $(AR) rcs $$@ $$(filter %.o,$$^)
-include $$(patsubst %,build/test/$(1)/obj/%.d,$$(sort $(TESTED) $$(foreach line,$$(TESTS),$$(call sources_of,$$(line)))))
$$(foreach line,$$(TESTS),$$(eval $$(call test_rule,$(1),$$(line))))
endef

# $(call test_rule,variant,line): a test with its own macros has its own objects
define test_rule
build/test/$(1)/$(call name_of,$(2)): $(if $(filter -D%,$(call flags_of,$(2))),$(call sources_of,$(2)) $(HEADERS),$(patsubst %,build/test/$(1)/obj/%.o,$(call sources_of,$(2)))) build/test/$(1)/libxsched.a shim/tests.txt Makefile
	@mkdir -p $$(@D)
	$$(call short,BUILD,$$@)
	$(Q)$(CC) $(C_BASE) $(TEST_FLAGS_$(1)) -o $$@ $$(filter %.o %.c,$$^) $(call flags_of,$(2)) -Wl,-u,xsi_init \
		build/test/$(1)/libxsched.a $(C_LIBS)
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

# Files embedded in the binary, per architecture.
EMBEDDED := libxsched.so libvgpu.so libcuda.so.1 libvkfd.so libamdhip64.so.6 tenant selftest sensors
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
	@echo "XSched. Start with: make demo, make test, make build."
	@echo
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  %-16s %s\n' "$$name" "$$text"; done

.PHONY: all
all: build null ## build everything

.PHONY: build
build: $(EMBEDDED_FILES) ## build bin/xsched, which contains the shim, the virtual GPU and, with npm, the dashboard
	@tools/web attempt
	$(GO_BUILD) -o bin/xsched ./cmd/xsched

# Kubernetes' client libraries make a binary of their own: every xsched command would pay for them.
.PHONY: kube
kube: bin/xsched-kube ## build bin/xsched-kube, the Kubernetes node plugin and kubectl plugin
bin/xsched-kube: $(EMBEDDED_FILES) always
	$(GO_BUILD) -o $@ ./cmd/xsched-kube

.PHONY: web
web: ## build the dashboard, which the binary embeds; needs npm
	@tools/web build

.PHONY: shim
shim: build/libxsched.so ## build the C library, build/libxsched.so

.PHONY: virtual
virtual: $(addprefix build/virtual/,$(VIRTUAL_NAMES)) ## build the virtual GPU's driver libraries and its load generator

.PHONY: null
null: $(addprefix build/null/,$(NULL_NAMES)) ## build the null driver, which measures the cost of a hook

.PHONY: gpreempt
gpreempt: $(addprefix build/gpreempt/,$(GPREEMPT_NAMES)) ## build libgpreempt.so for AMD GPUs, and its examples
	@ln -sf libgpreempt.so build/gpreempt/libgpreempt_poc.so

.PHONY: demo
demo: build ## compare native scheduling with XSched on the virtual GPU; writes out/demo in under a minute
	bin/xsched demo --out out/demo

.PHONY: demo-amd
demo-amd: build ## run the demo with HIP programs on the virtual AMD GPU; writes out/demo-amd
	bin/xsched demo --platform amd --out out/demo-amd

.PHONY: bench
bench: build null ## measure hook, decision and latency; fails if one exceeds its budget
	bin/xsched bench overhead --null build/null
	$(GO) test -run '^$$' -bench TenThousandQueues -benchtime 1x ./test/e2e

.PHONY: hooks
hooks: ## print every entry point of the GPU runtimes with its class (hooked, passes, can't submit); VERSION_OF=13.0 selects
	@$(GO) run ./tools/hookgen -table -version '$(VERSION_OF)'

.PHONY: hooks-page
hooks-page: ## write docs/platforms/hooks.md
	@$(GO) run ./tools/hookgen -page

.PHONY: setup
setup: ## install what tests and linters need; prints what it installs
	@CC='$(CC)' CROSS_CC='$(CROSS_CC)' GO='$(GO)' tools/setup

# ---- tests ----------------------------------------------------------------------

# $(call skip,reason): the check cannot run here
skip = { echo "SKIP $@: $(1)"; [ "$${XSCHED_CI:-}" != 1 ]; }

# $(call steps,targets): run targets in order and print the time of each. Nothing is downloaded: GOPROXY is off.
# The linters vet all packages, so that tests need not: this saves a minute of Kubernetes' libraries.
define steps
	@export GOPROXY=off GOFLAGS="$${GOFLAGS:-} -vet=off"; summary=; all=$$SECONDS; \
	for step in $(1); do \
		echo "== $$step"; start=$$SECONDS; \
		$(MAKE) --no-print-directory $$step || { echo "make $@: $$step FAILED"; exit 1; }; \
		summary+="$$(printf '  %-16s %4d s' $$step $$((SECONDS - start)))"$$'\n'; \
	done; \
	printf '%s' "$$summary"; echo "make $@: all checks passed in $$((SECONDS - all)) s"
endef

.PHONY: test
test: setup ## run the checks for every change (10 minutes on two cores)
	$(call steps,lint-go lint-c check-generated check-commits build test-go test-c test-e2e test-python test-web examples amdlog-check)

.PHONY: setup-root
setup-root: setup ## make the minimal Debian root in .setup that tests of packages use
	@tools/setup-root

.PHONY: test-long
test-long: setup-root ## run the long checks: race detector, 10,000 histories, fuzzing, soak, faults
	$(call steps,lint-kube cross cross-vet test-race test-histories test-fuzz test-e2e-long test-operator test-pair test-strategies test-soak test-chaos)

# A test that takes long for more evidence is named TestLong...; only `make test-long` runs it.
# internal/bench measures time, so its packages run one at a time, without others.
unit = $(shell $(GO) list ./... | grep -v -e '/test/e2e$$' -e '/test/operator$$' -e '/test/kube$$' -e '/internal/bench')

.PHONY: test-go
test-go: all ## run the Go unit tests
	@$(RUN_TESTS) go -timeout 8m -skip '^TestLong' $(unit)
	@$(RUN_TESTS) go -p 1 -timeout 8m -skip '^TestLong' ./internal/bench/...

# These packages start no goroutine (internal TestDecisionsStartNoGoroutine), so the race detector can
# find nothing there, and takes six minutes. The simulator starts some in one place; TestDeterministic
# runs it with one worker and with two.
SINGLE_THREADED := xsched/internal/engine xsched/internal/policy
.PHONY: test-race
test-race: all ## run the Go unit tests with the race detector, one package at a time
	@packages=$$(echo $(unit) | tr ' ' '\n' | grep -v -x $(addprefix -e ,$(SINGLE_THREADED) xsched/internal/sim)); \
	CGO_ENABLED=1 $(RUN_TESTS) go -race -p 1 -timeout 20m -skip '^TestLongStrategies' $$packages # see test-strategies
	@CGO_ENABLED=1 $(RUN_TESTS) go -race -timeout 10m -run '^TestDeterministic$$' ./internal/sim
	@CGO_ENABLED=1 $(RUN_TESTS) go -race -p 1 -timeout 10m ./internal/bench/...

HISTORIES ?= 10000
.PHONY: test-histories
test-histories: ## check every policy's properties on 10,000 generated histories
	@$(RUN_TESTS) go -count 1 -timeout 15m -run 'Histories|Alone' ./internal/engine -histories $(HISTORIES)

JOBS ?= $(shell nproc)
VARIANTS := plain asan tsan
.PHONY: test-c
test-c: ## run the C tests: plain, with ASan and UBSan, with TSan
	@$(MAKE) --no-print-directory -j $(JOBS) $(foreach v,$(VARIANTS),$(addprefix build/test/$(v)/,$(TEST_NAMES)))
	@$(RUN_TESTS) c -jobs $(JOBS) $(TEST_NAMES)

# The seeds of every fuzz target run in `make test-go`.
FUZZ_TIME ?= 10s
.PHONY: test-fuzz
test-fuzz: ## run every fuzz target for FUZZ_TIME (10s), from the kept corpus on
	@$(GO) run ./tools/fuzz run -users $(FUZZ_TIME) -others $(FUZZ_TIME)

.PHONY: fuzz
fuzz: ## fuzz for long: 10 minutes a target that faces users, 2 the others; keeps corpus and record
	@$(GO) run ./tools/fuzz run -users 10m -others 2m -keep
	@$(MAKE) --no-print-directory fuzz-table

.PHONY: fuzz-table
fuzz-table: ## write the table of trust boundaries and fuzzing time into SECURITY.md
	@$(GO) run ./tools/fuzz table

.PHONY: previous
previous: ## build the previous release from git history, for tests of version skew
	@tools/previous >/dev/null || [ $$? = 3 ]

.PHONY: test-e2e
test-e2e: all previous ## run the built binary on the virtual GPU, with injected faults
	@$(RUN_TESTS) go -count 1 -timeout 10m -skip '^TestLong' ./test/e2e/...

.PHONY: test-e2e-long
test-e2e-long: all previous ## run the end-to-end tests of scale and of the simulator's accuracy
	@$(RUN_TESTS) go -count 1 -timeout 20m -run '^TestLong' ./test/e2e/...

CALLS ?= 10000000
.PHONY: test-orders
test-orders: all ## make CALLS (10,000,000) random calls in batches from several threads, from SEED (100) on: no call hangs
	@XSCHED_ORDERS=$(CALLS) XSCHED_SEED=$(or $(SEED),100) $(GO) test -count 1 -timeout 2h -v -run '^TestLongCallOrders$$' ./test/e2e

.PHONY: test-operator
test-operator: all ## test what operators use with its real counterparts, such as Prometheus
	@$(RUN_TESTS) go -count 1 -timeout 20m -run '^TestLong' ./test/operator/...

.PHONY: test-kube
test-kube: all bin/xsched-kube image image-next ## test the image and the chart on a real Kubernetes node with the virtual GPU, in namespaces; needs root
	@folder=$$(GO='$(GO)' tools/kube); XSCHED_KUBE=$$folder $(RUN_TESTS) go -count 1 -timeout 30m ./test/kube/...

NODES ?= 1000
CLAIMS ?= 10000
MINUTES ?= 60
.PHONY: kube-scale
kube-scale: all bin/xsched-kube ## allocate CLAIMS=10000 claims on NODES=1000 simulated nodes of 8 GPUs in at most MINUTES=60; needs root
	@folder=$$(GO='$(GO)' tools/kube); XSCHED_KUBE=$$folder XSCHED_KUBE_SCALE='$(NODES) $(CLAIMS) $(MINUTES)' nice $(GO) test -count 1 -v -timeout 4h ./test/kube -run '^TestScale$$'

.PHONY: screens
screens: all ## update the screens of reports in docs/, which a browser draws
	$(GO) test -count 1 -run '^TestLongReport' ./test/operator -update

.PHONY: test-strategies
test-strategies: ## check that docs/strategies.md is what the present strategies give
	@$(RUN_TESTS) go -count 1 -timeout 10m -run '^TestLong' ./tools/pictures

SOAK_ROUNDS ?= 3
.PHONY: test-soak
test-soak: all ## repeat the fault-injection tests SOAK_ROUNDS (3) times
	@$(RUN_TESTS) go -count $(SOAK_ROUNDS) -timeout 30m -run 'Killed|Stopped|Wedged|Stuck|Execs|Graceful|Garbage|ShortClients' ./test/e2e

# ---- fault campaign (docs/chaos.md) --------------------------------------------------

SEED ?= 1
FAULTS ?= 10000
WORLDS ?= $(JOBS)
# Another release for upgrades and downgrades, if its binary is at hand.
OTHER ?=
# A build of xsched-kube adds faults of the node plugin.
KUBE_BINARY ?= $(wildcard bin/xsched-kube)
CHAOS = bin/chaos --seed $(SEED) $(if $(OTHER),--other-binary $(OTHER)) $(if $(KUBE_BINARY),--kube-binary $(KUBE_BINARY))

bin/chaos: always
	$(GO) build $(TRIM) -o $@ ./test/chaos

.PHONY: test-pair
test-pair: all ## run the long runs of `xsched pair` for some seconds each
	@$(RUN_TESTS) go -count 1 -timeout 10m -run '^TestLong' ./internal/bench/pair

# The long runs of `xsched pair` on the virtual GPU. Each writes out/NAME.
PAIR = bin/xsched pair --virtual --platform amd --out out/$@

.PHONY: pair-hour pair-requests pair-queues pair-leaks pair-table
pair-hour: build ## one hour of an online and an offline program
	$(PAIR) --seconds 1h
pair-requests: build ## ten minutes with requests of 10 ms
	$(PAIR) --request 10ms --seconds 10m
pair-queues: build ## one minute with ten offline queues
	$(PAIR) --queues 10 --seconds 1m
pair-leaks: build ## five minutes at 50 requests per second; open files and threads must not grow
	$(PAIR) --rate 50 --request 1ms --seconds 5m
pair-table: build ## the offline loss by rate and length of requests: one request for all queues, and one per queue and a hold
	$(PAIR)/joint --offline-env XSCHED_AMD_SESSION=1 --hold 0 --rate 10,20,50,100 --request 500us,5ms --seconds 10s
	$(PAIR)/single --rate 10,20,50,100 --request 500us,5ms --seconds 10s

.PHONY: chaos
chaos: build bin/chaos ## inject 10,000 faults (FAULTS, SEED, WORLDS, OTHER=BINARY); within an hour on two cores
	$(CHAOS) --faults $(FAULTS) --worlds $(WORLDS) -v --out out/chaos

.PHONY: test-chaos
test-chaos: build bin/chaos ## inject 300 faults; a late program must be late again in a replay
	$(CHAOS) --faults 300 --worlds $(WORLDS) --confirm --out out/chaos-short

bin/attack: always
	$(GO) build $(TRIM) -o $@ ./test/attack

# Attacks of an unprivileged user (docs/threat-model.md). As root, because it starts programs of
# several users.
ONLY ?=
.PHONY: attack
attack: build bin/attack ## attack a root daemon as an unprivileged user (ONLY=NAME,...); six minutes on two cores
	bin/attack -v $(if $(ONLY),--only $(ONLY))

.PHONY: test-attack
test-attack: build bin/attack ## run every attack once, for a short time; gross damage fails
	@if [ $$(id -u) = 0 ]; then bin/attack --short -v; else $(call skip,attacks need root); fi

# Planted bugs as BUG:RULES:KINDS: one of the rules must reveal it, with these kinds of faults or all.
# At this rate fewer faults excuse a held program that runs.
PLANTED := resume:stuck,native: lease:held: clock:held,stuck,late,native,answer,rejoin,control,start: \
	disk:journal:disk-full,daemon-size,policy,mode,priority
.PHONY: chaos-planted
chaos-planted: build bin/chaos ## check that the campaign finds each planted bug within 500 faults
	@mkdir -p build/planted
	@set -e; for planted in $(PLANTED); do bug=$${planted%%:*} rest=$${planted#*:}; \
		$(GO) build -tags planted_$$bug -ldflags '$(LDFLAGS)' -o build/planted/xsched-$$bug ./cmd/xsched; \
		$(CHAOS) --binary build/planted/xsched-$$bug --faults 500 --rate 2 --worlds $(WORLDS) --stop-after 1 --want-rule $${rest%:*} --only "$${rest#*:}" --out out/chaos-$$bug; \
	done

.PHONY: mutants
mutants: ## bring back known defects one by one (ONLY: these), and check that a test finds each; a quarter of an hour
	@tools/mutants $(ONLY)

.PHONY: test-python
test-python: build ## test the Python package, test/gpu and examples/serving
	@$(RUN_TESTS) python python/tests:python test/gpu examples/serving

.PHONY: test-web
test-web: ## check the types of the dashboard and run its unit tests
	@if command -v npm >/dev/null; then tools/web test; else $(call skip,no npm; run make setup); fi

.PHONY: examples
examples: build ## run every example on the virtual GPU
	@if command -v python3 >/dev/null; then examples/run-all.sh; else $(call skip,no python3); fi

.PHONY: amdlog-check
amdlog-check: build ## compare amdlog's counts with grep and awk on a generated log
	XSCHED=bin/xsched tools/amdlog-check.sh small

.PHONY: cross
cross: ## build everything for the other architecture
	@if command -v $(CROSS_CC) >/dev/null; then $(MAKE) --no-print-directory -j $(JOBS) cross-build; else $(call skip,no $(CROSS_CC)); fi

# Kubernetes' libraries take minutes for another architecture; cross-vet includes them.
.PHONY: cross-build
cross-build: $(CROSS_FILES)
	@tools/web attempt
	GOARCH=$(CROSS_ARCH) $(GO_BUILD) -o bin/xsched-$(CROSS_ARCH) ./cmd/xsched
	GOARCH=$(CROSS_ARCH) $(GO) build $$($(GO) list -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v /kube)

.PHONY: cross-vet
cross-vet: ## vet all packages and tests for the other architecture
	GOARCH=$(CROSS_ARCH) $(GO) vet ./...

.PHONY: cover
cover: all ## measure the coverage of the Go unit tests; writes out/coverage.html
	@mkdir -p out
	@$(RUN_TESTS) go -timeout 15m -skip '^TestLong' -coverpkg ./internal/...,./cmd/... -coverprofile out/coverage.txt $(filter-out %/test/e2e %/test/kube,$(shell $(GO) list ./...))
	@$(GO) tool cover -html out/coverage.txt -o out/coverage.html
	@$(GO) tool cover -func out/coverage.txt | tail -n 1

.PHONY: lint
lint: lint-go lint-kube lint-c ## run the Go and C linters

# Kubernetes' libraries take the linters longer than all other packages, so `make test-long` lints what uses them.
KUBE_FOLDERS := -e /kube -e /xsched-kube
lint_packages = $(SETUP_BIN)/golangci-lint run --allow-parallel-runners $$($(GO) list -f '{{.Dir}}' ./... | sed 's,^$(CURDIR)/,./,' | grep $(1) $(KUBE_FOLDERS))

.PHONY: lint-go
lint-go: ## run golangci-lint and gofumpt, at the versions of go.tool.mod; see lint-kube
	@if [ ! -x $(SETUP_BIN)/golangci-lint ]; then $(call skip,no golangci-lint; run make setup); else \
	$(call lint_packages,-v) && \
	unformatted=$$($(SETUP_BIN)/gofumpt -l cmd internal test tools) && \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:" $$unformatted; exit 1; fi; fi

.PHONY: lint-kube
lint-kube: ## run golangci-lint on the packages for Kubernetes
	@if [ ! -x $(SETUP_BIN)/golangci-lint ]; then $(call skip,no golangci-lint; run make setup); else $(call lint_packages,); fi

# Macros of the compiler, because cppcheck does not read the system headers.
CPPCHECK := cppcheck --quiet --error-exitcode=1 --enable=warning,portability,performance --inline-suppr --std=c11 \
	-D_GNU_SOURCE -D__linux__ -D__x86_64__ -D__LP64__=1 '-DElfW(x)=Elf64_\#\#x' -Ishim -Ishim/include -Ibuild/gen
# Pinned, because versions format differently.
CLANG_FORMAT ?= clang-format-14
C_FILES = $(shell git ls-files 'shim/*.c' 'shim/*.h' 'shim/*.inc' | grep -v _gen)
.PHONY: lint-c
lint-c: build/gen/stamp ## run cppcheck and clang-format on the C sources
	@if ! command -v cppcheck >/dev/null; then $(call skip,no cppcheck; run make setup); else \
	$(CPPCHECK) -j $(JOBS) $(filter %.c,$(SHIM_SOURCES)) $(wildcard shim/virtual/*.c shim/gpreempt/*.c shim/null/*.c shim/sensors/*.c); fi
	@if ! command -v $(CLANG_FORMAT) >/dev/null; then $(call skip,no $(CLANG_FORMAT); run make setup); else \
	$(CLANG_FORMAT) --dry-run -Werror $(C_FILES); fi

.PHONY: fmt
fmt: ## format the Go sources, and the C sources where clang-format exists
	$(SETUP_BIN)/gofumpt -w cmd internal test tools
	@if command -v $(CLANG_FORMAT) >/dev/null; then $(CLANG_FORMAT) -i $(C_FILES); else echo "fmt: C sources unchanged, no $(CLANG_FORMAT)"; fi

.PHONY: fix
fix: ## apply the fixes that the Go linters suggest
	$(SETUP_BIN)/golangci-lint run --fix ./...

.PHONY: check-commits
check-commits: ## check the subject lines of recent commits
	@tools/check-commits

.PHONY: generate
generate: ## write the generated files: wire contract, hooks, enums, hints, pictures
	$(GO) run ./tools/hintgen
	$(GO) run ./tools/wiregen
	$(GO) run ./tools/apigen
	$(GO) run ./tools/pictures

.PHONY: pictures
pictures: ## draw the timelines of docs/policies from simulated scenes
	$(GO) run ./tools/pictures

.PHONY: pictures-web
pictures-web: build ## take the pictures of the dashboard in docs/images with a browser
	$(GO) test -count 1 -run TestLongDashboardPictures ./test/operator -update

.PHONY: strategies
strategies: ## compare the strategies for launch-bound requests in the simulator: docs/strategies.md
	$(GO) run ./tools/pictures -strategies

.PHONY: capacity-table
capacity-table: ## simulate mixes of tenants on one GPU for the fleet simulator, some minutes: internal/sim/fleet/outcomes.csv
	$(GO) run ./tools/capacity -table

.PHONY: capacity
capacity: ## search how many GPUs fleets need, some minutes: figures, table and picture of docs/kubernetes/capacity.md
	$(GO) run ./tools/capacity

.PHONY: docs
docs: build ## write the documentation as a web site to out/site, and check its links and the quick start's commands
	@$(GO) run ./tools/site -out out/site
	@$(RUN_TESTS) go -count 1 -timeout 5m -run '^TestLongWalkThroughs$$' ./test/operator

.PHONY: results
results: build ## add GPU runs (RUNS=OUT_DIR/results.json ...) to docs/results; redraw page, pictures, the README table and quoted figures
	test/gpu/report.py docs/results/h200.json.gz $(RUNS) --out docs/results --name h200 --readme README.md
	$(GO) run ./tools/pictures

.PHONY: check-generated
check-generated: ## fail if a generated file differs from what `make generate` writes
	@before=$$(git ls-files -co --exclude-standard '*_gen.*' | sort | xargs sha256sum); \
	$(MAKE) --no-print-directory generate; \
	after=$$(git ls-files -co --exclude-standard '*_gen.*' | sort | xargs sha256sum); \
	if [ "$$before" != "$$after" ]; then diff <(echo "$$before") <(echo "$$after") || true; echo "generated files were stale; commit what make generate wrote"; exit 1; fi
	@if [ "$${XSCHED_CI:-}" = 1 ]; then git diff --exit-code -- '*_gen.*'; fi

include deploy/install.mk
include deploy/image.mk

.PHONY: clean
clean: ## remove everything built; keeps what `make setup` installed
	rm -rf bin build out dist
	find internal/embedded/files internal/dashboard/files -type f ! -name README -delete
