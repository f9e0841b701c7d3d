// SPDX-License-Identifier: Apache-2.0

package vdevice

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
	gpumodel "xsched/internal/virtual/model"
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
		return nil, fmt.Errorf("dial virtual GPU: %w", err)
	}
	return &Client{conn: conn}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Stats returns counters of the devices and of all clients.
func (c *Client) Stats() (*Stats, error) {
	reply, err := c.ask(Query{Op: "stats"})
	if err != nil {
		return nil, err
	}
	if reply.Stats == nil {
		return nil, errors.New("read stats: the virtual GPU is shutting down")
	}
	return reply.Stats, nil
}

// Remaps counts how often a GPU's queues were all unmapped and mapped again; 0 on NVIDIA.
func (c *Client) Remaps() (uint64, error) {
	stats, err := c.Stats()
	if err != nil {
		return 0, err
	}
	return stats.Remaps, nil
}

// Timeline returns the holders of the devices between two times, oldest first per device.
func (c *Client) Timeline(from, to model.Time) ([]gpumodel.Span, error) {
	reply, err := c.ask(Query{Op: "timeline", From: int64(from), To: int64(to)})
	return reply.Spans, err
}

// Waits returns the kernels that were handed over between two times and have started.
func (c *Client) Waits(from, to model.Time) ([]gpumodel.Wait, error) {
	reply, err := c.ask(Query{Op: "waits", From: int64(from), To: int64(to)})
	return reply.Waits, err
}

// SetFault injects a fault. The error for an unknown fault lists all.
func (c *Client) SetFault(name string) error {
	_, err := c.ask(Query{Op: "fault", Fault: name})
	return err
}

// ClearFaults ends all faults. Controls that were left unanswered stay so.
func (c *Client) ClearFaults() error {
	_, err := c.ask(Query{Op: "clear-faults"})
	return err
}

// Quit ends the device process.
func (c *Client) Quit() error {
	_, err := c.ask(Query{Op: "quit"})
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil // it exited before its reply was sent
	}
	return err
}

func (c *Client) ask(q Query) (Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := json.Marshal(q)
	if err != nil {
		return Reply{}, fmt.Errorf("encode request: %w", err)
	}
	_ = c.conn.SetDeadline(time.Now().Add(10 * time.Second))
	packet := binary.LittleEndian.AppendUint32(nil, TruthMagic)
	if _, err := c.conn.Write(append(packet, body...)); err != nil {
		return Reply{}, fmt.Errorf("ask virtual GPU: %w", err)
	}
	var document []byte
	buffer := make([]byte, truthHeader+truthPiece)
	for {
		n, err := c.conn.Read(buffer)
		if err != nil {
			return Reply{}, fmt.Errorf("read virtual GPU's reply: %w", err)
		}
		if n < truthHeader || binary.LittleEndian.Uint32(buffer) != TruthMagic {
			return Reply{}, fmt.Errorf("read virtual GPU's reply: %w", ErrPacket)
		}
		document = append(document, buffer[truthHeader:n]...)
		if binary.LittleEndian.Uint32(buffer[4:])&flagLast != 0 {
			break
		}
	}
	var reply Reply
	if err := json.Unmarshal(document, &reply); err != nil {
		return Reply{}, fmt.Errorf("decode virtual GPU's reply: %w", err)
	}
	if reply.Error != "" {
		return Reply{}, errors.New(reply.Error)
	}
	return reply, nil
}
