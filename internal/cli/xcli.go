// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control/upstream"
	"xsched/internal/model"
)

// xcli takes the command line of upstream's xcli. It uses upstream's HTTP routes, so it works with
// this daemon and with upstream's server.
type xcli struct {
	*app
	addr string
	port int
}

// Ranges of upstream's xcli.
const (
	minHertz, maxHertz = 0.1, 30.0
	maxXLaunches       = 0x10000
)

// tokenFileVariable names the file with the token of a daemon on another machine.
const tokenFileVariable = "XSCHED_HTTP_TOKEN_FILE"

func xcliRoot(a *app) *cobra.Command {
	x := &xcli{app: a}
	root := &cobra.Command{
		Use:   "xcli",
		Short: "Inspect and control an XSched server over HTTP",
		Long: `Takes the command line of upstream XSched's xcli and works with this daemon and
with upstream's server. For a daemon on another machine, XSCHED_HTTP_TOKEN_FILE
names the file with its token.`,
		Example: `  xcli list
  xcli -p 50001 top -f 5
  xcli config -x 0x10000 -l 2
  xcli policy -s -n HPF
  xcli hint --pid 4711 -p 10`,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true,

		SuggestionsMinimumDistance: 2,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if _, err := netip.ParseAddr(x.addr); err != nil && x.addr != "localhost" {
				return fmt.Errorf("%q is not an IP address; use for example 127.0.0.1", x.addr)
			}
			if x.port < 1 || x.port > 65535 {
				return fmt.Errorf("port %d is out of range; use 1 to 65535", x.port)
			}
			a.started = true
			return nil
		},
	}
	onlySubcommands(root)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	// Not persistent, because -p of hint is the priority.
	root.Flags().StringVarP(&x.addr, "addr", "a", "127.0.0.1", "connect to `ADDRESS`")
	root.Flags().IntVarP(&x.port, "port", "p", upstream.DefaultPort, "connect to `PORT`")
	root.TraverseChildren = true
	root.AddCommand(x.topCommand(), x.listCommand(), x.configCommand(), x.policyCommand(), x.hintCommand())
	return root
}

func (x *xcli) with(ctx context.Context, f func(context.Context, *upstream.Client) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	client := upstream.New(x.addr, x.port)
	defer client.Close()
	if path := os.Getenv(tokenFileVariable); path != "" {
		token, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read token: %w; check %s", err, tokenFileVariable)
		}
		client.Token = strings.TrimSpace(string(token))
	}
	return f(ctx, client)
}

func (x *xcli) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List queues", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return x.with(cmd.Context(), x.list)
		},
	}
}

func (x *xcli) list(ctx context.Context, client *upstream.Client) error {
	all, err := client.List(ctx)
	if err != nil {
		return err
	}
	writeXQueues(x.stdout, all, columns(x.stdout))
	return nil
}

func (x *xcli) topCommand() *cobra.Command {
	var hertz float64
	c := &cobra.Command{
		Use: "top", Short: "Show queues continuously", Args: noArgs,
		Long: "Show queues until interrupted. On a terminal the display is refreshed in place.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !(hertz >= minHertz && hertz <= maxHertz) {
				return usagef("frequency %v is out of range; use %v to %v", hertz, minHertz, maxHertz)
			}
			return x.with(cmd.Context(), func(ctx context.Context, client *upstream.Client) error {
				return x.top(ctx, client, time.Duration(float64(time.Second)/hertz))
			})
		},
	}
	c.Flags().Float64VarP(&hertz, "frequency", "f", 1, "refresh rate in Hz, 0.1 to 30")
	return c
}

