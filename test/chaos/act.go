// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/wire"
)

// actCommand runs this program as the second user, if there is one.
func (w *world) actCommand(name string, f Fault) *exec.Cmd {
	cmd := exec.Command(w.tools.self, "act", name, w.dir, strconv.Itoa(f.ForMS), strconv.Itoa(w.tenant(f.Role).pid()))
	cmd.Env = w.env("HOME=" + filepath.Join(w.base, "user"))
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: secondUser, Gid: secondUser}}
	}
	return cmd
}

// act is the other user: NAME DIR MS PID.
func act(args []string) error {
	if len(args) != 4 {
		return errors.New("use: chaos act NAME DIR MS PID")
	}
	ms, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
	defer cancel()
	a := actorState{dir: args[1], pid: pid, client: client.New(filepath.Join(args[1], "control.sock"))}
	does := map[string]func(context.Context){
		"hog": hog, "connections": a.connections, "requests": a.requests, "garbage": a.garbage, "hints": a.hints, "forbidden": a.forbidden,
	}
	do := does[args[0]]
	if do == nil {
		return fmt.Errorf("unknown act %q", args[0])
	}
	do(ctx)
	return nil
}

type actorState struct {
	dir    string
	pid    int
	client *client.Client
}

// hog keeps every processor busy.
func hog(ctx context.Context) {
	for range runtime.NumCPU() {
		go func() {
			for n := 0; ; n++ {
				_ = n * n
			}
		}()
	}
	<-ctx.Done()
}

// connections opens connections that say nothing.
func (a actorState) connections(ctx context.Context) {
	var open []net.Conn
	for i := 0; ctx.Err() == nil; i++ {
		network, name := "unix", "control.sock"
		if i%2 == 0 {
			network, name = "unixpacket", "xsched.sock"
		}
		c, err := net.DialTimeout(network, filepath.Join(a.dir, name), 100*time.Millisecond)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if open = append(open, c); len(open) > 200 {
			_ = open[0].Close()
			open = open[1:]
		}
	}
}

// requests asks for the largest answers on many connections.
func (a actorState) requests(ctx context.Context) {
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			dialer := &net.Dialer{}
			c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", filepath.Join(a.dir, "control.sock"))
			}}}
			for ctx.Err() == nil {
				for _, route := range []string{"/processes", "/stats", "/devices"} {
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://xsched"+control.Prefix+route, nil)
					if err != nil {
						return
					}
					if answer, err := c.Do(r); err == nil {
						_ = answer.Body.Close()
					} else {
						time.Sleep(5 * time.Millisecond)
					}
				}
			}
		})
	}
	all.Wait()
}

// garbage joins with a right or a wrong hello and sends noise.
func (a actorState) garbage(ctx context.Context) {
	noise := make([]byte, 2048)
	for ctx.Err() == nil {
		c, err := net.DialTimeout("unixpacket", filepath.Join(a.dir, "xsched.sock"), 100*time.Millisecond)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if rand.IntN(2) == 0 {
			_, _ = c.Write(wire.EncodeHello(wire.Hello{PID: uint32(os.Getpid())}))
		}
		for range rand.IntN(20) {
			for i := range noise {
				noise[i] = byte(rand.Uint32())
			}
			if _, err := c.Write(noise[:1+rand.IntN(len(noise)-1)]); err != nil {
				break
			}
		}
		_ = c.Close()
		time.Sleep(time.Millisecond)
	}
}

// hints changes the hints of the user's own program.
func (a actorState) hints(ctx context.Context) {
	for ctx.Err() == nil {
		n, zero := int32(rand.IntN(300)-250), int32(0)
		_, err := a.client.Hint(ctx, control.HintRequest{PID: a.pid, Priority: &n})
		if err != nil {
			time.Sleep(5 * time.Millisecond)
		}
		_, _ = a.client.Hint(ctx, control.HintRequest{PID: a.pid, Priority: &zero})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	zero := int32(0)
	for ctx.Err() == nil {
		if _, err := a.client.Hint(ctx, control.HintRequest{PID: a.pid, Priority: &zero}); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// forbidden tries everything that another user's program must be safe from.
func (a actorState) forbidden(context.Context) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	priority := int32(-200)
	tries := map[string]func() error{
		"suspend": func() error { _, err := a.client.Suspend(ctx, a.pid); return err },
		"hint": func() error {
			_, err := a.client.Hint(ctx, control.HintRequest{PID: a.pid, Priority: &priority})
			return err
		},
		"policy": func() error { _, err := a.client.SetPolicy(ctx, control.PolicyRequest{Name: "FIFO"}); return err },
		"mode":   func() error { _, err := a.client.SetMode(ctx, control.ModeRequest{Mode: "off"}); return err },
		"detach": func() error { _, err := a.client.Detach(ctx, a.pid); return err },
		"attach": func() error { _, err := a.client.Attach(ctx, a.pid); return err },
		"wedge":  func() error { _, err := a.client.Wedge(ctx, 10*time.Millisecond); return err },
	}
	for name, try := range tries {
		if try() == nil {
			fmt.Println("ALLOWED", name)
		}
	}
}
