// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"xsched/internal/api"
	"xsched/internal/control"
	"xsched/internal/control/client"
)

// daemon stands in for a running daemon with one program.
type daemon struct{ control.Control }

func (daemon) List(context.Context, control.Caller) (control.List, error) {
	return control.List{Policy: "HPF", Processes: []control.Process{{PID: 4711, Priority: 10, Command: "serve_model"}}}, nil
}

func (daemon) Suspend(_ context.Context, _ control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return control.ProcessReply{}, control.Errorf(control.ErrNotFound, "see `xsched list`", "process %d is not managed", r.PID)
}

// A client connects to the control socket in the daemon's directory. Its errors are those that the
// daemon returned.
func Example() {
	dir, err := os.MkdirTemp("", "xsched-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, control.ControlSocket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { _ = api.Serve(ctx, l, daemon{}, api.Options{Log: slog.New(slog.DiscardHandler)}) }()

	c := client.New(socket)
	defer c.Close()
	list, err := c.List(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range list.Processes {
		fmt.Printf("%d %s has priority %d under %s\n", p.PID, p.Command, p.Priority, list.Policy)
	}
	_, err = c.Suspend(ctx, 99)
	fmt.Println(errors.Is(err, control.ErrNotFound), err)
	// Output:
	// 4711 serve_model has priority 10 under HPF
	// true process 99 is not managed; see `xsched list`
}
