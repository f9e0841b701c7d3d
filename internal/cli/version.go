// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/embedded"
	build "xsched/internal/version"
	"xsched/internal/wire"
)

// version identifies this build: daemons, guardians and recordings compare it.
var version = build.String()

// versionReply is what `version --json` prints.
type versionReply struct {
	Version     string           `json:"version"`
	Commit      string           `json:"commit,omitempty"`
	WireVersion int              `json:"wire_version"`
	Go          string           `json:"go"`
	Platform    string           `json:"platform"`
	Shim        string           `json:"shim"` // content hash; empty if built without
	Daemon      *control.Version `json:"daemon,omitempty"`
}

func versionCommand(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of xsched and of a running daemon",
		Example: `  xsched version --json`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply := versionReply{
				Version: build.Release, Commit: build.Commit, WireVersion: wire.Version, Go: runtime.Version(),
				Platform: runtime.GOOS + "/" + runtime.GOARCH, Shim: embedded.Digest(embedded.Shim),
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
			defer cancel()
			if client, running, err := a.connect(ctx); err == nil {
				reply.Daemon = &running
				client.Close()
			}
			if asJSON {
				return a.printJSON(reply)
			}
			shim := "not included"
			if reply.Shim != "" {
				shim = reply.Shim
			}
			fmt.Fprintf(a.stdout, "xsched %s (wire %d, %s, %s, shim %s)\n", version, reply.WireVersion, reply.Go, reply.Platform, shim)
			if d := reply.Daemon; d != nil {
				kind := ""
				if d.Virtual {
					kind = ", virtual GPU"
				}
				fmt.Fprintf(a.stdout, "daemon %s (wire %d, PID %d, uid %d%s) in %s\n", d.Version, d.WireVersion, d.PID, d.UID, kind, d.Dir)
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
