// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"xsched/internal/control"
)

// ErrStreamEnded reports that the daemon ended an event stream.
var ErrStreamEnded = errors.New("the daemon ended the stream")

// Events calls f for each event until ctx ends, f fails or the daemon ends the stream.
func (c *Client) Events(ctx context.Context, r control.EventsRequest, f func(name string, data []byte) error) error {
	q := url.Values{}
	if r.EveryMS != 0 {
		q.Set("every_ms", strconv.Itoa(r.EveryMS))
	}
	if r.With != "" {
		q.Set("with", r.With)
	}
	if r.Since != 0 {
		q.Set("since", strconv.FormatUint(r.Since, 10))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://xsched"+control.Prefix+"/events?"+q.Encode(), nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	endless := http.Client{Transport: c.http.Transport} // without a time limit
	answer, err := endless.Do(request)
	if err != nil {
		return c.explain(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		var failure control.ErrorReply
		if err := json.NewDecoder(io.LimitReader(answer.Body, control.MaxReplyBytes)).Decode(&failure); err != nil || failure.Error.Cause == "" {
			return control.Errorf(control.ErrUnavailable, "check that an xsched daemon of this version listens on it", "%s answered %s", c.socket, answer.Status)
		}
		return control.DecodeError(failure.Error)
	}
	err = readEvents(answer.Body, f)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// readEvents parses server-sent events: an event ends with an empty line; its data are the joined
// lines "data:".
func readEvents(r io.Reader, f func(name string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, control.MaxReplyBytes)
	name, data, some := "", []byte(nil), false
	for lines.Scan() {
		line := lines.Bytes()
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0:
			if some {
				if err := f(name, data); err != nil {
					return err
				}
			}
			name, data, some = "", data[:0], false
		case string(field) == "event":
			name = string(value)
		case string(field) == "data":
			if some {
				data = append(data, '\n')
			}
			if data, some = append(data, value...), true; len(data) > control.MaxReplyBytes {
				return errors.New("an event is too large")
			}
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read events: %w", err)
	}
	return ErrStreamEnded
}
