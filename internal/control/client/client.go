// SPDX-License-Identifier: Apache-2.0

// Package client is the typed client of the daemon's control socket. Its methods return
// the errors of package control, so errors.Is works as it does inside the control.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// ErrNoDaemon reports that no daemon listens on the control socket.
var ErrNoDaemon = errors.New("no daemon")

// Client talks to the daemon behind one control socket.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client of the control socket at a path, which connects on first use.
func New(socket string) *Client {
	return &Client{
		socket: socket,
		http:   &http.Client{Timeout: control.CallTimeout + 5*time.Second, Transport: Transport(socket)},
	}
}

// Transport sends every request to the control socket at a path.
func Transport(socket string) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			conn, err := dial(ctx, socket)
			if err != nil {
				return nil, err
			}
			if err := checkServer(conn, socket); err != nil {
				_ = conn.Close()
				return nil, err
			}
			return conn, nil
		},
		MaxIdleConns:    2,
		IdleConnTimeout: 10 * time.Second,
	}
}

// dialTime limits how long a connection may take.
const dialTime = 3 * time.Second

// dial connects. A full queue of connections is somebody else's flood, or a daemon that is stopped: places
// become free all the time, or never.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Millisecond):
		}
	}
}

// checkServer refuses a daemon of another user than root or this one: it would learn the requests and
// invent the replies.
func checkServer(conn net.Conn, socket string) error {
	cred, err := credentials(conn)
	if err != nil {
		return err
	}
	if uid := int(cred.Uid); uid != 0 && uid != os.Geteuid() && !identity.Unmapped(uid) {
		return &control.Error{
			Kind: control.ErrNotAllowed, Cause: fmt.Sprintf("the daemon at %s belongs to uid %d, neither to you nor to root", socket, uid),
			Remedy: "use another directory with --dir, or run as that user",
		}
	}
	return nil
}

// credentials returns those of the process that listens at the other end.
func credentials(conn net.Conn) (*unix.Ucred, error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read the daemon's credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return nil, fmt.Errorf("read the daemon's credentials: %w", err)
	}
	return cred, nil
}

// Stopped returns the PID of a daemon that a signal stopped, or 0. Such a daemon accepts connections and
// never answers.
func (c *Client) Stopped() int {
	conn, err := net.DialTimeout("unix", c.socket, time.Second)
	if err != nil {
		return 0
	}
	defer conn.Close()
	cred, err := credentials(conn)
	if err != nil {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cred.Pid))
	if err != nil {
		return 0
	}
	// PID (COMMAND) STATE ...; the command may contain anything.
	_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
	if strings.HasPrefix(rest, "T") || strings.HasPrefix(rest, "t") {
		return int(cred.Pid)
	}
	return 0
}

// Socket returns the path of the control socket.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Version returns the daemon's version and configuration.
func (c *Client) Version(ctx context.Context) (control.Version, error) {
	return do[control.Version](ctx, c, http.MethodGet, "/version", nil)
}

// List returns all managed processes.
func (c *Client) List(ctx context.Context) (control.List, error) {
	return do[control.List](ctx, c, http.MethodGet, "/processes", nil)
}

// Devices returns all known GPUs.
func (c *Client) Devices(ctx context.Context) (control.Devices, error) {
	return do[control.Devices](ctx, c, http.MethodGet, "/devices", nil)
}

// Stats returns the daemon's statistics.
func (c *Client) Stats(ctx context.Context) (control.Stats, error) {
	return do[control.Stats](ctx, c, http.MethodGet, "/stats", nil)
}

// History returns who used each GPU.
func (c *Client) History(ctx context.Context, r control.HistoryRequest) (control.History, error) {
	q := url.Values{}
	if r.Seconds != 0 {
		q.Set("seconds", strconv.Itoa(r.Seconds))
	}
	if r.Device != "" {
		q.Set("device", r.Device)
	}
	if r.SinceNS != 0 {
		q.Set("since_ns", strconv.FormatInt(r.SinceNS, 10))
	}
	return do[control.History](ctx, c, http.MethodGet, "/history?"+q.Encode(), nil)
}

// Journal returns the events after a number.
func (c *Client) Journal(ctx context.Context, r control.JournalRequest) (control.Journal, error) {
	q := url.Values{}
	if r.Since != 0 {
		q.Set("since", strconv.FormatUint(r.Since, 10))
	}
	if r.Max != 0 {
		q.Set("max", strconv.Itoa(r.Max))
	}
	if r.PerKind {
		q.Set("per_kind", "true")
	}
	return do[control.Journal](ctx, c, http.MethodGet, "/journal?"+q.Encode(), nil)
}

