// SPDX-License-Identifier: Apache-2.0

// Command manual writes the manual pages and shell completions of xsched, from the definitions of its
// commands.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"xsched/internal/cli"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("manual", flag.ContinueOnError)
	out := flags.String("out", "", "`FOLDER` of share/man and of the shells' folders")
	zsh := flags.String("zsh", "zsh/site-functions", "`FOLDER` below it for zsh, which distributions name differently")
	version := flags.String("version", "", "release named in the pages")
	if err := flags.Parse(args); err != nil {
		return err
	}
	date, err := buildDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	root := cli.Command()
	pages := filepath.Join(*out, "man", "man1")
	if err := os.MkdirAll(pages, 0o755); err != nil {
		return err
	}
	if err := writePages(root, pages, *version, date); err != nil {
		return err
	}
	return writeCompletions(root, *out, *zsh)
}

// buildDate is the date of the pages: reproducible builds set SOURCE_DATE_EPOCH.
func buildDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func writePages(c *cobra.Command, folder, version string, date time.Time) error {
	c.DisableAutoGenTag = true
	header := &doc.GenManHeader{Title: strings.ToUpper(strings.ReplaceAll(c.CommandPath(), " ", "-")), Section: "1", Date: &date, Source: "xsched " + version, Manual: "XSched"}
	var page bytes.Buffer
	if err := doc.GenMan(c, header, &page); err != nil {
		return err
	}
	name := filepath.Join(folder, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
	if err := os.WriteFile(name, page.Bytes(), 0o644); err != nil {
		return err
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() && sub.Name() != "completion" && sub.Name() != "help" {
			if err := writePages(sub, folder, version, date); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeCompletions(root *cobra.Command, folder, zsh string) error {
	for name, write := range map[string]func(io.Writer) error{
		"bash-completion/completions/xsched":    func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		filepath.Join(zsh, "_xsched"):           root.GenZshCompletion,
		"fish/vendor_completions.d/xsched.fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		var script bytes.Buffer
		if err := write(&script); err != nil {
			return err
		}
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, script.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
