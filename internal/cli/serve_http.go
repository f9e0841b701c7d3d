// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"xsched/internal/api"
	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/dashboard"
	"xsched/internal/identity"
)

// webOff disables the HTTP listener.
const webOff = "off"

// webOptions are the flags of the HTTP listener.
type webOptions struct{ addr, tokenFile, viewTokenFile string }

func (w *webOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&w.addr, "http", api.DefaultHTTP, "serve HTTP on `HOST:PORT`; off disables it")
	c.Flags().StringVar(&w.tokenFile, "http-token-file", "", "read the bearer token from `FILE`; required if other machines can reach --http")
	c.Flags().StringVar(&w.viewTokenFile, "http-view-token-file", "", "read a second bearer token from `FILE`, which only allows reading: for viewers and Prometheus")
}

// listen binds the address, unless HTTP is off.
func (w webOptions) listen(o daemon.Options) (webServer, error) {
	if w.addr == webOff || w.addr == "" {
		if w.tokenFile != "" || w.viewTokenFile != "" {
			return webServer{}, usagef("a token file needs an address; add --http HOST:PORT")
		}
		return webServer{}, nil
	}
	s, err := api.ListenHTTP(api.HTTPOptions{
		Addr: w.addr, TokenFile: w.tokenFile, ViewTokenFile: w.viewTokenFile, InPod: inPod(os.Getenv), Pages: dashboard.Handler(),
		Log: o.Log, Budget: o.Budget, Health: o.Health,
	})
	return webServer{s}, err
}

// inPod reports whether this is a container of Kubernetes: the kubelet sets the first variable in every one, our
// chart the second.
func inPod(getenv func(string) string) bool {
	return getenv("KUBERNETES_SERVICE_HOST") != "" || getenv(identity.PodVariable) != ""
}

// webServer is a bound listener, or nil.
type webServer struct{ *api.HTTPServer }

func (w webServer) addr() string {
	if w.HTTPServer == nil {
		return webOff
	}
	return w.Addr()
}

func (w webServer) close() {
	if w.HTTPServer != nil {
		_ = w.Close()
	}
}

// serveWith serves HTTP together with another server and returns when either ends.
func (w webServer) serveWith(ctx context.Context, c control.Control, other func(context.Context) error) error {
	if w.HTTPServer == nil {
		return other(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- w.Serve(ctx, c)
	}()
	err := other(ctx)
	cancel()
	return errors.Join(err, <-ended)
}
