// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"xsched/internal/amdlog"
	"xsched/internal/driver"
)

// amdlogMemory is the soft memory limit. An analysis keeps little; its garbage need not pile up.
const amdlogMemory = 128 << 20

func runtimeLogCommand(a *app) *cobra.Command {
	var (
		asJSON, compare bool
		html            string
	)
	c := &cobra.Command{
		Use:   "amdlog FILE...",
		Short: "Analyse logs of the HIP runtime",
		Long: `Read logs written with AMD_LOG_LEVEL=4 (ROCm 4.5 to 7). Report the kernels of
every process and hardware queue with their counts, sizes and queue depths. Files
may be compressed with gzip; - is standard input. Damaged lines are counted.`,
		Example: `  AMD_LOG_LEVEL=4 AMD_LOG_LEVEL_FILE=/tmp/hip.log python train.py; xsched amdlog /tmp/hip.log_*
  xsched amdlog --html report.html hip.log.gz
  xsched amdlog --compare before.log after.log`,
		Args: positional("FILE..."),
		RunE: func(cmd *cobra.Command, files []string) error {
			if compare && len(files) != 2 {
				return usagef("--compare takes two logs, got %d", len(files))
			}
			debug.SetMemoryLimit(amdlogMemory)
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			var logs []*amdlog.Log
			for _, name := range files {
				log, err := readAMDLog(ctx, name)
				if err != nil {
					return interrupted(ctx, err)
				}
				logs = append(logs, log)
			}
			var result amdlogResult = amdlog.NewReport(logs...)
			if compare {
				result = amdlog.Compare(logs[0], logs[1])
			}
			if err := showAMDLog(a, result, asJSON, html); err != nil {
				return err
			}
			if !slices.ContainsFunc(logs, func(l *amdlog.Log) bool { return l.Lines.Records > 0 }) {
				return fmt.Errorf("no line of %s is a record of the HIP runtime; write a log with AMD_LOG_LEVEL=4", strings.Join(files, ", "))
			}
			return nil
		},
	}
	f := c.Flags()
	f.BoolVar(&compare, "compare", false, "compare two logs")
	f.StringVar(&html, "html", "", "write a page with charts to `FILE`")
	jsonFlag(c, &asJSON)
	return c
}

// amdlogResult is a report or a comparison.
type amdlogResult interface {
	WriteText(io.Writer) error
	WriteHTML(io.Writer) error
}

func showAMDLog(a *app, r amdlogResult, asJSON bool, html string) error {
	if html != "" {
		if err := a.writeOut(html, r.WriteHTML); err != nil {
			return err
		}
	}
	if asJSON {
		return a.printJSON(r)
	}
	if err := r.WriteText(a.stdout); err != nil {
		return err
	}
	if html != "" {
		fmt.Fprintf(a.stdout, "\nwritten: %s\n", html)
	}
	return nil
}

// readLogs reads the hardware queues that logs of a runtime name.
func readLogs(ctx context.Context, names []string) ([]driver.LoggedQueue, error) {
	var all []driver.LoggedQueue
	for _, name := range names {
		log, err := readAMDLog(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, p := range log.Processes {
			for _, q := range p.Queues {
				ring, err := strconv.ParseUint(strings.TrimPrefix(q.HWq, "0x"), 16, 64)
				if err != nil {
					continue
				}
				all = append(all, driver.LoggedQueue{
					PID: int(p.PID), Ring: ring, Software: q.SWq, ID: q.ID, Priority: q.Priority, Packets: q.Size,
					Kernels: q.Kernels, Counted: p.Dispatches > 0, Deleted: q.Ended,
				})
			}
		}
	}
	return all, nil
}

// readAMDLog analyses one file, with a progress bar on a terminal.
func readAMDLog(ctx context.Context, name string) (*amdlog.Log, error) {
	o := amdlog.Options{Name: name, PID: pidOfName(name)}
	file, size := os.Stdin, int64(-1)
	if name == "-" {
		o.Name = "standard input"
	} else {
		opened, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read log: %w; use a log file, or - for standard input", err)
		}
		defer opened.Close()
		info, err := opened.Stat()
		if err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		}
		if info.IsDir() {
			return nil, fmt.Errorf("read log: %s is a directory; use the files in it", name)
		}
		if info.Mode().IsRegular() {
			size = info.Size()
		}
		file = opened
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		bar := progressbar.NewOptions64(size, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowBytes(true),
			progressbar.OptionSetDescription(filepath.Base(o.Name)), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30))
		defer func() { _ = bar.Exit() }()
		defer func() { _ = bar.Clear() }()
		o.Progress = func(n int) { _ = bar.Add(n) }
	}
	return amdlog.Read(ctx, file, o)
}

// pidOfName returns the PID that the runtime appends to the file name:
// AMD_LOG_LEVEL_FILE=hip.log makes hip.log_4711.
func pidOfName(name string) uint32 {
	name = strings.TrimSuffix(filepath.Base(name), ".gz")
	i := strings.LastIndexByte(name, '_')
	if i < 0 {
		return 0
	}
	pid, err := strconv.ParseUint(name[i+1:], 10, 32)
	if err != nil || pid > 1<<22 { // the largest PID of the kernel
		return 0
	}
	return uint32(pid)
}
