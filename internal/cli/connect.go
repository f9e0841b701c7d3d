// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"xsched/internal/api"
	"xsched/internal/daemon"
	"xsched/internal/hub"
)

const controlSocket = "control.sock"

// dirs are the folders where this user's daemon may be, in the order the shim
// looks: the one asked for, else the user's own, else the system's.
func (a *app) dirs() []string {
	if a.dir != "" {
		return []string{a.dir}
	}
	own := hub.DefaultDir(os.Geteuid(), os.Getenv)
	system := hub.DefaultDir(0, func(string) string { return "" })
	if own == system || os.Getenv("XSCHED_DIR") != "" {
		return []string{own}
	}
	return []string{own, system}
}

// connect finds the first daemon that answers; it also says in which folder.
func (a *app) connect(ctx context.Context) (*api.Client, daemon.Version, error) {
	var tried []string
	for _, dir := range a.dirs() {
		client := api.NewClient(filepath.Join(dir, controlSocket))
		version, err := client.Version(ctx)
		if err == nil {
			return client, version, nil
		}
		client.Close()
		if !errors.Is(err, api.ErrNoDaemon) {
			return nil, daemon.Version{}, err
		}
		tried = append(tried, client.Socket())
	}
	return nil, daemon.Version{}, fmt.Errorf("%w at %s; start one with `xsched serve`", api.ErrNoDaemon, strings.Join(tried, " or "))
}

// withClient runs f with a connected client.
func (a *app) withClient(ctx context.Context, f func(*api.Client) error) error {
	client, _, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return f(client)
}
