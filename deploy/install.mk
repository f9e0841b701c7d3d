# SPDX-License-Identifier: Apache-2.0
#
# Installation below $(DESTDIR)$(PREFIX), and packages of the same files in dist/.
# ARCH selects the architecture: the host's, or the one of the cross build.

prefix ?= /usr/local
PREFIX ?= $(prefix)
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
CMAKEDIR ?= $(LIBDIR)/cmake/XSched
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSCONFDIR ?= /etc
# Below DATADIR; Debian's zsh has a folder of its own for packages.
ZSHDIR ?= zsh/site-functions

ARCH ?= $(HOST_ARCH)
ARCH_DIR = build$(if $(filter $(CROSS_ARCH),$(ARCH)),/$(ARCH))
SHIM ?= $(ARCH_DIR)/libxsched.so
PROGRAM ?= bin/xsched
RELEASE := $(VERSION:v%=%)
# The file, which has the SONAME and the other names as links.
LIBRARY := $(SONAME).$(subst $(empty) $(empty),.,$(wordlist 2,3,$(subst ., ,$(firstword $(subst -, ,$(RELEASE))))))

# Reproducible packages: all times are that of the commit.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# Upstream's names of the library, and of the program with the reports' queue finder. Upstream's programs
# preload the first kind and link with the last. The SONAME is the same for all, so that a program has one
# copy of the library whatever it was linked with.
PRELOAD_NAMES := libshimcuda.so libshimhip.so libshimopencl.so
TOOL_NAMES := xserver xcli x11_monitor x11_launcher queue_finder
LINK_NAMES := libxsched.so libpreempt.so libhalcuda.so libhalhip.so libhalopencl.so
# Not wire.h: the contract with the daemon is no interface for programs.
PUBLIC_HEADERS = $(filter-out shim/include/xsched/wire%,$(shell find shim/include/xsched -name '*.h'))
UNITS := $(wildcard deploy/systemd/*.service deploy/systemd/*.slice)
CONFIG := $(wildcard deploy/config.yaml)

# ---- parts ----------------------------------------------------------------------

.PHONY: install-lib
install-lib: $(SHIM) ## stage the library below DESTDIR and PREFIX (/usr/local): SONAME, upstream's names for LD_PRELOAD
	@install -d $(DESTDIR)$(LIBDIR)
	install -m 644 $(SHIM) $(DESTDIR)$(LIBDIR)/$(LIBRARY)
	@ln -sf $(LIBRARY) $(DESTDIR)$(LIBDIR)/$(SONAME)
	@for name in $(PRELOAD_NAMES); do ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$$name; done

.PHONY: install-dev
install-dev: install-lib ## stage headers, link names, xsched.pc and the CMake package for programs that use the C interface
	@set -e; for header in $(PUBLIC_HEADERS); do install -D -m 644 $$header $(DESTDIR)$(INCLUDEDIR)/$${header#shim/include/}; done
	@for name in $(LINK_NAMES); do ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$$name; done
	@install -d $(DESTDIR)$(PKGCONFIGDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(RELEASE)|' \
		deploy/xsched.pc.in > $(DESTDIR)$(PKGCONFIGDIR)/xsched.pc
	@chmod 644 $(DESTDIR)$(PKGCONFIGDIR)/xsched.pc
	@install -d $(DESTDIR)$(CMAKEDIR)
	@set -e; for file in XSchedConfig XSchedConfigVersion; do \
		sed -e 's|@INCLUDE@|$(shell realpath -ms --relative-to=$(CMAKEDIR) $(INCLUDEDIR))|; s|@LIBRARY@|$(SONAME)|; s|@VERSION@|$(RELEASE)|' \
			deploy/cmake/$$file.cmake.in > $(DESTDIR)$(CMAKEDIR)/$$file.cmake; chmod 644 $(DESTDIR)$(CMAKEDIR)/$$file.cmake; done

.PHONY: install-gpreempt
install-gpreempt: build/gpreempt/libgpreempt.so ## stage libgpreempt and its header below DESTDIR and PREFIX (/usr/local)
	install -D -m 644 build/gpreempt/libgpreempt.so $(DESTDIR)$(LIBDIR)/libgpreempt.so
	@ln -sf libgpreempt.so $(DESTDIR)$(LIBDIR)/libgpreempt_poc.so
	install -D -m 644 shim/include/gpreempt.h $(DESTDIR)$(INCLUDEDIR)/gpreempt.h
	@ln -sf gpreempt.h $(DESTDIR)$(INCLUDEDIR)/libgpreempt_poc.h

# PROGRAM with its manual, completions, units and files for monitoring. It exists already.
.PHONY: install-program
install-program:
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(BINDIR)/xsched
	@for name in $(TOOL_NAMES); do ln -sf xsched $(DESTDIR)$(BINDIR)/$$name; done
	@$(GO) run ./tools/manual -version $(RELEASE) -zsh $(ZSHDIR) -out $(DESTDIR)$(DATADIR)
	@set -e; for unit in $(UNITS); do install -d $(DESTDIR)$(UNITDIR); \
		sed 's|/usr/bin/xsched|$(BINDIR)/xsched|' $$unit > $(DESTDIR)$(UNITDIR)/$${unit##*/}; done
	@install -d $(DESTDIR)$(DATADIR)/doc/xsched
	@install -m 644 LICENSE README.md CHANGELOG.md $(DESTDIR)$(DATADIR)/doc/xsched
	@install -D -m 644 -t $(DESTDIR)$(DATADIR)/xsched/prometheus $(addprefix deploy/prometheus/,prometheus.yml xsched-alerts.yml xsched-fleet.yml)
	@install -D -m 644 -t $(DESTDIR)$(DATADIR)/xsched/grafana deploy/grafana/*.json
	@set -e; for config in $(CONFIG); do install -D -m 644 $$config $(DESTDIR)$(SYSCONFDIR)/xsched/config.yaml; done

# KUBE_PROGRAM, which is kubectl's plugin under another name, with its manual, completions and the files for a cluster.
.PHONY: install-kube
install-kube:
	install -D -m 755 $(KUBE_PROGRAM) $(DESTDIR)$(BINDIR)/xsched-kube
	@ln -sf xsched-kube $(DESTDIR)$(BINDIR)/kubectl-xsched
	@$(GO) run ./tools/manual/kube -version $(RELEASE) -zsh $(ZSHDIR) -out $(DESTDIR)$(DATADIR)
	@install -D -m 644 -t $(DESTDIR)$(DATADIR)/doc/xsched-kube LICENSE
	@install -D -m 644 -t $(DESTDIR)$(DATADIR)/xsched/kubernetes deploy/kubernetes/*.yaml
	@mkdir -p $(DESTDIR)$(DATADIR)/xsched/helm && cp -r deploy/helm/xsched $(DESTDIR)$(DATADIR)/xsched/helm/ && chmod -R u=rwX,go=rX $(DESTDIR)$(DATADIR)/xsched/helm

# ---- installation ---------------------------------------------------------------

# All files are staged first; deploy/copy then records what it puts where.
STAGE ?= build/stage
MANIFEST = $(DATADIR)/xsched/installed

# With sudo the owner of this folder builds and stages, else root's files would be in the way of the next build.
owner = $(if $(filter 0,$(shell id -u)),$(filter-out 0,$(filter $(shell stat -c %u .),$(SUDO_UID))))
AS_OWNER = $(if $(owner),setpriv --reuid $(owner) --regid $(SUDO_GID) --init-groups env HOME="$$(getent passwd $(owner) | cut -d : -f 6)")

# The loader's cache, which only root writes. In DESTDIR, the package's own scripts do this.
LDCONFIG ?= ldconfig
load = $(if $(DESTDIR),,@[ "$$(id -u)" != 0 ] || PATH="$$PATH:/sbin:/usr/sbin" sh -c '! command -v $(firstword $(LDCONFIG)) >/dev/null || $(LDCONFIG)' || \
	echo "$@: the loader's cache is old; run ldconfig" >&2)

.PHONY: install
install: ## install program, library, headers, manual and units below DESTDIR and PREFIX (/usr/local)
	@$(AS_OWNER) $(MAKE) --no-print-directory install-stage
	deploy/copy install $(STAGE)/install '$(DESTDIR)' $(MANIFEST)
	$(load)

.PHONY: install-stage
install-stage: build
	@rm -rf $(STAGE)/install
	@$(MAKE) --no-print-directory -s install-program install-dev DESTDIR=$(STAGE)/install PREFIX=$(PREFIX)

# Upstream's targets. The platforms are one library here.
INSTALL_PATH ?= output
.PHONY: cuda hip opencl
cuda hip opencl: ## upstream's targets: install program, library and headers into INSTALL_PATH (output)
	@$(MAKE) --no-print-directory install DESTDIR= PREFIX='$(abspath $(INSTALL_PATH))' SYSCONFDIR='$(abspath $(INSTALL_PATH))/etc' LDCONFIG=true

.PHONY: uninstall
uninstall: ## remove what `make install` put below DESTDIR and PREFIX, and nothing else
	deploy/copy uninstall '$(DESTDIR)' $(MANIFEST)
	$(load)

# ---- packages -------------------------------------------------------------------

LIBDIR_amd64 := /usr/lib/x86_64-linux-gnu
LIBDIR_arm64 := /usr/lib/aarch64-linux-gnu
NFPM := $(SETUP_BIN)/nfpm
DIST ?= dist

# The only tool of packages; `make setup` builds it, too, with those of tests and linters.
$(NFPM):
	$(call short,TOOL,$@)
	$(Q)GOBIN=$(CURDIR)/$(@D) CGO_ENABLED=0 $(GO) install -modfile=go.tool.mod github.com/goreleaser/nfpm/v2/cmd/nfpm

.PHONY: wheel
wheel: $(SHIM) ## build the Python wheel, which contains the library, in dist
	@XSCHED_VERSION=$(RELEASE) python3 python/backend.py --library $(SHIM) --out $(DIST)

ARCHES ?= $(HOST_ARCH) $(if $(shell command -v $(CROSS_CC)),$(CROSS_ARCH))
.PHONY: packages
packages: export TRIM := -trimpath
packages: $(NFPM) ## build deb, rpm, tarball and wheel in dist, for ARCHES: those that can be built here
	@rm -rf $(DIST) && mkdir -p $(DIST)
	@tools/web build
	@for arch in $(ARCHES); do $(MAKE) --no-print-directory packages-of ARCH=$$arch; done
	@cd $(DIST) && sha256sum -- xsched[-_]* > SHA256SUMS && ls -l

# $(call staged,folder,prefix,libdir,more): the files of one package; a wheel is among them
staged = rm -rf $(1) && $(MAKE) --no-print-directory -s install-program install-dev PROGRAM=$(PROGRAM) DESTDIR=$(1) PREFIX=$(2) LIBDIR=$(3) CONFIG= $(4) && \
	install -D -m 644 -t $(1)$(2)/share/xsched $(DIST)/xsched-*_$(if $(filter amd64,$(ARCH)),x86_64,aarch64).whl && \
	find $(1) -exec touch -h -d @$(SOURCE_DATE_EPOCH) {} +
PACKAGE = xsched-$(RELEASE)-linux-$(ARCH)

.PHONY: packages-of
packages-of: PROGRAM = $(STAGE)/xsched-$(ARCH)
packages-of: wheel $(if $(filter $(HOST_ARCH),$(ARCH)),$(EMBEDDED_FILES),$(CROSS_FILES))
	GOARCH=$(ARCH) $(GO_BUILD) -o $(PROGRAM) ./cmd/xsched
	@$(call staged,$(STAGE)/deb,/usr,$(LIBDIR_$(ARCH)),ZSHDIR=zsh/vendor-completions)
	@$(call staged,$(STAGE)/rpm,/usr,/usr/lib64)
	@$(call staged,$(STAGE)/tar,/usr/local,/usr/local/lib)
	@for kind in deb rpm; do \
		sed -e 's|@VERSION@|$(RELEASE)|; s|@ARCH@|$(ARCH)|; s|@TREE@|$(STAGE)/'$$kind'|' $(if $(CONFIG),-e 's|\#CONFIG ||') deploy/nfpm.yaml > $(STAGE)/$$kind.yaml && \
		$(NFPM) package --config $(STAGE)/$$kind.yaml --packager $$kind --target $(DIST) >/dev/null; \
	done
	@tar -C $(STAGE)/tar/usr/local --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$(SOURCE_DATE_EPOCH) \
		--transform 's,^\.,$(PACKAGE),' -cf - . | gzip -n9 > $(DIST)/$(PACKAGE).tar.gz

# The programs for Kubernetes are a package of their own: they need no xsched on the machine of an administrator, and take
# minutes to build.
.PHONY: packages-kube
packages-kube: export TRIM := -trimpath
packages-kube: $(NFPM) ## build deb, rpm and tarball of xsched-kube and the kubectl plugin in dist/kube, for ARCHES
	@rm -rf $(DIST)/kube && mkdir -p $(DIST)/kube
	@for arch in $(ARCHES); do $(MAKE) --no-print-directory packages-kube-of ARCH=$$arch; done
	@cd $(DIST)/kube && sha256sum -- xsched-kube* > SHA256SUMS && ls -l

# $(call staged_kube,folder,prefix,more): the files of one package
staged_kube = rm -rf $(1) && $(MAKE) --no-print-directory -s install-kube KUBE_PROGRAM=$(KUBE_PROGRAM) DESTDIR=$(1) PREFIX=$(2) $(3) && \
	find $(1) -exec touch -h -d @$(SOURCE_DATE_EPOCH) {} +
KUBE_PACKAGE = xsched-kube-$(RELEASE)-linux-$(ARCH)

.PHONY: packages-kube-of
packages-kube-of: KUBE_PROGRAM = $(STAGE)/xsched-kube-$(ARCH)
packages-kube-of: $(if $(filter $(HOST_ARCH),$(ARCH)),$(EMBEDDED_FILES),$(CROSS_FILES))
	GOARCH=$(ARCH) $(GO_BUILD) -o $(KUBE_PROGRAM) ./cmd/xsched-kube
	@$(call staged_kube,$(STAGE)/kube-deb,/usr,ZSHDIR=zsh/vendor-completions)
	@$(call staged_kube,$(STAGE)/kube-rpm,/usr)
	@$(call staged_kube,$(STAGE)/kube-tar,/usr/local)
	@for kind in deb rpm; do \
		sed -e 's|@VERSION@|$(RELEASE)|; s|@ARCH@|$(ARCH)|; s|@TREE@|$(STAGE)/kube-'$$kind'|' deploy/nfpm-kube.yaml > $(STAGE)/kube-$$kind.yaml && \
		$(NFPM) package --config $(STAGE)/kube-$$kind.yaml --packager $$kind --target $(DIST)/kube >/dev/null; \
	done
	@tar -C $(STAGE)/kube-tar/usr/local --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$(SOURCE_DATE_EPOCH) \
		--transform 's,^\.,$(KUBE_PACKAGE),' -cf - . | gzip -n9 > $(DIST)/kube/$(KUBE_PACKAGE).tar.gz
