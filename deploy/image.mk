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
