// SPDX-License-Identifier: Apache-2.0

package upstream

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
	"strconv"
	"strings"
	"time"

	"xsched/internal/control"
)

// Client uses upstream's routes, with this daemon or with upstream's server.
type Client struct {
	// Token, if not empty, is the bearer token; a daemon on another machine requires it.
	Token string

	base string
	http *http.Client
}

// New returns a client of the server at host and port.
func New(host string, port int) *Client {
	return &Client{
		base: "http://" + net.JoinHostPort(host, strconv.Itoa(port)),
		http: &http.Client{
			Timeout:   control.CallTimeout + 5*time.Second,
			Transport: &http.Transport{MaxIdleConns: 2, IdleConnTimeout: 40 * time.Second}, // no proxy: mostly loopback
			// An XSched server does not redirect.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// List returns all queues.
func (c *Client) List(ctx context.Context) (Queues, error) {
	var out Queues
	return out, c.do(ctx, http.MethodGet, "/xqueues", nil, &out)
}

// Config changes a queue. Level 0 and -1 for the others mean no change.
func (c *Client) Config(ctx context.Context, handle uint64, level int, threshold, batch int64) error {
	query := url.Values{}
	if level != 0 {
		query.Set("level", strconv.Itoa(level))
	}
	if threshold != -1 {
		query.Set("threshold", strconv.FormatInt(threshold, 10))
	}
	if batch != -1 {
		query.Set("batch_size", strconv.FormatInt(batch, 10))
	}
	return c.do(ctx, http.MethodPost, "/config/"+HandleText(handle)+"?"+query.Encode(), nil, nil)
}

// Policy returns the current policy.
func (c *Client) Policy(ctx context.Context) (PolicyReply, error) {
	var out PolicyReply
	return out, c.do(ctx, http.MethodGet, "/policy", nil, &out)
}

// SetPolicy sets the policy by number.
func (c *Client) SetPolicy(ctx context.Context, number int) error {
	return c.do(ctx, http.MethodPost, "/policy?policy="+strconv.Itoa(number), nil, nil)
}

// Hint sends a hint. It returns the server's note on what was set instead; upstream's has none.
func (c *Client) Hint(ctx context.Context, h Hint) (note string, err error) {
	var out struct {
		Note string `json:"note"`
	}
	err = c.do(ctx, http.MethodPost, "/hint", h, &out)
	return out.Note, err
}

func (c *Client) do(ctx context.Context, method, path string, request, reply any) error {
	var body io.Reader
	if request != nil {
		encoded, err := json.Marshal(request)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(encoded)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if request != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return context.Canceled
		}
		return &control.Error{
			Kind: control.ErrUnavailable, Cause: fmt.Sprintf("no server responds at %s: %v", c.base, control.Innermost(err)),
			Remedy: "start one with `xsched serve`, or select one with -a and -p",
		}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, control.MaxReplyBytes))
	if err != nil {
		return fmt.Errorf("read the server's reply: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return refusedBy(answer.Status, text)
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(text, reply); err != nil {
		return fmt.Errorf("read the server's reply: %w", err)
	}
	return nil
}

// refusedBy extracts the reason from an error reply, in upstream's format or ours.
func refusedBy(status string, text []byte) error {
	var plain struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(text, &plain) == nil && plain.Error != "" {
		return fmt.Errorf("the server refused: %s (%s)", plain.Error, status)
	}
	var typed control.ErrorReply
	if json.Unmarshal(text, &typed) == nil && typed.Error.Cause != "" {
		return control.DecodeError(typed.Error)
	}
	return fmt.Errorf("the server answered %s %s", status, strings.TrimSpace(string(text[:min(len(text), 200)])))
}