func (x *xcli) top(ctx context.Context, client *upstream.Client, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	width := columns(x.stdout)
	for {
		all, err := client.List(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		// One write per refresh avoids flicker.
		var frame strings.Builder
		if width > 0 {
			frame.WriteString("\x1b[H\x1b[2J")
		}
		writeXQueues(&frame, all, width)
		if width == 0 {
			frame.WriteString("\n")
		}
		if _, err := io.WriteString(x.stdout, frame.String()); err != nil {
			return fmt.Errorf("print queues: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// writeXQueues prints the table; a width above 0 is that of a terminal.
func writeXQueues(w io.Writer, all upstream.Queues, width int) {
	const maxCommand = 60
	commands := map[int]string{}
	for _, p := range all.Processes {
		commands[p.PID] = printable(p.CmdLine)
	}
	slices.SortStableFunc(all.Queues, func(a, b upstream.Queue) int { return a.PID - b.PID })
	var text strings.Builder
	table := newTable(&text)
	fmt.Fprintln(table, "PID\tDEV\tXQUEUE\tSTAT\tSCHED\tLV\tCMD")
	for _, q := range all.Queues {
		stat, sched := "IDL", "RUN"
		if q.Ready {
			stat = "RDY"
		}
		if q.Suspended {
			sched = "SUS"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%d\t%s\n", q.PID, q.DeviceText(), q.HandleText(), stat, sched, q.Level, cut(commands[q.PID], maxCommand))
	}
	_ = table.Flush() // into memory
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, cut(strings.TrimRight(line, "\n "), width))
	}
}

// handleFlag is a handle, hexadecimal with 0x or decimal.
type handleFlag uint64

func (h *handleFlag) String() string { return "0x" + strconv.FormatUint(uint64(*h), 16) }
func (h *handleFlag) Type() string   { return "handle" }

// Set reads a handle.
func (h *handleFlag) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil || n == 0 {
		return usagef("%q is not a handle; see `xcli list`", text)
	}
	*h = handleFlag(n)
	return nil
}

func (x *xcli) configCommand() *cobra.Command {
	var (
		handle           handleFlag
		level            int
		threshold, batch int64
	)
	c := &cobra.Command{
		Use: "config -x HANDLE [-l LEVEL] [-t THRESHOLD] [-b BATCH]", Short: "Set the level and launch limits of a queue", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed := cmd.Flags().Changed
			switch {
			case handle == 0:
				return usagef("no queue given; use -x HANDLE")
			case changed("level") && (level < int(model.LevelBlock) || level > int(model.LevelInterrupt)):
				return usagef("level %d is out of range; use 1, 2 or 3", level)
			case changed("threshold") && (threshold < 1 || threshold > maxXLaunches):
				return usagef("threshold %d is out of range; use 1 to %d", threshold, maxXLaunches)
			case changed("batch-size") && (batch < 1 || batch > maxXLaunches):
				return usagef("batch size %d is out of range; use 1 to %d", batch, maxXLaunches)
			case !changed("level") && !changed("threshold") && !changed("batch-size"):
				return usagef("nothing to change; use -l, -t or -b")
			}
			return x.with(cmd.Context(), func(ctx context.Context, client *upstream.Client) error {
				if err := client.Config(ctx, uint64(handle), level, threshold, batch); err != nil {
					return err
				}
				fmt.Fprintf(x.stdout, "Config of XQueue (%s) set\n", &handle)
				return x.list(ctx, client)
			})
		},
	}
	f := c.Flags()
	f.VarP(&handle, "xqueue", "x", "handle of the queue")
	f.IntVarP(&level, "level", "l", 0, "preemption level: 1 block, 2 deactivate, 3 interrupt")
	f.Int64VarP(&threshold, "threshold", "t", -1, "maximum launches in flight, 1 to 65536")
	f.Int64VarP(&batch, "batch-size", "b", -1, "launches between checks, 1 to 65536, less than the threshold")
	return c
}

func (x *xcli) policyCommand() *cobra.Command {
	var query, set bool
	var name string
	c := &cobra.Command{
		Use: "policy (-q | -s -n NAME)", Short: "Show or set the policy", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case query && set || !query && !set:
				return usagef("choose one action; use -q, or -s -n NAME")
			case set && name == "":
				return usagef("no policy given; use -s -n NAME")
			}
			return x.with(cmd.Context(), func(ctx context.Context, client *upstream.Client) error {
				if query {
					return x.showPolicy(ctx, client)
				}
				number, err := upstream.PolicyNumber(name)
				if err != nil {
					return usagef("%v; see `xcli policy -q`", err)
				}
				if err := client.SetPolicy(ctx, number); err != nil {
					return err
				}
				fmt.Fprintf(x.stdout, "Policy set to %s\n", upstream.PolicyName(number))
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&query, "query", "q", false, "show the current and the available policies")
	c.Flags().BoolVarP(&set, "set", "s", false, "set the policy given with -n")
	c.Flags().StringVarP(&name, "name", "n", "", "policy `NAME`")
	return c
}

func (x *xcli) showPolicy(ctx context.Context, client *upstream.Client) error {
	now, err := client.Policy(ctx)
	if err != nil {
		return err
	}
	name := now.Text()
	if name == "" {
		name = "number " + strconv.Itoa(now.Number)
	}
	known := upstream.Policies()
	if now.Name != "" { // this daemon
		known = append(known, upstream.OwnPolicies()...)
	}
	fmt.Fprintf(x.stdout, "Current policy:\n  %s\nKnown policies:\n", name)
	for _, p := range known {
		fmt.Fprintf(x.stdout, "  %s\n", p)
	}
	return nil
}
