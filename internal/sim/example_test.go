// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"fmt"

	"xsched/internal/sim"
)

// The simulator runs a scenario under several policies. Equal seeds give equal results.
func ExampleRun() {
	scenario, err := sim.Parse("inference.yaml", []byte(`
name: inference beside training
duration: 2s
tenants:
  - name: service
    hint: {priority: 10}
    arrivals: {rate: 100}
    kernel: 90us
  - name: training
    arrivals: {closed: {depth: 2}}
    kernel: 20ms
`), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := sim.Run(context.Background(), scenario, sim.Options{Policies: []string{"native", "HPF"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	native, hpf := result.Runs[0].Classes, result.Runs[1].Classes
	fmt.Println("latency of the service is lower under HPF:", hpf[0].Latency.P99 < native[0].Latency.P99)
	fmt.Println("the training keeps more than 90 %:", hpf[1].Kept > 0.9)
	// Output:
	// latency of the service is lower under HPF: true
	// the training keeps more than 90 %: true
}
