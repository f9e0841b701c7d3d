// SPDX-License-Identifier: Apache-2.0

// Package pages writes manual pages and shell completions from the definitions of commands.
package pages

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
)

// Run writes the files of programs to the folder that the arguments name. Only the first program gets
// completions: kubectl completes the arguments of its plugins differently.
func Run(args []string, programs ...*cobra.Command) error {
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
	folder := filepath.Join(*out, "man", "man1")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, c := range programs {
		if err := writePages(c, folder, *version, date); err != nil {
			return err
		}
	}
	return writeCompletions(programs[0], *out, *zsh)
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
		"bash-completion/completions/" + root.Name():         func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		filepath.Join(zsh, "_"+root.Name()):                  root.GenZshCompletion,
		"fish/vendor_completions.d/" + root.Name() + ".fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
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
