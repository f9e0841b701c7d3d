// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program is this test's own binary, which has modules. Its large sections are zero, to compress fast.
var program = sync.OnceValues(func() ([]byte, error) {
	name, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	for _, s := range file.Sections {
		if s.FileSize > 1<<16 && s.Type != elf.SHT_NOBITS && s.Name != ".go.buildinfo" {
			clear(text[s.Offset : s.Offset+s.FileSize])
		}
	}
	return text, nil
})

// inputs makes the folder of a platform.
func inputs(t *testing.T) string {
	t.Helper()
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for name, text := range map[string][]byte{
		"libxsched.so": []byte("library"), "LICENSE": []byte("licence"), "xsched": binary, "xsched-kube": binary,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func build1(t *testing.T, args ...string) (folder, printed string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image")
	var text bytes.Buffer
	if err := run(&text, append([]string{"-out", out, "-version", "1.2.3", "-revision", "abc", "-epoch", "1700000000"}, args...)); err != nil {
		t.Fatal(err)
	}
	return out, text.String()
}

// TestReproducible builds twice from inputs with other times, modes and folders.
func TestReproducible(t *testing.T) {
	a, b := inputs(t), inputs(t)
	old := time.Unix(1, 0)
	if err := os.Chtimes(filepath.Join(b, "LICENSE"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(b, "libxsched.so"), 0o755); err != nil { //nolint:gosec // another mode
		t.Fatal(err)
	}
	first, text := build1(t, "linux/amd64="+a, "linux/arm64="+a)
	second, again := build1(t, "linux/amd64="+b, "linux/arm64="+b)
	if text != again {
		t.Errorf("two builds differ:\n%s%s", text, again)
	}
	if lines := strings.Count(text, "sha256:"); lines != 3 {
		t.Errorf("%d digests printed, want 3: index and two platforms:\n%s", lines, text)
	}
	files := map[string][]byte{}
	for i, out := range []string{first, second} {
		n := 0
		err := filepath.WalkDir(out, func(name string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			n++
			relative, _ := filepath.Rel(out, name)
			got, err := os.ReadFile(name)
			if i == 0 {
				files[relative] = got
			} else if !bytes.Equal(files[relative], got) {
				t.Errorf("%s differs", relative)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if n != len(files) {
			t.Errorf("%d files, want %d", n, len(files))
		}
	}
}

// TestImage reads the archive and the layout back.
func TestImage(t *testing.T) {
	out, _ := build1(t, "-name", "example.org/x/xsched", "linux/amd64="+inputs(t))
	archive := filepath.Join(out, "xsched-1.2.3-linux-amd64.tar")
	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image, validate.Fast); err != nil {
		t.Error(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "amd64" || !config.Created.Equal(time.Unix(1700000000, 0)) || config.Config.Entrypoint[0] != "/usr/bin/xsched" {
		t.Errorf("unexpected configuration: %+v", config)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil || len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{"example.org/x/xsched:1.2.3"}) {
		t.Errorf("manifest %+v, %v", manifest, err)
	}
	checkFiles(t, image)

	index, err := layout.ImageIndexFromPath(filepath.Join(out, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := index.IndexManifest()
	if err != nil || len(entries.Manifests) != 2 {
		t.Fatalf("layout %+v, %v; want the image and its bill of materials", entries, err)
	}
	bill, err := index.Image(entries.Manifests[1].Digest)
	if err != nil {
		t.Fatal(err)
	}
	attached, err := bill.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if attached.Subject == nil || attached.Subject.Digest != entries.Manifests[0].Digest || attached.Config.MediaType != spdxType {
		t.Errorf("the bill of materials does not refer to the image: %+v", attached)
	}
	layers, err := bill.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := os.ReadFile(filepath.Join(out, "xsched-1.2.3-linux-amd64.spdx.json"))
	if err != nil || !bytes.Equal(text, beside) {
		t.Errorf("the attached bill of materials differs from the one beside the image (%v)", err)
	}
}

// checkFiles checks the only layer: sorted, of root, one time, and no folder is missing.
func checkFiles(t *testing.T, image v1.Image) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v; want 1", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(1700000000, 0)) {
			t.Errorf("%s: owner %d:%d, time %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		if parent := filepath.Dir(strings.TrimSuffix(h.Name, "/")); parent != "." && !slices.Contains(names, parent+"/") {
			t.Errorf("%s comes before its folder", h.Name)
		}
		names = append(names, h.Name)
	}
	if !slices.IsSorted(names) {
		t.Errorf("not sorted: %q", names)
	}
	for _, want := range []string{"usr/bin/xsched", "usr/bin/xsched-kube", "usr/lib/xsched/libxsched.so"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestBill checks the fields that SPDX 2.3 requires, all references, and that each module is listed.
func TestBill(t *testing.T) {
	folder := inputs(t)
	text, err := billOf(options{version: "1.2.3", created: time.Unix(1700000000, 0).UTC()}, v1.Platform{OS: "linux", Architecture: "amd64"}, folder)
	if err != nil {
		t.Fatal(err)
	}
	var raw struct {
		Packages []map[string]any `json:"packages"`
	}
	var doc document
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.ID != "SPDXRef-DOCUMENT" || doc.Name == "" ||
		!strings.HasPrefix(doc.Namespace, "https://") || strings.Contains(doc.Namespace, "#") || len(doc.Creation.Creators) == 0 || doc.Creation.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("a required field is missing or wrong: %+v", doc)
	}
	ids := map[string]bool{doc.ID: true}
	listed := map[string]string{}
	for i, p := range doc.Packages {
		for _, field := range []string{"SPDXID", "name", "downloadLocation", "filesAnalyzed", "licenseConcluded", "licenseDeclared", "copyrightText"} {
			if _, ok := raw.Packages[i][field]; !ok {
				t.Errorf("package %q has no %s", p.Name, field)
			}
		}
		if ids[p.ID] || notInID.MatchString(p.ID) || !strings.HasPrefix(p.ID, "SPDXRef-") {
			t.Errorf("identifier %q is invalid or not unique", p.ID)
		}
		ids[p.ID] = true
		listed[p.Name] = p.Version
	}
	linked := map[string]bool{}
	for _, r := range doc.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("relationship %v names an unknown element", r)
		}
		linked[r.From+" "+r.Kind+" "+r.To] = true
	}
	info, err := buildinfo.ReadFile(filepath.Join(folder, "xsched"))
	if err != nil || len(info.Deps) == 0 {
		t.Fatalf("%d modules, %v", len(info.Deps), err)
	}
	for _, m := range modulesOf(info) {
		if listed[m.Path] != m.Version {
			t.Errorf("module %s %s: listed with version %q", m.Path, m.Version, listed[m.Path])
		}
		for _, program := range []string{"xsched", "xsched-kube"} {
			if !linked["SPDXRef-file-"+program+" STATIC_LINK "+module(m).ID] {
				t.Errorf("module %s is not linked with %s", m.Path, program)
			}
		}
	}
}

func TestMissingInput(t *testing.T) {
	folder := inputs(t)
	if err := os.Remove(filepath.Join(folder, "libxsched.so")); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "image")
	for _, args := range [][]string{
		{"-out", out, "-version", "1", "linux/amd64=" + folder}, // no library
		{"-out", out, "-version", "1", "linux=" + folder},
		{"-out", out, "-version", "1"},
		{"-out", out, "-version", "bad tag", "linux/amd64=" + inputs(t)},
	} {
		if err := run(io.Discard, args); err == nil {
			t.Errorf("image %q succeeded", args)
		}
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("a failed build left %s (%v)", out, err)
	}
}
