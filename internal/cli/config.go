// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/report"
)

func configCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check, show and reload the daemon's configuration",
		Example: `  xsched config check /etc/xsched/config.yaml
  sudo xsched config reload
  sudo xsched config show`,
	}
	onlySubcommands(c)
	c.AddCommand(configCheckCommand(a), configShowCommand(a), configReloadCommand(a), configSchemaCommand(a))
	return c
}

func configCheckCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file without a daemon",
		Long: `Check a configuration file (default /etc/xsched/config.yaml). Every mistake is
one line with file, line, column, cause and remedy.`,
		Example: `  xsched config check
  xsched config check ./config.yaml`,
		Args: positional("[FILE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			path := config.Default
			if len(args) > 0 {
				path = args[0]
			}
			file, err := config.Check(path)
			if err == nil {
				_, err = combine(pflag.NewFlagSet("", pflag.ContinueOnError), file, path)
			}
			if all, ok := errors.AsType[config.Errors](err); ok {
				for _, e := range all[:len(all)-1] {
					fmt.Fprintf(a.stderr, "xsched: %s\n", oneLine(e.Error()))
				}
				return all[len(all)-1]
			}
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("no configuration file %s; name another one, or do without one: the defaults apply", path)
			}
			if err != nil {
				return err
			}
			for _, w := range file.Warnings(path) {
				a.warn("%s", oneLine(w.String()))
			}
			fmt.Fprintf(a.stdout, "%s is valid: %s, %s, %s, %s\n", path,
				report.Plural(len(file.Values()), "key"), report.Plural(len(file.GPUs), "GPU"),
				report.Plural(len(file.Caps.Users)+len(file.Caps.Groups), "cap"), report.Plural(len(file.Rules), "rule"))
			return nil
		},
	}
}

func configShowCommand(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the values in force and their sources",
		Long: `Show every value in force and its source: default, file, flag, state (set at run
time under a previous daemon) or run time. Without a daemon, show the values of
the next start of root's daemon. Only root and the daemon's user may ask a daemon.`,
		Example: `  sudo xsched config show
  xsched config show --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var reply control.ConfigReply
			err := a.withClient(cmd.Context(), func(daemon *client.Client) (err error) {
				reply, err = daemon.Config(cmd.Context())
				return err
			})
			if errors.Is(err, client.ErrNoDaemon) {
				a.warn("no daemon is running; these are the values of the next start")
				reply, err = nextStart()
			}
			return a.show(reply, err, asJSON, func(w io.Writer) { writeConfig(w, reply) })
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// nextStart returns the configuration of a daemon of root that starts without flags.
func nextStart() (control.ConfigReply, error) {
	file := configFile{path: config.Default, optional: true, given: pflag.NewFlagSet("", pflag.ContinueOnError)}
	r, err := file.read()
	if file.optional {
		r.o.Config.File = ""
	}
	return r.o.Config, err
}

func configReloadCommand(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "reload",
		Short: "Make the daemon read its configuration file again",
		Long: `Make the daemon read its configuration file again, as SIGHUP does. The daemon
checks the whole file first; a mistake changes nothing. Programs stay connected.`,
		Example: `  sudo xsched config reload`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(daemon *client.Client) error {
				reply, err := daemon.Reload(cmd.Context())
				return a.show(reply, err, asJSON, func(w io.Writer) {
					for _, warning := range reply.Warnings {
						a.warn("%s", oneLine(warning))
					}
					if len(reply.Restart) > 0 {
						a.warn("restart the daemon for %s", strings.Join(reply.Restart, ", "))
					}
					changed := "nothing changed"
					switch {
					case len(reply.Changed) == 0 && len(reply.Restart) > 0:
						changed = "nothing changed yet"
					case len(reply.Changed) > 0:
						changed = "changed: " + strings.Join(reply.Changed, ", ")
					}
					fmt.Fprintf(w, "reloaded %s; %s\n", reply.File, changed)
				})
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func configSchemaCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON schema of the configuration file, for editors",
		Example: `  xsched config schema > xsched.schema.json`,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.printJSON(config.Schema()) },
	}
}

func writeConfig(w io.Writer, r control.ConfigReply) {
	name := func(path string) string {
		if path == "" {
			return "none"
		}
		return path
	}
	fmt.Fprintf(w, "file: %s\nstate: %s\n\n", name(r.File), name(r.State))
	table := newTable(w)
	fmt.Fprintln(table, "KEY\tVALUE\tSOURCE")
	for _, v := range r.Values {
		value := printable(v.Value)
		if value == "" {
			value = "-"
		}
		if v.Pending != "" {
			value += " (" + printable(v.Pending) + " after a restart)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", v.Key, value, v.Source)
	}
	_ = table.Flush()
	if len(r.Caps) > 0 {
		fmt.Fprintln(w)
		table = newTable(w)
		fmt.Fprintln(table, "CAP\tPRIORITY\tSHARE\tSOURCE")
		for _, c := range r.Caps {
			share := "-"
			if c.Share != 0 {
				share = strconv.Itoa(c.Share)
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", c.Whom, c.Priority, share, c.Source)
		}
		_ = table.Flush()
	}
	if len(r.Rules) == 0 {
		return
	}
	fmt.Fprintln(w)
	table = newTable(w)
	fmt.Fprintln(table, "RULE\tMATCH\tHINTS\tPIDS")
	for _, rule := range r.Rules {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", printable(rule.Name), printable(rule.Match), printable(rule.Hints), pidsText(rule.PIDs))
	}
	_ = table.Flush()
}

func pidsText(pids []int) string {
	if len(pids) == 0 {
		return "-"
	}
	texts := make([]string, 0, len(pids))
	for _, pid := range pids {
		texts = append(texts, strconv.Itoa(pid))
	}
	return strings.Join(texts, " ")
}
