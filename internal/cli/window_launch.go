// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/model"
	"xsched/internal/window"
)

// launching is the command window launch.
type launching struct {
	app     *app
	file    string
	names   []string
	virtual bool
	asJSON  bool
	list    bool
	hints   hintFlags
}

func windowLaunchCommand(a *app) *cobra.Command {
	w := &launching{app: a}
	c := &cobra.Command{
		Use:   "launch [flags] [-- CMD [ARG...]]",
		Short: "Start programs of a list with their priorities",
		Long: `Show a list of programs and start those that you choose, each with its priority.
The list is a YAML file:

  programs:
    - name: render
      command: [blender, scene.blend]
      priority: 10
    - name: train
      command: [python3, train.py]
      priority: -10
      hints: {level: 3}        # other flags of ` + "`xsched run`" + `
      dir: /home/me/training
      env: {EPOCHS: "3"}

The programs run under the scheduler as with ` + "`xsched run`" + `, in the background, and go
on when the launcher ends. Their output goes to NAME.log in the state directory.

With CMD, run CMD in the foreground and bind it to the window that is active now.
Use this in a terminal that shows all windows from one process, and in tmux.`,
		Example: `  xsched window launch
  xsched window launch --file programs.yaml --start render --start train
  xsched window launch --list
  xsched window launch --priority 5 -- ./simulate`,
		Args: cobra.ArbitraryArgs,
		RunE: w.run,
	}
	w.flags(c)
	return c
}

func (w *launching) flags(c *cobra.Command) {
	c.Flags().SetInterspersed(false) // flags after CMD belong to CMD
	c.Flags().StringVar(&w.file, "file", "", "read the list of programs in `FILE` (default xsched/programs.yaml in $XDG_CONFIG_HOME or ~/.config)")
	c.Flags().StringArrayVar(&w.names, "start", nil, "start the program `NAME` without asking; repeatable")
	c.Flags().BoolVar(&w.list, "list", false, "print the list and start nothing")
	c.Flags().BoolVar(&w.virtual, "virtual", false, "run the programs on the virtual GPU")
	w.hints.add(c)
	jsonFlag(c, &w.asJSON)
}

func (w *launching) run(cmd *cobra.Command, args []string) error {
	l := launcher{app: w.app, virtual: w.virtual, running: map[string]*started{}}
	var flags []string
	err := w.hints.read(cmd, func(f *model.HintField, v model.HintValue) { flags = append(flags, "--"+f.Flag+"="+f.Format(v)) })
	switch {
	case err != nil:
		return err
	case len(args) > 0 && (w.list || len(w.names) > 0 || cmd.Flags().Changed("file")):
		return usagef("CMD excludes --file, --start and --list; give one or the other")
	case len(args) > 0:
		return l.runBound(flags, args)
	case len(flags) > 0:
		return usagef("hints of the command line are for CMD; put those of a listed program into the file")
	}
	entries, err := window.Load(cmp.Or(w.file, defaultPrograms()))
	if err != nil {
		return err
	}
	switch {
	case w.list:
		return w.app.show(entries, nil, w.asJSON, func(w io.Writer) { l.write(w, entries) })
	case len(w.names) > 0:
		return l.startNamed(entries, w.names)
	}
	return l.menu(cmd.InOrStdin(), entries)
}

func defaultPrograms() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		dir = "." // without HOME
	}
	return filepath.Join(dir, "xsched", "programs.yaml")
}

// launcher starts programs of a list.
type launcher struct {
	app     *app
	virtual bool
	running map[string]*started // by name
}

// started is a program that this launcher has started.
type started struct {
	pid  int
	done chan struct{} // closed at its end
	end  string        // valid after done
}

func (s *started) String() string {
	select {
	case <-s.done:
		return s.end
	default:
		return fmt.Sprintf("running, %d", s.pid)
	}
}

// runArgs returns the command line of `xsched run` for a program.
func (l *launcher) runArgs(flags, command []string) []string {
	args := []string{"xsched", "run"}
	if l.app.dir != "" {
		args = append(args, "--dir", l.app.dir)
	}
	if l.virtual {
		args = append(args, "--virtual")
	}
	return append(append(append(args, flags...), "--"), command...)
}

