// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/model"
)

func (a *app) hintCommand() *cobra.Command {
	var (
		asJSON bool
		queue  uint32
		hints  hintFlags
	)
	c := &cobra.Command{
		Use:   "hint PID [flags]",
		Short: "Say what a running program, or one of its queues, is worth",
		Long: `Changes what is given and leaves the rest; without flags shows what is in force.
0 (or an empty name) goes back to the default. With --queue it is about one of the
program's queues, by its number in ` + "`xsched list --json`" + `, which is scheduled by
itself from then on; level and granularity are the program's.

You may change your own programs, root may change all. On root's daemon only
root may go above priority 0, unless it was started with --allow-priority.`,
		Example: `  xsched hint 4711 --priority 10
  xsched hint 4711 --share 75
  xsched hint 4711 --slo 20ms --slo-percentile 99
  xsched hint 4711 --laxity 25ms --lax-priority -1 --critical-priority 50
  xsched hint 4711 --queue 1 --deadline 30ms
  xsched hint 4711 --level 1 --in-flight 8 --batch 4`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := parsePID(args[0])
			if err != nil {
				return err
			}
			request := control.HintRequest{PID: pid}
			if cmd.Flags().Changed("queue") {
				request.Queue = &queue
			}
			if err := hints.read(cmd, request.Set); err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(client *client.Client) error {
				reply, err := client.Hint(cmd.Context(), request)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(reply)
				}
				whose := fmt.Sprint(reply.PID)
				if reply.Queue != nil {
					whose += fmt.Sprintf(", queue %d", *reply.Queue)
				}
				fmt.Fprintf(a.stdout, "%s: %s\n", whose, hintsText(&reply.Hints, "priority", "level"))
				return nil
			})
		},
	}
	hints.add(c)
	c.Flags().Uint32Var(&queue, "queue", 0, "number of the queue that is meant (default: all of the program)")
	jsonFlag(c, &asJSON)
	return c
}

// hintFlags are the flags of the hints, from their table; what was written is read when the
// command runs, so that a mistake is one line.
type hintFlags struct{ given []hintFlag }

type hintFlag struct {
	field model.HintField
	text  *textValue
}

// textValue is a flag's value as it was written.
type textValue struct{ text, kind string }

func (v *textValue) String() string { return v.text }
func (v *textValue) Type() string   { return v.kind }
func (v *textValue) Set(text string) error {
	v.text = text
	return nil
}

// add registers the flags; names are those of model.HintFields, none: all.
func (h *hintFlags) add(c *cobra.Command, names ...string) {
	kinds := map[model.HintKind]string{
		model.HintNumber: "int", model.HintTime: "duration", model.HintPercentile: "percent",
		model.HintSwitch: "bool", model.HintLevel: "level", model.HintName: "name",
	}
	short := map[string]string{"priority": "p", "level": "l"}
	for _, f := range model.HintFields() {
		if len(names) > 0 && !slices.Contains(names, f.Name) {
			continue
		}
		v := &textValue{kind: kinds[f.Kind]}
		help := f.Help
		if f.Kind != model.HintLevel && f.Kind != model.HintSwitch {
			help += ": " + f.Range()
		}
		flag := c.Flags().VarPF(v, f.Flag, short[f.Name], help)
		if f.Kind == model.HintSwitch {
			flag.NoOptDefVal = "true"
		}
		h.given = append(h.given, hintFlag{f, v})
	}
	_ = c.RegisterFlagCompletionFunc("level", cobra.FixedCompletions([]string{"auto", "1", "2", "3"}, cobra.ShellCompDirectiveNoFileComp))
}

// read hands on what was given.
func (h *hintFlags) read(c *cobra.Command, take func(*model.HintField, model.HintValue)) error {
	limits := map[string]int64{}
	for i := range h.given {
		g := &h.given[i]
		if !c.Flags().Changed(g.field.Flag) {
			continue
		}
		value, err := g.field.Parse(g.text.text)
		if err != nil {
			return usagef("%s", strings.Replace(err.Error(), "utilization", "--share", 1))
		}
		limits[g.field.Name] = value.Number
		take(&g.field, value)
	}
	if most := limits["in_flight"]; most != 0 && limits["batch"] > most {
		return usagef("--batch %d is more than --in-flight %d; use at most as many", limits["batch"], most)
	}
	if limits["slo_percentile"] != 0 && limits["slo_us"] == 0 && c.Name() == "run" {
		return usagef("--slo-percentile alone is no target; add --slo")
	}
	return nil
}

// hintsText shows what is said, and the named ones in any case.
func hintsText(h *control.Hints, always ...string) string {
	var parts []string
	for _, f := range model.HintFields() {
		v := h.Value(&f)
		if v == (model.HintValue{}) && !slices.Contains(always, f.Name) {
			continue
		}
		if f.Name == "utilization" {
			parts = append(parts, fmt.Sprintf("share %d%%", v.Number))
			continue
		}
		if f.Kind == model.HintSwitch {
			parts = append(parts, strings.ReplaceAll(f.Flag, "-", " "))
			continue
		}
		text := printable(f.Format(v))
		if f.Kind == model.HintLevel {
			text = model.Level(v.Number).String()
		}
		parts = append(parts, strings.ReplaceAll(f.Flag, "-", " ")+" "+text)
	}
	return strings.Join(parts, ", ")
}

func shareText(share int) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", share)
}
