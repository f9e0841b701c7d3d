// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Images are on the node already; pods use them with imagePullPolicy Never.
const (
	busyboxImage = "localhost/busybox:1"
	pauseImage   = "localhost/pause:1"
)

// image is a container image of one layer, in the format that `docker save` writes.
type image struct {
	name  string
	cmd   []string
	env   []string
	layer bytes.Buffer
	files *tar.Writer
	err   error
}

// newImage returns an image with busybox for its shell.
func newImage(name string, cmd ...string) *image {
	m := &image{name: name, cmd: cmd, env: []string{"PATH=/bin"}}
	m.files = tar.NewWriter(&m.layer)
	for _, dir := range []string{"bin/", "dev/", "etc/", "proc/", "run/", "sys/", "tmp/"} {
		m.add(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	m.copy("bin/busybox", program("busybox"))
	applets, err := exec.Command(program("busybox"), "--list").Output()
	if err != nil {
		m.err = err
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			m.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	return m
}

func (m *image) add(header *tar.Header, content []byte) {
	if m.err != nil {
		return
	}
	header.Size = int64(len(content))
	if m.err = m.files.WriteHeader(header); m.err == nil {
		_, m.err = m.files.Write(content)
	}
}

// copy adds a program or library of the host.
func (m *image) copy(name, from string) {
	content, err := os.ReadFile(from)
	if m.err == nil {
		m.err = err
	}
	m.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755}, content)
}

// text adds a file with this content.
func (m *image) text(name, content string) {
	m.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(content))
}

// copyProgram adds a program and the shared libraries that it loads.
func (m *image) copyProgram(name, from string) {
	m.copy(name, from)
	m.copyLibraries(from)
}

// copyLibraries adds the shared libraries that a program loads, at their paths on the host.
func (m *image) copyLibraries(from string) {
	text, err := exec.Command("ldd", from).Output()
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("ldd %s: %w", from, err)
	}
	for line := range strings.Lines(string(text)) { // "libc.so.6 => /lib/.../libc.so.6 (0x...)" or "/lib64/ld... (0x...)"
		fields := strings.Fields(line)
		if at := slices.IndexFunc(fields, filepath.IsAbs); at >= 0 {
			m.copy(strings.TrimPrefix(fields[at], "/"), fields[at])
		}
	}
}

// write writes the image to a file.
func (m *image) write(file string) error {
	if m.err == nil {
		m.err = m.files.Close()
	}
	if m.err != nil {
		return fmt.Errorf("image %s: %w", m.name, m.err)
	}
	sum := sha256.Sum256(m.layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Env": m.env, "Cmd": m.cmd},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{m.name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	out := &image{files: tar.NewWriter(&archive)}
	out.text("manifest.json", string(manifest))
	out.text("config.json", string(config))
	out.text("layer.tar", m.layer.String())
	if out.err == nil {
		out.err = out.files.Close()
	}
	if out.err != nil {
		return out.err
	}
	return os.WriteFile(file, archive.Bytes(), 0o644)
}

// load brings the image to the node.
func (m *image) load() error {
	file, err := os.CreateTemp("", "image-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_ = file.Close()
	if err := m.write(file.Name()); err != nil {
		return err
	}
	return loadArchive(file.Name())
}

func loadArchive(file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_, err := output(ctx, "", "ctr", "-a", containerdSocket, "-n", "k8s.io", "images", "import", file)
	return err
}

// Import brings an image archive to the node: OCI, or as `docker save` writes it.
func (c *Cluster) Import(t testing.TB, file string) {
	t.Helper()
	if err := loadArchive(file); err != nil {
		t.Fatal(err)
	}
}

// importBase brings the images to the node that it and most pods need.
func importBase() error {
	pause := newImage(pauseImage, "sh", "-c", "trap exit TERM INT; while :; do sleep 3600 & wait; done")
	if err := pause.load(); err != nil {
		return err
	}
	return newImage(busyboxImage, "sh").load()
}
