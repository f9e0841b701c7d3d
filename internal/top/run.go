// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	tea "charm.land/bubbletea/v2"
)

// refreshRate limits the drawing, in Hz. Data changes once an interval; more is for keys alone.
const refreshRate = 20

// Run shows the view on a terminal until the user quits or a signal ends it. The terminal is
// restored in each case, also if the terminal itself is gone or the program panics.
func Run(ctx context.Context, source Source, o Options, in, out *os.File, environ []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := tea.NewProgram(New(ctx, source, o), tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(environ),
		tea.WithFPS(refreshRate), tea.WithoutSignalHandler())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-signals:
			p.Quit()
		case <-ended:
		}
	}()
	_, err := p.Run()
	switch {
	case errors.Is(err, tea.ErrProgramPanic):
		return errors.New("the view failed, see the stack above; please report it")
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("show the view: %w", err)
	}
	return nil
}
