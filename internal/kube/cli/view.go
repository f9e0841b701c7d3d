// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"xsched/internal/control/client"
	"xsched/internal/kube/view"
	"xsched/internal/version"
)

// viewAgain is the pause before a failed view is started again. Claims do not need it.
const viewAgain = 5 * time.Second

// startView shows the node to viewers until the returned function is called.
func startView(ctx context.Context, f nodeFlags, config *rest.Config, daemon *client.Client) (stop func(), err error) {
	if f.viewPort == 0 {
		return func() {}, nil
	}
	api, err := ownAPI(config) // viewers delay no claim
	if err != nil {
		return nil, err
	}
	server := view.New(f.o.Name, version.String(), daemon, api, f.o.Log)
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for ctx.Err() == nil {
			l, err := view.Listen(f.viewPort)
			if err == nil {
				err = server.Serve(ctx, l)
			}
			if err != nil && ctx.Err() == nil {
				f.o.Log.Error("the view of the node failed; trying again", "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(viewAgain):
			}
		}
	})
	return func() {
		cancel()
		wait.Wait()
	}, nil
}