// Report returns who used how much of the GPUs.
func (c *Client) Report(ctx context.Context, r control.ReportRequest) (control.Report, error) {
	q := url.Values{}
	if r.Since != "" {
		q.Set("since", r.Since)
	}
	if r.By != "" {
		q.Set("by", r.By)
	}
	return do[control.Report](ctx, c, http.MethodGet, "/report?"+q.Encode(), nil)
}

// Hint changes the hints that the request sets and returns all effective hints.
func (c *Client) Hint(ctx context.Context, r control.HintRequest) (control.HintReply, error) {
	return do[control.HintReply](ctx, c, http.MethodPost, "/hint", r)
}

// Policy returns the current policy.
func (c *Client) Policy(ctx context.Context) (control.PolicyReply, error) {
	return do[control.PolicyReply](ctx, c, http.MethodGet, "/policy", nil)
}

// SetPolicy sets the policy.
func (c *Client) SetPolicy(ctx context.Context, r control.PolicyRequest) (control.PolicyReply, error) {
	return do[control.PolicyReply](ctx, c, http.MethodPut, "/policy", r)
}

// Mode returns the current mode.
func (c *Client) Mode(ctx context.Context) (control.ModeReply, error) {
	return do[control.ModeReply](ctx, c, http.MethodGet, "/mode", nil)
}

// SetMode sets the mode.
func (c *Client) SetMode(ctx context.Context, r control.ModeRequest) (control.ModeReply, error) {
	return do[control.ModeReply](ctx, c, http.MethodPut, "/mode", r)
}

// Suspend suspends a process until Resume.
func (c *Client) Suspend(ctx context.Context, pid int) (control.ProcessReply, error) {
	return do[control.ProcessReply](ctx, c, http.MethodPost, "/suspend", control.ProcessRequest{PID: pid})
}

// Resume resumes a process after Suspend.
func (c *Client) Resume(ctx context.Context, pid int) (control.ProcessReply, error) {
	return do[control.ProcessReply](ctx, c, http.MethodPost, "/resume", control.ProcessRequest{PID: pid})
}

// Attach starts managing a process that has no shim.
func (c *Client) Attach(ctx context.Context, pid int) (control.ProcessReply, error) {
	return do[control.ProcessReply](ctx, c, http.MethodPost, "/attach", control.ProcessRequest{PID: pid})
}

// AttachWith attaches and sets the hints of the request.
func (c *Client) AttachWith(ctx context.Context, r control.ProcessRequest) (control.ProcessReply, error) {
	return do[control.ProcessReply](ctx, c, http.MethodPost, "/attach", r)
}

// Detach stops managing an attached process.
func (c *Client) Detach(ctx context.Context, pid int) (control.ProcessReply, error) {
	return do[control.ProcessReply](ctx, c, http.MethodPost, "/detach", control.ProcessRequest{PID: pid})
}

// Evict orders memory of a process to host memory, until Restore.
func (c *Client) Evict(ctx context.Context, r control.EvictRequest) (control.MemoryReply, error) {
	return do[control.MemoryReply](ctx, c, http.MethodPost, "/evict", r)
}

// Restore orders the memory of a process back to its GPUs.
func (c *Client) Restore(ctx context.Context, pid int) (control.MemoryReply, error) {
	return do[control.MemoryReply](ctx, c, http.MethodPost, "/restore", control.ProcessRequest{PID: pid})
}

// Queues returns a process's hardware queues.
func (c *Client) Queues(ctx context.Context, pid int) (control.HardwareQueues, error) {
	return do[control.HardwareQueues](ctx, c, http.MethodPost, "/queues", control.ProcessRequest{PID: pid})
}

// Config returns the configuration in force.
func (c *Client) Config(ctx context.Context) (control.ConfigReply, error) {
	return do[control.ConfigReply](ctx, c, http.MethodGet, "/config", nil)
}

// Reload makes the daemon read its configuration file again.
func (c *Client) Reload(ctx context.Context) (control.ReloadReply, error) {
	return do[control.ReloadReply](ctx, c, http.MethodPost, "/reload", control.ReloadRequest{})
}

