// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/doctor"
)

// part is one file of a support bundle.
type part struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Bytes int    `json:"bytes"`
	Error string `json:"error,omitempty"` // why it is empty
	data  []byte
}

// manifest is the first file of a bundle.
type manifest struct {
	Version  string    `json:"version"` // of this program
	Created  time.Time `json:"created"`
	Redacted bool      `json:"redacted"`
	Files    []part    `json:"files"`
}

const (
	bundleTime = 30 * time.Second // for all questions to the daemon
	maxHost    = 64 << 10         // bytes of a file of the host
)

func supportBundleCommand(a *app) *cobra.Command {
	var full bool
	var out string
	c := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect what is needed to report a problem",
		Long: `Write an archive with the versions, the findings of ` + "`xsched doctor`" + `, the programs,
GPUs, statistics, history and journal of the daemon, the last lines of the
service's log, and the versions of kernel and drivers. It works without a daemon,
too.

Without --full the archive has no command lines, no names of programs and users
other than your own, and no names of containers, pods, rules and gangs. It never
has environments or tokens. The command prints what the archive contains; look at
it before you pass it on.`,
		Example: `  xsched support-bundle
  sudo xsched support-bundle --output /tmp/bundle.tar.gz
  sudo xsched support-bundle --full`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			if out == "" {
				out = "xsched-support-" + now.Format("20060102-150405") + ".tar.gz"
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), bundleTime)
			defer cancel()
			parts := collectBundle(ctx, a, full)
			file, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("%s exists; choose another file with --output", out)
			}
			if err != nil {
				return fmt.Errorf("create the archive: %w", err)
			}
			m := manifest{Version: version, Created: now.UTC(), Redacted: !full}
			size, err := writeBundle(file, m, parts)
			if err := errors.Join(err, file.Close()); err != nil {
				_ = os.Remove(out)
				return fmt.Errorf("write the archive: %w", err)
			}
			writeContents(a.stdout, out, size, full, parts)
			return nil
		},
	}
	c.Flags().BoolVar(&full, "full", false, "include command lines and names of all users that you may see")
	c.Flags().StringVarP(&out, "output", "o", "", "write the archive to `FILE`, which must not exist (default xsched-support-DATE-TIME.tar.gz)")
	return c
}

// writeContents lists what is in an archive.
func writeContents(w io.Writer, name string, size int64, full bool, parts []part) {
	kind := "redacted; --full includes command lines and names"
	if full {
		kind = "not redacted: it has command lines and names"
	}
	fmt.Fprintf(w, "wrote %s (%d bytes, %s)\n", name, size, kind)
	table := newTable(w)
	for _, p := range parts {
		note := p.About
		if p.Error != "" {
			note += ": " + oneLine(p.Error)
		}
		fmt.Fprintf(table, "  %s\t%d\t%s\n", p.Name, p.Bytes, note)
	}
	_ = table.Flush()
}

// collectBundle gathers the parts, always in the same order. A part that can't be had has an error.
func collectBundle(ctx context.Context, a *app, full bool) []part {
	hide := redactor{self: os.Geteuid()}
	var parts []part
	add := func(name, about string, value any, err error) {
		p := part{Name: name, About: about}
		if err == nil {
			switch v := value.(type) {
			case []byte:
				p.data = v
			default:
				p.data, err = json.MarshalIndent(v, "", "  ")
				p.data = append(p.data, '\n')
			}
		}
		if err != nil {
			p.Error, p.data = err.Error(), nil
		}
		p.Bytes = len(p.data)
		parts = append(parts, p)
	}
	add("doctor.json", "findings of xsched doctor", doctor.Examine(doctorMachine(ctx, a)), nil)
	add("host.txt", "kernel, distribution and driver versions", hostFacts("/"), nil)
	lines, err := serviceLog(ctx)
	if !full {
		lines = hide.log(lines)
	}
	add("log.txt", "last lines of the service's log", lines, err)
	daemon, running, err := a.connect(ctx)
	if err != nil {
		add("daemon.json", "version of the daemon", nil, err)
		return parts
	}
	defer daemon.Close()
	add("daemon.json", "version of the daemon", running, nil)
	askParts(ctx, daemon, full, &hide, add)
	return parts
}

// askParts adds what the daemon knows.
func askParts(ctx context.Context, daemon *client.Client, full bool, hide *redactor, add func(name, about string, value any, err error)) {
	list, err := daemon.List(ctx)
	if !full {
		hide.list(&list)
	}
	add("processes.json", "managed programs, as xsched list", list, err)
	devices, err := daemon.Devices(ctx)
	add("devices.json", "GPUs", devices, err)
	config, err := daemon.Config(ctx)
	if !full {
		hide.config(&config)
	}
	add("config.json", "configuration in force", config, err)
	stats, err := daemon.Stats(ctx)
	add("stats.json", "statistics of the daemon", stats, err)
	policy, err := daemon.Policy(ctx)
	add("policy.json", "policy in force", policy, err)
	mode, err := daemon.Mode(ctx)
	add("mode.json", "mode in force", mode, err)
	history, err := daemon.History(ctx, control.HistoryRequest{Seconds: control.HistorySeconds})
	if !full {
		hide.history(&history)
	}
	add("history.json", "who used the GPUs in the last hour", history, err)
	entries, err := daemon.Journal(ctx, control.JournalRequest{Max: control.JournalMax})
	if !full {
		hide.journal(&entries)
	}
	add("journal.json", "preemptions, changes and faults", entries, err)
}

// hostFacts reads the versions of the kernel and of GPU drivers below a root.
func hostFacts(root string) []byte {
	var b bytes.Buffer
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		fmt.Fprintf(&b, "kernel: %s %s %s\n", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
	}
	for _, pattern := range hostFiles {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // sorted
		for _, name := range found {
			file, err := os.Open(name)
			if err != nil {
				continue
			}
			text, _ := io.ReadAll(io.LimitReader(file, maxHost))
			_ = file.Close()
			fmt.Fprintf(&b, "\n== %s\n%s\n", strings.TrimPrefix(name, strings.TrimSuffix(root, "/")), strings.TrimSpace(string(text)))
		}
	}
	return b.Bytes()
}

// writeBundle writes a tar archive in gzip. Equal parts and manifests give equal bytes.
func writeBundle(w io.Writer, m manifest, parts []part) (size int64, err error) {
	count := &countingWriter{w: w}
	zip := gzip.NewWriter(count)
	archive := tar.NewWriter(zip)
	m.Files = parts
	head, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return 0, err
	}
	all := append([]part{{Name: "manifest.json", data: append(head, '\n')}}, parts...)
	for _, p := range all {
		if p.data == nil {
			continue
		}
		h := &tar.Header{Name: "xsched-support/" + p.Name, Mode: 0o600, Size: int64(len(p.data)), ModTime: m.Created.Truncate(time.Second), Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(h); err != nil {
			return 0, err
		}
		if _, err := archive.Write(p.data); err != nil {
			return 0, err
		}
	}
	err = errors.Join(archive.Close(), zip.Close())
	return count.n, err
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
