# SPDX-License-Identifier: Apache-2.0
#
# Staging of what a machine needs, below $(DESTDIR)$(PREFIX). Packages are built from the same targets.
# SHIM selects the library of another architecture: SHIM=build/arm64/libxsched.so.

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
SHIM ?= build/libxsched.so

# Upstream's names of the library. Its programs preload the first kind and link with the second. The
# SONAME is the same for all, so that a program has one copy of the library whatever it was linked with.
PRELOAD_NAMES := libshimcuda.so libshimhip.so libshimopencl.so
LINK_NAMES := libxsched.so libpreempt.so libhalcuda.so libhalhip.so
# Not wire.h: the contract with the daemon is no interface for programs.
PUBLIC_HEADERS = $(filter-out shim/include/xsched/wire%,$(shell find shim/include/xsched -name '*.h'))

.PHONY: install-lib
install-lib: $(SHIM) ## stage the library below DESTDIR and PREFIX (/usr/local): SONAME, upstream's names for LD_PRELOAD
	@install -d $(DESTDIR)$(LIBDIR)
	install -m 644 $(SHIM) $(DESTDIR)$(LIBDIR)/$(SONAME)
	@for name in $(PRELOAD_NAMES); do ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$$name; done

.PHONY: install-dev
install-dev: install-lib ## stage headers, link names and xsched.pc for programs that use the C interface
	@set -e; for header in $(PUBLIC_HEADERS); do install -D -m 644 $$header $(DESTDIR)$(INCLUDEDIR)/$${header#shim/include/}; done
	@for name in $(LINK_NAMES); do ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$$name; done
	@install -d $(DESTDIR)$(PKGCONFIGDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION:v%=%)|' \
		deploy/xsched.pc.in > $(DESTDIR)$(PKGCONFIGDIR)/xsched.pc
	@chmod 644 $(DESTDIR)$(PKGCONFIGDIR)/xsched.pc

.PHONY: install-gpreempt
install-gpreempt: build/gpreempt/libgpreempt.so ## stage libgpreempt and its header below DESTDIR and PREFIX (/usr/local)
	install -D -m 644 build/gpreempt/libgpreempt.so $(DESTDIR)$(LIBDIR)/libgpreempt.so
	@ln -sf libgpreempt.so $(DESTDIR)$(LIBDIR)/libgpreempt_poc.so
	install -D -m 644 shim/include/gpreempt.h $(DESTDIR)$(INCLUDEDIR)/gpreempt.h