// runBound replaces this process with CMD. Its environment names the active window, as that of a
// terminal does.
func (l *launcher) runBound(flags, args []string) error {
	env := newEnvironment(os.Environ())
	if id, err := activeWindow(); err != nil {
		l.app.warn("running without a window: %s", oneLine(err.Error()))
	} else {
		env.set("WINDOWID", strconv.FormatUint(uint64(id), 10))
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return replaceWith(self, l.runArgs(flags, args), env)
}

func activeWindow() (window.ID, error) {
	names, err := displayNames(nil, false)
	if err != nil {
		return 0, err
	}
	name := names()[0]
	display, err := window.Open(name)
	if err != nil {
		return 0, err
	}
	defer display.Close()
	state, err := display.State(false)
	switch {
	case err != nil:
		return 0, err
	case len(state.Active) == 0:
		return 0, fmt.Errorf("no window of display %s is active", name)
	}
	return state.Active[0], nil
}

// write prints the list, with the state of the programs that this launcher has started.
func (l *launcher) write(w io.Writer, entries []window.Entry) {
	table := newTable(w)
	fmt.Fprintln(table, "NO\tNAME\tPRIO\tSTATE\tCOMMAND")
	for i := range entries {
		e, state := &entries[i], "-"
		if s := l.running[e.Name]; s != nil {
			state = s.String()
		}
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\n", i+1, e.Name, e.Priority, state, printable(strings.Join(e.Command, " ")))
	}
	_ = table.Flush() // a failed write shows nothing, and the next answer ends the menu
}

// menu starts the chosen programs until the input ends.
func (l *launcher) menu(in io.Reader, entries []window.Entry) error {
	out, answers := l.app.stdout, bufio.NewScanner(in)
	for {
		l.write(out, entries)
		fmt.Fprint(out, "Start which program? (number or name, Enter to refresh, q to quit) ")
		if !answers.Scan() {
			fmt.Fprintln(out)
			return answers.Err()
		}
		answer := strings.TrimSpace(answers.Text())
		if answer == "q" {
			return nil
		}
		if answer == "" {
			continue
		}
		e, err := choose(entries, answer)
		if err == nil {
			err = l.start(e)
		}
		if err != nil {
			fmt.Fprintln(out, oneLine(err.Error()))
		}
	}
}

// choose finds a program by its name, or by its number in the list.
func choose(entries []window.Entry, answer string) (*window.Entry, error) {
	if i := slices.IndexFunc(entries, func(e window.Entry) bool { return e.Name == answer }); i >= 0 {
		return &entries[i], nil
	}
	if n, err := strconv.Atoi(answer); err == nil && n >= 1 && n <= len(entries) {
		return &entries[n-1], nil
	}
	return nil, usagef("no program %q in the list; see `xsched window launch --list`", answer)
}

func (l *launcher) startNamed(entries []window.Entry, names []string) error {
	var chosen []*window.Entry
	for _, name := range names { // all or none
		e, err := choose(entries, name)
		if err != nil {
			return err
		}
		chosen = append(chosen, e)
	}
	for _, e := range chosen {
		if err := l.start(e); err != nil {
			return err
		}
	}
	return nil
}

// start runs a program in a session of its own, so that it survives the launcher's terminal.
func (l *launcher) start(e *window.Entry) error {
	if s := l.running[e.Name]; s != nil {
		select {
		case <-s.done:
		default:
			return fmt.Errorf("%s is running as process %d; start it again when it has ended", e.Name, s.pid)
		}
	}
	flags, err := e.Flags()
	if err != nil {
		return err
	}
	program := e.Command[0]
	if strings.Contains(program, "/") && !filepath.IsAbs(program) && e.Dir != "" {
		program = filepath.Join(e.Dir, program)
	}
	if _, err := findProgram(program); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	log, err := openLog(e.Name)
	if err != nil {
		return err
	}
	defer log.Close()
	env := newEnvironment(os.Environ())
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		env.set(name, e.Env[name])
	}
	cmd := &exec.Cmd{
		Path: self, Args: l.runArgs(flags, e.Command), Dir: e.Dir, Env: env.list(), Stdout: log, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", e.Name, err)
	}
	s := &started{pid: cmd.Process.Pid, done: make(chan struct{})}
	l.running[e.Name] = s
	go func() {
		_ = cmd.Wait() // the state says how it ended
		s.end = "ended, " + cmd.ProcessState.String()
		close(s.done)
	}()
	fmt.Fprintf(l.app.stdout, "%s runs as process %d with priority %d; output in %s\n", e.Name, s.pid, e.Priority, log.Name())
	return nil
}

// openLog opens the file for the output of a program.
func openLog(name string) (*os.File, error) {
	dir := control.StateDir(os.Geteuid(), os.Getenv)
	if dir == "" {
		return nil, fmt.Errorf("no folder for the output of %s; set HOME or XSCHED_STATE", name)
	}
	dir = filepath.Join(dir, "launch")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the output of %s: %w; set XSCHED_STATE", name, err)
	}
	file, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the output of %s: %w", name, err)
	}
	return file, nil
}
