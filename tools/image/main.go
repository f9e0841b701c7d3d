// SPDX-License-Identifier: Apache-2.0

// Command image builds the container image without a container engine: an OCI layout, an archive for
// each platform that container engines load, and a bill of materials. The same inputs give the same bytes.
//
//	image -out FOLDER -name NAME -version V [-revision R] [-epoch SECONDS] PLATFORM=FOLDER...
//
// PLATFORM is such as linux/amd64; its folder has the files of the image (see contents).
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// options describe the release.
type options struct {
	out, name, version, revision string
	created                      time.Time
}

func run(w io.Writer, args []string) error {
	var o options
	var epoch int64
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&o.out, "out", "", "write to `FOLDER`, which is replaced")
	f.StringVar(&o.name, "name", "localhost/xsched", "repository of the image")
	f.StringVar(&o.version, "version", "", "release, and the tag of the image")
	f.StringVar(&o.revision, "revision", "", "commit of the sources")
	f.Int64Var(&epoch, "epoch", 0, "time of all files, in seconds since 1970")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.out == "" || o.version == "" || f.NArg() == 0 {
		return errors.New("missing argument; use -out FOLDER -version V PLATFORM=FOLDER")
	}
	o.created = time.Unix(epoch, 0).UTC()
	var builds []build
	for _, arg := range f.Args() {
		text, folder, ok := strings.Cut(arg, "=")
		platform, err := v1.ParsePlatform(text)
		if !ok || err != nil || platform.OS == "" || platform.Architecture == "" {
			return fmt.Errorf("%q is no platform with its folder; use OS/ARCHITECTURE=FOLDER", arg)
		}
		b, err := newBuild(o, *platform, folder)
		if err != nil {
			return fmt.Errorf("image for %s: %w", text, err)
		}
		builds = append(builds, b)
	}
	return write(w, o, builds)
}

// write writes the layout and, for each platform, the archive and the bill of materials. It prints
// one line for each image.
func write(w io.Writer, o options, builds []build) error {
	tag, err := name.NewTag(o.name + ":" + o.version)
	if err != nil {
		return fmt.Errorf("name of the image: %w", err)
	}
	if err := os.RemoveAll(o.out); err != nil {
		return fmt.Errorf("replace the output: %w", err)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("create the output: %w", err)
	}
	oci, err := layout.Write(filepath.Join(o.out, "oci"), mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	named := layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": o.version, "io.containerd.image.name": tag.String(),
	})
	if len(builds) == 1 {
		err = oci.AppendImage(builds[0].image, named, layout.WithPlatform(builds[0].platform))
	} else {
		all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, b := range builds {
			all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: b.image, Descriptor: v1.Descriptor{Platform: &b.platform}})
		}
		if err = oci.AppendIndex(all, named); err == nil {
			err = print1(w, tag, "all platforms", all)
		}
	}
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	for _, b := range builds {
		if err := oci.AppendImage(b.bill, layout.WithPlatform(b.platform)); err != nil {
			return fmt.Errorf("write the bill of materials: %w", err)
		}
		base := filepath.Join(o.out, fmt.Sprintf("xsched-%s-%s-%s", o.version, b.platform.OS, b.platform.Architecture))
		if err := tarball.WriteToFile(base+".tar", tag, b.image); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
		if err := os.WriteFile(base+".spdx.json", b.spdx, 0o644); err != nil { //nolint:gosec // public
			return fmt.Errorf("write the bill of materials: %w", err)
		}
		if err := print1(w, tag, b.platform.String(), b.image); err != nil {
			return err
		}
	}
	return nil
}

// print1 prints name, platform, digest and compressed size.
func print1(w io.Writer, tag name.Tag, platform string, of mutate.Appendable) error {
	digest, err := of.Digest()
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	text := ""
	if image, ok := of.(v1.Image); ok {
		layers, err := image.Layers()
		if err != nil {
			return fmt.Errorf("size: %w", err)
		}
		var size int64
		for _, l := range layers {
			n, err := l.Size()
			if err != nil {
				return fmt.Errorf("size: %w", err)
			}
			size += n
		}
		text = fmt.Sprintf("  %.1f MB", float64(size)/1e6)
	}
	_, err = fmt.Fprintf(w, "%s  %s  %s%s\n", tag, platform, digest, text)
	return err
}
