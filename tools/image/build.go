// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entry is a file or a folder of the image.
type entry struct {
	path string
	mode int64
	from string // name in the folder of the platform; empty: a folder
}

// contents are sorted by path. Nothing else is in the image: no shell, no C library. The folders are
// for mounts, because the root of a container may be read-only.
var contents = []entry{
	{path: "etc/", mode: 0o755},
	{path: "etc/xsched/", mode: 0o755},
	{path: "run/", mode: 0o755},
	{path: "run/xsched/", mode: 0o755},
	{path: "tmp/", mode: 0o1777},
	{path: "usr/", mode: 0o755},
	{path: "usr/bin/", mode: 0o755},
	{path: "usr/bin/xsched", mode: 0o755, from: "xsched"},
	{path: "usr/bin/xsched-kube", mode: 0o755, from: "xsched-kube"},
	{path: "usr/lib/", mode: 0o755},
	{path: "usr/lib/xsched/", mode: 0o755},
	{path: "usr/lib/xsched/libxsched.so", mode: 0o644, from: "libxsched.so"},
	{path: "usr/share/", mode: 0o755},
	{path: "usr/share/doc/", mode: 0o755},
	{path: "usr/share/doc/xsched/", mode: 0o755},
	{path: "usr/share/doc/xsched/LICENSE", mode: 0o644, from: "LICENSE"},
	{path: "var/", mode: 0o755},
	{path: "var/cache/", mode: 0o755},
	{path: "var/lib/", mode: 0o755},
	{path: "var/log/", mode: 0o755},
}

// spdxType is the media type of the bill of materials, and of the artifact with it.
const spdxType = "application/spdx+json"

// build is the image of one platform with its bill of materials.
type build struct {
	platform v1.Platform
	image    v1.Image
	bill     v1.Image // refers to image
	spdx     []byte
}

func newBuild(o options, platform v1.Platform, folder string) (build, error) {
	b := build{platform: platform}
	text, err := layerText(o, folder)
	if err != nil {
		return b, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return b, fmt.Errorf("compress the layer: %w", err)
	}
	labels := map[string]string{
		"org.opencontainers.image.title": "xsched", "org.opencontainers.image.description": "Preemptive GPU scheduler",
		"org.opencontainers.image.version": o.version, "org.opencontainers.image.revision": o.revision, "org.opencontainers.image.licenses": ourLicence,
	}
	base, err := mutate.ConfigFile(ociImage(types.OCIConfigJSON), &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant, Created: v1.Time{Time: o.created},
		Config: v1.Config{Entrypoint: []string{"/usr/bin/xsched"}, Env: []string{"PATH=/usr/bin"}, WorkingDir: "/", Labels: labels},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return b, fmt.Errorf("configure the image: %w", err)
	}
	image, err := mutate.Append(base, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "make image"},
	})
	if err != nil {
		return b, fmt.Errorf("add the layer: %w", err)
	}
	b.image, _ = mutate.Annotations(image, labels).(v1.Image)
	if b.spdx, err = billOf(o, platform, folder); err != nil {
		return b, fmt.Errorf("bill of materials: %w", err)
	}
	b.bill, err = attach(b.image, b.spdx)
	return b, err
}

func ociImage(config types.MediaType) v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
}

// attach returns an artifact with the bill of materials that refers to an image.
func attach(image v1.Image, spdx []byte) (v1.Image, error) {
	digest, err := image.Digest()
	if err != nil {
		return nil, fmt.Errorf("digest: %w", err)
	}
	size, err := image.Size()
	if err != nil {
		return nil, fmt.Errorf("size: %w", err)
	}
	bill, err := mutate.Append(ociImage(spdxType), mutate.Addendum{Layer: static.NewLayer(spdx, spdxType), MediaType: spdxType})
	if err != nil {
		return nil, fmt.Errorf("attach the bill of materials: %w", err)
	}
	out, _ := mutate.Subject(bill, v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: size}).(v1.Image)
	return out, nil
}

// layerText is the archive of contents: sorted, owned by root, all times that of the commit.
func layerText(o options, folder string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range contents {
		header := &tar.Header{Name: e.path, Mode: e.mode, ModTime: o.created, Typeflag: tar.TypeDir, Format: tar.FormatPAX}
		var text []byte
		if e.from != "" {
			var err error
			if text, err = os.ReadFile(filepath.Join(folder, e.from)); err != nil {
				return nil, fmt.Errorf("read a file of the image: %w", err)
			}
			header.Typeflag, header.Size = tar.TypeReg, int64(len(text))
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("archive %s: %w", e.path, err)
		}
		if _, err := w.Write(text); err != nil {
			return nil, fmt.Errorf("archive %s: %w", e.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return out.Bytes(), nil
}

func indented(value any) ([]byte, error) {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return append(text, '\n'), nil
}
