// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// httpAccept opens connections to the HTTP port. Other sockets of this user make the tables longer that
// a daemon may read for each.
func (a *attacker) httpAccept() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var accepted []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted = append(accepted, c)
		}
	}()
	for range 2000 { // both ends count
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			break
		}
		a.sockets = append(a.sockets, c)
	}
	return a.forever(16, "connections", func(int) error { return connect("tcp", a.http) })
}

// fetch sends a request and reads the reply.
func fetch(c *http.Client, method, url string, body []byte) error {
	r, err := http.NewRequestWithContext(context.Background(), method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

func (a *attacker) overTCP() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 5 * time.Second}
}

func (a *attacker) overUnix() *http.Client {
	return &http.Client{Transport: client.Transport(a.client.Socket()), Timeout: 5 * time.Second}
}

func (a *attacker) healthz() error {
	tcp, local := a.overTCP(), a.overUnix()
	return a.forever(32, "requests", func(i int) error {
		if i%2 == 0 {
			return fetch(tcp, http.MethodGet, "http://"+a.http+"/healthz", nil)
		}
		return fetch(local, http.MethodGet, "http://xsched/healthz", nil)
	})
}

// refusedPuts tries to change what only root may change.
func (a *attacker) refusedPuts() error {
	tcp, local, body := a.overTCP(), a.overUnix(), []byte(`{"name":"FIFO"}`)
	return a.forever(32, "requests", func(i int) error {
		if i%2 == 0 {
			return fetch(tcp, http.MethodPut, "http://"+a.http+control.Prefix+"/policy", body)
		}
		return fetch(local, http.MethodPut, "http://xsched"+control.Prefix+"/policy", body)
	})
}

// reads asks for the largest replies.
func (a *attacker) reads() error {
	tcp, local := a.overTCP(), a.overUnix()
	paths := []string{control.Prefix + "/processes", "/metrics", control.Prefix + "/history?seconds=3600", control.Prefix + "/journal", control.Prefix + "/stats", control.Prefix + "/devices"}
	return a.forever(32, "requests", func(i int) error {
		path := paths[i/2%len(paths)]
		if i%2 == 0 {
			return fetch(tcp, http.MethodGet, "http://"+a.http+path, nil)
		}
		return fetch(local, http.MethodGet, "http://xsched"+path, nil)
	})
}

// slowReaders asks for streams and large replies, and reads nothing.
func (a *attacker) slowReaders() error {
	request := func(network, address, path string) {
		c, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			return
		}
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetReadBuffer(4096)
		}
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", path)
		a.sockets = append(a.sockets, c)
	}
	for i := range 56 {
		path := control.Prefix + "/events"
		if i%4 == 0 {
			path += "?every_ms=250&with=snapshot,devices,journal,history"
		}
		request("tcp", a.http, path)
		request("unix", a.client.Socket(), path)
	}
	a.count.Store(int64(len(a.sockets)))
	a.ready("streams")
	for {
		time.Sleep(50 * time.Millisecond)
		for _, c := range a.sockets { // pipelined requests, whose replies nobody reads either
			_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
			_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", control.Prefix+"/processes")
		}
	}
}

// hintRequests changes the hints of own programs through the control socket.
func (a *attacker) hintRequests() error {
	var pids []int
	for range 150 {
		cmd := a.child("session")
		if err := cmd.Start(); err != nil {
			break
		}
		pids = append(pids, cmd.Process.Pid)
	}
	time.Sleep(1500 * time.Millisecond)
	var tries atomic.Int64 // not the count of successes: a program that was not let in must not stop the rest
	return a.forever(16, "hints", func(int) error {
		n := tries.Add(1)
		priority := int32(-1 - n%200)
		_, err := ask(2*time.Second, func(ctx context.Context) (control.HintReply, error) {
			return a.client.Hint(ctx, control.HintRequest{PID: pids[int(n)%len(pids)], Priority: &priority})
		})
		return err
	})
}
