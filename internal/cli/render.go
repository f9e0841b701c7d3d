// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"xsched/internal/report"
)

// renderCommand serves programs in other languages, such as test/gpu, so that every report has the
// same design.
func renderCommand(a *app) *cobra.Command {
	var svg bool
	c := &cobra.Command{
		Use:    "render",
		Short:  "Render a report, given as JSON on standard input, as an HTML page or an SVG file",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var page report.Page
			in := json.NewDecoder(cmd.InOrStdin())
			in.DisallowUnknownFields()
			if err := in.Decode(&page); err != nil {
				return fmt.Errorf("read page: %w", err)
			}
			charts := page.Draw("latency, ms (log)")
			if svg {
				return report.WriteSVG(a.stdout, page.Title, "", charts...)
			}
			return page.Write(a.stdout)
		},
	}
	c.Flags().BoolVar(&svg, "svg", false, "write the charts alone")
	return c
}
