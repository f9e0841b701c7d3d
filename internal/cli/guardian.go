// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"xsched/internal/driver/registry"
	"xsched/internal/guardian"
)

func (a *app) guardianCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guardian",
		Short:  "Restore attached programs when the daemon dies (started by the daemon)",
		Hidden: true,
		Args:   cobra.ArbitraryArgs, // shown in ps: "trace PID"
		RunE:   func(*cobra.Command, []string) error { return guardian.Main(3, registry.All()) },
	}
}
