// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"xsched/internal/alert"
	"xsched/internal/api"
	"xsched/internal/control/client"
)

// alertOptions are the flags of serve about alerts.
type alertOptions struct{ command, url, tokenFile string }

func (o *alertOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.command, "alert-command", "", "run `PATH` for each alert, which gets it as JSON on its standard input")
	c.Flags().StringVar(&o.url, "alert-url", "", "send each alert as JSON in a POST to `URL`")
	c.Flags().StringVar(&o.tokenFile, "alert-token-file", "", "read the bearer token for --alert-url from `FILE`")
}

// receivers reads the token.
func (o *alertOptions) receivers() (out alert.Options, err error) {
	out.Command, out.URL = o.command, o.url
	if o.tokenFile != "" {
		out.Token, err = api.ReadToken(o.tokenFile)
	}
	return out, err
}

// shownURL hides the path of the address, which is the secret of many chat services.
func (o *alertOptions) shownURL() string {
	if u, err := url.Parse(o.url); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host + "/" + pseudonym(o.url)
	}
	return pseudonym(o.url)
}

func alertTestCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "alert-test",
		Short: "Send a test alert",
		Long: `Make the daemon send an alert of kind "test" to its command and address
(--alert-command and --alert-url of ` + "`xsched serve`" + `), and wait until both have it.
Exit code 1 with the cause if one of them does not get it within 10 s.

It requires root or the daemon's user.`,
		Example: `  sudo xsched alert-test`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(daemon *client.Client) error {
				_, err := daemon.AlertTest(cmd.Context())
				if err == nil {
					fmt.Fprintln(a.stdout, "test alert delivered")
				}
				return err
			})
		},
	}
}
