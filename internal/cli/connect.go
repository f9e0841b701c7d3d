// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// dirs are the directories in which this user's daemon may run, in the shim's order: --dir, else
// the user's own, else the system's.
func (a *app) dirs() []string {
	if a.dir != "" {
		return []string{a.dir}
	}
	own := control.DefaultDir(os.Geteuid(), os.Getenv)
	system := control.DefaultDir(0, func(string) string { return "" })
	if own == system || os.Getenv("XSCHED_DIR") != "" {
		return []string{own}
	}
	return []string{own, system}
}

// connect connects to the first daemon that answers.
func (a *app) connect(ctx context.Context) (*client.Client, control.Version, error) {
	var tried []string
	for _, dir := range a.dirs() {
		// A container may have the clients' folder alone.
		for _, name := range []string{"", control.ClientDir} {
			c := client.New(filepath.Join(dir, name, control.ControlSocket))
			version, err := a.hello(ctx, c)
			if err == nil {
				return c, version, nil
			}
			c.Close()
			if !errors.Is(err, client.ErrNoDaemon) {
				return nil, control.Version{}, err
			}
		}
		tried = append(tried, filepath.Join(dir, control.ControlSocket))
	}
	for i, dir := range a.dirs() {
		if pid := control.Owner(dir); pid != 0 {
			return nil, control.Version{}, control.Errorf(control.ErrUnavailable, fmt.Sprintf("unless it just started, stop it with `kill %d` and start it again", pid),
				"the daemon (pid %d) runs, but its socket %s is gone", pid, tried[i])
		}
	}
	return nil, control.Version{}, fmt.Errorf("%w at %s; start one with `xsched serve`", client.ErrNoDaemon, strings.Join(tried, " or "))
}

// silence is how long a user waits without a word.
const silence = 1500 * time.Millisecond

// hello asks for the daemon's version. It fails soon if the daemon is stopped, and warns the user if the
// daemon takes long.
func (a *app) hello(ctx context.Context, c *client.Client) (control.Version, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	notice := time.AfterFunc(silence, func() {
		if pid := c.Stopped(); pid != 0 {
			cancel(control.Errorf(control.ErrUnavailable, fmt.Sprintf("continue it with `kill -CONT %d`", pid),
				"the daemon at %s (pid %d) is stopped", c.Socket(), pid))
		} else if ctx.Err() == nil {
			a.warn("the daemon at %s does not answer; still waiting", c.Socket())
		}
	})
	defer notice.Stop()
	version, err := c.Version(ctx)
	if errors.Is(err, context.Canceled) && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	return version, err
}

// withClient runs f with a connected client.
func (a *app) withClient(ctx context.Context, f func(*client.Client) error) error {
	c, _, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c)
}
