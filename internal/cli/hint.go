// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/model"
	"xsched/internal/policy"
)

func hintCommand(a *app) *cobra.Command {
	var (
		asJSON bool
		queue  uint32
		hints  hintFlags
	)
	c := &cobra.Command{
		Use:   "hint PID [flags]",
		Short: "Show or set scheduling hints of a program or queue",
		Long: `Set the given hints and leave the others unchanged. Without flags, show the
current hints. 0 (or an empty name) restores a default. --queue selects one queue
by its index in ` + "`xsched list --json`" + `; that queue is then scheduled individually.
Level and granularity apply to the whole program. A restart of the daemon keeps
the hints of a program, but not those of one queue.
` + "`self`" + ` instead of a PID means the calling program: the nearest parent of this
command that the daemon manages. In a container, PIDs are those of the container.

Users may change their own programs, root all programs. Priorities above 0 on
root's daemon require root, unless it was started with --max-priority.`,
		Example: `  xsched hint 4711 --priority -10
  xsched hint 4711 --share 75
  xsched hint 4711 --slo 20ms --slo-percentile 99
  xsched hint 4711 --laxity 25ms --lax-priority -1 --critical-priority 50
  xsched hint 4711 --queue 1 --deadline 30ms
  xsched hint 4711 --level 1 --in-flight 8 --batch 4`,
		Args:              positional("PID"),
		ValidArgsFunction: a.completePIDs(nil),
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
			return setHint(cmd.Context(), a, request, hints.changed(cmd), asJSON)
		},
	}
	hints.add(c)
	c.Flags().Uint32Var(&queue, "queue", 0, "select the queue with `INDEX` (default: the whole program)")
	jsonFlag(c, &asJSON)
	return c
}

// setHint sends a request and prints the hints in force.
func setHint(ctx context.Context, a *app, request control.HintRequest, changed []model.HintField, asJSON bool) error {
	return a.withClient(ctx, func(daemon *client.Client) error {
		reply, err := daemon.Hint(ctx, request)
		if err != nil || asJSON {
			return a.show(reply, err, asJSON, nil)
		}
		whose, until := fmt.Sprint(reply.PID), ""
		if reply.Queue != nil {
			whose += fmt.Sprintf(", queue %d", *reply.Queue)
			if len(changed) > 0 {
				until = "; until the daemon restarts"
			}
		}
		fmt.Fprintf(a.stdout, "%s: %s%s\n", whose, hintsText(&reply.Hints, "priority", "level"), until)
		return warnUnread(ctx, a, daemon, changed)
	})
}

// warnUnread warns of given hints that no policy in force reads.
func warnUnread(ctx context.Context, a *app, daemon *client.Client, given []model.HintField) error {
	if len(given) == 0 {
		return nil
	}
	reply, err := daemon.Policy(ctx)
	if err != nil {
		return err
	}
	inForce := []string{policy.Base(reply.Name)}
	for _, d := range reply.Devices {
		if d.Policy != "" {
			inForce = append(inForce, policy.Base(d.Policy))
		}
	}
	for _, f := range given {
		if len(f.Policies) == 0 || slices.ContainsFunc(inForce, func(name string) bool { return slices.Contains(f.Policies, name) }) {
			continue
		}
		a.warn("--%s does not affect scheduling under policy %s; it counts under %s, see `xsched policy`", f.Flag, reply.Name, strings.Join(f.Policies, ", "))
	}
	return nil
}

// hintFlags are the flags of model.HintFields. They are parsed when the command runs, which yields
// better messages than pflag's.
type hintFlags struct{ given []hintFlag }

type hintFlag struct {
	field model.HintField
	text  *textValue
}

// textValue is the unparsed value of a flag.
type textValue struct{ text, kind string }

func (v *textValue) String() string { return v.text }
func (v *textValue) Type() string   { return v.kind }
func (v *textValue) Set(text string) error {
	v.text = text
	return nil
}

// add registers the flags of the hints with these names; without names, of all.
func (h *hintFlags) add(c *cobra.Command, names ...string) {
	kinds := map[model.HintKind]string{
		model.HintNumber: "int", model.HintTime: "duration", model.HintPercentile: "percent",
		model.HintSwitch: "bool", model.HintLevel: "level", model.HintName: "name", model.HintBytes: "size",
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

// changed returns the hints that are given and not reset to their default.
func (h *hintFlags) changed(c *cobra.Command) []model.HintField {
	var out []model.HintField
	for i := range h.given {
		g := &h.given[i]
		if v, err := g.field.Parse(g.text.text); c.Flags().Changed(g.field.Flag) && err == nil && v != (model.HintValue{}) {
			out = append(out, g.field)
		}
	}
	return out
}

// read parses the given flags.
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
		return usagef("--batch %d is larger than --in-flight %d; use at most %[2]d", limits["batch"], most)
	}
	if limits["slo_percentile"] != 0 && limits["slo_us"] == 0 && c.Name() == "run" {
		return usagef("--slo-percentile needs a target; add --slo")
	}
	return nil
}

// hintsText lists the hints that are set, and those in always.
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
