// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/atomicfile"
	"xsched/internal/embedded"
	"xsched/internal/standin"
)

func linkRuntimesCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "link-runtimes DIR",
		Short: "Write a folder for LD_LIBRARY_PATH that schedules programs",
		Long: `Write the library and, for each GPU runtime of this machine, a stand-in into DIR.
A program that is started with DIR in LD_LIBRARY_PATH loads the stand-in, which
loads the library and the runtime. This is upstream's way to start programs;
` + "`xsched run`" + ` needs no folder.

A stand-in names its runtime by the path. Repeat the command after a runtime was
installed or moved. It searches LD_LIBRARY_PATH, the loader's cache and the usual
folders, and skips stand-ins.`,
		Example: `  xsched link-runtimes ~/xsched-lib
  export LD_LIBRARY_PATH=~/xsched-lib
  ./app`,
		Args: positional("DIR"),
		RunE: func(_ *cobra.Command, args []string) error { return linkRuntimes(a.stdout, args[0]) },
	}
}

func linkRuntimes(out io.Writer, dir string) error {
	found := map[string]string{}
	for _, name := range standin.Names() {
		if path := standin.Find(name); path != "" {
			found[name] = path
		}
	}
	if len(found) == 0 {
		return errors.New("no GPU runtime was found; add its folder to LD_LIBRARY_PATH")
	}
	unpacked, err := embedded.Unpack(embedded.Shim)
	if err != nil {
		return err
	}
	library, err := os.ReadFile(unpacked)
	if err != nil {
		return fmt.Errorf("read the library: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	soname := embedded.Shim + "." + strings.SplitN(version, ".", 2)[0]
	files := map[string][]byte{soname: library}
	for name, path := range found {
		if files[name], err = standin.Image(name, soname, path); err != nil {
			return err
		}
	}
	for name, content := range files {
		err := atomicfile.Write(filepath.Join(dir, name), 0o644, func(w io.Writer) error {
			_, err := io.Copy(w, bytes.NewReader(content))
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, name := range standin.Names() {
		if path := found[name]; path != "" {
			fmt.Fprintf(out, "%s: %s\n", filepath.Join(dir, name), path)
		}
	}
	return nil
}
