# SPDX-License-Identifier: Apache-2.0
#
# The container image, built without a container engine. The same commit gives the same digest, in any
# folder and on any machine with the same compilers.

# Repository of the image; the tag is the release.
IMAGE ?= localhost/xsched
IMAGE_ARCHES ?= $(HOST_ARCH)
IMAGE_DIR ?= $(DIST)/image

.PHONY: image
image: export TRIM := -trimpath -buildvcs=false
image: ## build the container image in dist/image, for IMAGE_ARCHES (this machine's); prints name, digest and size
	@tools/web attempt
	@for arch in $(IMAGE_ARCHES); do $(MAKE) --no-print-directory -s image-of ARCH=$$arch; done
	@$(GO) run ./tools/image -out $(IMAGE_DIR) -name $(IMAGE) -version $(RELEASE) -revision '$(COMMIT)' -epoch $(SOURCE_DATE_EPOCH) \
		$(foreach arch,$(IMAGE_ARCHES),linux/$(arch)=$(STAGE)/image-$(arch))

# The files of one architecture.
.PHONY: image-of
image-of: $(if $(filter $(HOST_ARCH),$(ARCH)),$(EMBEDDED_FILES),$(CROSS_FILES)) $(SHIM)
	@mkdir -p $(STAGE)/image-$(ARCH)
	GOARCH=$(ARCH) $(GO_BUILD) -o $(STAGE)/image-$(ARCH)/xsched ./cmd/xsched
	GOARCH=$(ARCH) $(GO_BUILD) -o $(STAGE)/image-$(ARCH)/xsched-kube ./cmd/xsched-kube
	@install -m 644 $(SHIM) $(STAGE)/image-$(ARCH)/libxsched.so
	@install -m 644 LICENSE $(STAGE)/image-$(ARCH)/LICENSE

# The same sources as another release, for the test of an upgrade: with another version, and with another
# library for programs.
NEXT_DIR := build/next
NEXT_RELEASE := $(basename $(RELEASE)).99

.PHONY: image-next
image-next: build/libxsched.so
	@mkdir -p $(NEXT_DIR)
	@{ cat $<; echo $(NEXT_RELEASE); } > $(NEXT_DIR)/libxsched.so
	@echo '{"Replace": {"$(CURDIR)/internal/embedded/files/$(HOST_ARCH)/libxsched.so": "$(CURDIR)/$(NEXT_DIR)/libxsched.so"}}' > $(NEXT_DIR)/overlay.json
	@GOFLAGS='$(GOFLAGS) -overlay=$(CURDIR)/$(NEXT_DIR)/overlay.json' $(MAKE) --no-print-directory -s image \
		VERSION=$(NEXT_RELEASE) IMAGE_DIR=$(DIST)/image-next STAGE=$(NEXT_DIR)/stage SHIM=$(NEXT_DIR)/libxsched.so
