// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"xsched/internal/screen"
)

// Limits of --interval.
const (
	shortestInterval = 100 * time.Millisecond
	longestInterval  = time.Hour
)

func intervalFlag(c *cobra.Command, into *time.Duration) {
	c.Flags().DurationVar(into, "interval", time.Second, "update every `T`")
}

// watchFlags are those of a reader that can repeat.
func watchFlags(c *cobra.Command, watch *bool, interval *time.Duration) {
	c.Flags().BoolVar(watch, "watch", false, "repeat every --interval until interrupted")
	intervalFlag(c, interval)
}

func checkInterval(d time.Duration) error {
	if d < shortestInterval || d > longestInterval {
		return usagef("--interval %s is out of range; use %s to %s", d, shortestInterval, longestInterval)
	}
	return nil
}

// watch draws until a signal. With redraw, each picture replaces the last one on the terminal.
// An error, such as that of a daemon that restarts, is shown, and the next picture is tried.
func (a *app) watch(ctx context.Context, w io.Writer, interval time.Duration, redraw bool, draw func(context.Context, io.Writer, int) error) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for first := true; ; first = false {
		var text strings.Builder
		width := columns(a.stdout)
		err := a.attempt(ctx, &text, width, draw)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || errors.Is(err, syscall.EPIPE)):
			return err
		case err != nil:
			fmt.Fprintln(&text, screen.Cut("retrying: "+screen.Clean(oneLine(err.Error())), width))
		}
		out := text.String()
		if redraw {
			out = replaceScreen(out, rows(a.stdout))
		}
		if _, err := io.WriteString(w, out); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// watchTimeout is when a daemon that does not answer is reported.
const watchTimeout = 5 * time.Second

func (a *app) attempt(ctx context.Context, w io.Writer, width int, draw func(context.Context, io.Writer, int) error) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	return draw(ctx, w, width)
}

// replaceScreen draws over the last picture without clearing it first, which would flicker.
// Lines beyond the terminal's height are counted instead.
func replaceScreen(text string, height int) string {
	const home, clearRight, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 2 && len(lines) > height-1 {
		left := len(lines) - (height - 2)
		lines = append(lines[:height-2], fmt.Sprintf("%d more lines", left))
	}
	return home + strings.Join(lines, clearRight+"\r\n") + clearRight + "\r\n" + clearBelow
}

// controllable reports whether standard output is a terminal that can be drawn over.
func (a *app) controllable() bool { return columns(a.stdout) > 0 && os.Getenv("TERM") != "dumb" }

// rows is the height of the terminal, or 0 if w is not one.
func rows(w io.Writer) int {
	if size := windowSize(w); size != nil {
		return int(size.Row)
	}
	return 0
}

// columns is the width of the terminal, or 0 if w is not one.
func columns(w io.Writer) int {
	if size := windowSize(w); size != nil {
		return int(size.Col)
	}
	return 0
}

func windowSize(w io.Writer) *unix.Winsize {
	file, ok := w.(*os.File)
	if !ok {
		return nil
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return nil
	}
	return size
}