// Grants returns the grants of all sources.
func (c *Client) Grants(ctx context.Context) (control.GrantsReply, error) {
	return do[control.GrantsReply](ctx, c, http.MethodGet, "/grants", nil)
}

// SetGrants replaces the grants of a source.
func (c *Client) SetGrants(ctx context.Context, r control.GrantsRequest) (control.GrantsReply, error) {
	return do[control.GrantsReply](ctx, c, http.MethodPut, "/grants/"+url.PathEscape(r.Source), r)
}

// Holds returns the holds of all sources.
func (c *Client) Holds(ctx context.Context) (control.HoldsReply, error) {
	return do[control.HoldsReply](ctx, c, http.MethodGet, "/holds", nil)
}

// SetHolds replaces the holds of a source.
func (c *Client) SetHolds(ctx context.Context, r control.HoldsRequest) (control.HoldsReply, error) {
	return do[control.HoldsReply](ctx, c, http.MethodPut, "/holds/"+url.PathEscape(r.Source), r)
}

// AlertTest sends a test alert.
func (c *Client) AlertTest(ctx context.Context) (control.AlertTest, error) {
	return do[control.AlertTest](ctx, c, http.MethodPost, "/alert-test", control.AlertTest{})
}

// Wedge blocks the engine loop: fault injection on the virtual GPU.
func (c *Client) Wedge(ctx context.Context, d time.Duration) (control.WedgeReply, error) {
	return do[control.WedgeReply](ctx, c, http.MethodPost, "/wedge", control.WedgeRequest{DurationMS: d.Milliseconds()})
}

func do[Reply any](ctx context.Context, c *Client, method, route string, request any) (Reply, error) {
	var reply Reply
	var body io.Reader
	if request != nil {
		encoded, err := json.Marshal(request)
		if err != nil {
			return reply, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(encoded)
	}
	// The host is not resolved; every connection goes to the socket.
	r, err := http.NewRequestWithContext(ctx, method, "http://xsched"+control.Prefix+route, body)
	if err != nil {
		return reply, fmt.Errorf("make request: %w", err)
	}
	if request != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return reply, c.explain(err)
	}
	defer answer.Body.Close()
	limited := io.LimitReader(answer.Body, control.MaxReplyBytes)
	if answer.StatusCode != http.StatusOK {
		var failure control.ErrorReply
		if err := json.NewDecoder(limited).Decode(&failure); err != nil || failure.Error.Cause == "" {
			return reply, &control.Error{
				Kind: control.ErrUnavailable, Cause: fmt.Sprintf("%s answered %s", c.socket, answer.Status),
				Remedy: "check that an xsched daemon of this version listens on it",
			}
		}
		return reply, control.DecodeError(failure.Error)
	}
	if err := json.NewDecoder(limited).Decode(&reply); err != nil {
		return reply, fmt.Errorf("read the daemon's reply: %w", err)
	}
	return reply, nil
}

// isAbsent reports that nobody listens on the socket.
func isAbsent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}

// refused returns why the socket accepts no more connections, or nil. The process that keeps the
// sockets of a killed daemon outlives it by some milliseconds: a connection that was made then ends.
func (c *Client) refused() error {
	for range 10 {
		conn, err := net.DialTimeout("unix", c.socket, time.Second)
		if err != nil {
			return err
		}
		_ = conn.Close()
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// explain converts a connection error to its cause and remedy.
func (c *Client) explain(err error) error {
	if refused, ok := errors.AsType[*control.Error](err); ok {
		return refused
	}
	if long := control.CheckSocketPath(c.socket); long != nil {
		return long
	}
	none := fmt.Errorf("%w at %s; start one with `xsched serve`", ErrNoDaemon, c.socket)
	switch {
	case isAbsent(err):
		return none
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return &control.Error{
			Kind: control.ErrNotAllowed, Cause: "no permission to connect to the daemon at " + c.socket,
			Remedy: "use sudo, or start your own daemon with `xsched serve`",
		}
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return &control.Error{
			Kind: control.ErrUnavailable, Cause: "the daemon at " + c.socket + " does not respond",
			Remedy: "check its log and restart it; programs run natively in the meantime",
		}
	}
	if isAbsent(c.refused()) {
		return none
	}
	return &control.Error{
		Kind: control.ErrUnavailable, Cause: fmt.Sprintf("connect to the daemon at %s: %v", c.socket, control.Innermost(err)),
		Remedy: "check that it is running",
	}
}
