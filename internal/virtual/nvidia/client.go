// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"xsched/internal/model"
)

// Client reads a device's ground truth and sets its faults. It is safe for concurrent use.
type Client struct {
	mu   sync.Mutex
	conn net.Conn
}

// Dial connects to the device process behind a socket.
func Dial(path string) (*Client, error) {
	conn, err := net.Dial("unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("dial virtual gpu: %w", err)
	}
	return &Client{conn: conn}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Stats returns counters of the devices and of all clients.
func (c *Client) Stats() (*Stats, error) {
	reply, err := c.ask(debugRequest{Op: "stats"})
	if err != nil {
		return nil, err
	}
	if reply.Stats == nil {
		return nil, errors.New("read stats: the virtual gpu is ending")
	}
	return reply.Stats, nil
}

// Remaps is how often all queues of a GPU were taken off it and put back; 0 where no driver does that.
func (c *Client) Remaps() (uint64, error) {
	stats, err := c.Stats()
	if err != nil {
		return 0, err
	}
	return stats.Remaps, nil
}

// Timeline returns who held the devices between two times, oldest first for each device.
func (c *Client) Timeline(from, to model.Time) ([]Span, error) {
	reply, err := c.ask(debugRequest{Op: "timeline", From: int64(from), To: int64(to)})
	return reply.Spans, err
}

// Waits returns the kernels that were handed over between two times and have started.
func (c *Client) Waits(from, to model.Time) ([]Wait, error) {
	reply, err := c.ask(debugRequest{Op: "waits", From: int64(from), To: int64(to)})
	return reply.Waits, err
}

// SetFault makes the device misbehave: "suspend-noop", "timeslice-ignored", "lose-block" or
// "never-answer:PID".
func (c *Client) SetFault(name string) error {
	_, err := c.ask(debugRequest{Op: "fault", Fault: name})
	return err
}

// ClearFaults ends all faults; a control that was not answered stays so.
func (c *Client) ClearFaults() error {
	_, err := c.ask(debugRequest{Op: "clear-faults"})
	return err
}

// Quit ends the device process.
func (c *Client) Quit() error {
	_, err := c.ask(debugRequest{Op: "quit"})
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil // it was faster than its answer
	}
	return err
}

func (c *Client) ask(q debugRequest) (debugReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := json.Marshal(q)
	if err != nil {
		return debugReply{}, fmt.Errorf("encode request: %w", err)
	}
	_ = c.conn.SetDeadline(time.Now().Add(10 * time.Second))
	packet := binary.LittleEndian.AppendUint32(nil, magicDebug)
	if _, err := c.conn.Write(append(packet, body...)); err != nil {
		return debugReply{}, fmt.Errorf("ask virtual gpu: %w", err)
	}
	var document []byte
	buffer := make([]byte, debugHeader+debugPiece)
	for {
		n, err := c.conn.Read(buffer)
		if err != nil {
			return debugReply{}, fmt.Errorf("read virtual gpu's reply: %w", err)
		}
		if n < debugHeader || binary.LittleEndian.Uint32(buffer) != magicDebug {
			return debugReply{}, fmt.Errorf("read virtual gpu's reply: %w", ErrPacket)
		}
		document = append(document, buffer[debugHeader:n]...)
		if binary.LittleEndian.Uint32(buffer[4:])&flagLast != 0 {
			break
		}
	}
	var reply debugReply
	if err := json.Unmarshal(document, &reply); err != nil {
		return debugReply{}, fmt.Errorf("decode virtual gpu's reply: %w", err)
	}
	if reply.Error != "" {
		return debugReply{}, errors.New(reply.Error)
	}
	return reply, nil
}
