// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"xsched/internal/kube/cluster"
)

// forward opens a connection to the view of a pod, through the API server and the kubelet. Like every dialer
// of the library it has no context: the caller gives it up.
func forward(config *rest.Config, client kubernetes.Interface, namespace, pod string) (net.Conn, error) {
	url := client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	socket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection: %w", err)
	}
	older := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	dialer := portforward.NewFallbackDialerForStreaming(socket, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	c, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	t, err := newTunnel(c)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

// tunnel is a connection to a port of a pod: a stream of data, and one for an error.
type tunnel struct {
	httpstream.Stream
	all httpstream.Connection

	mu      sync.Mutex
	problem error // why the other end has no connection
}

func newTunnel(c httpstream.Connection) (*tunnel, error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(cluster.ViewPort))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := c.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	_ = failures.Close() // is only read
	headers = headers.Clone()
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := c.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	t := &tunnel{Stream: data, all: c}
	go func() {
		text, _ := io.ReadAll(io.LimitReader(failures, maxTail))
		if len(text) == 0 {
			return
		}
		t.mu.Lock()
		t.problem = fmt.Errorf("the node plugin does not answer; see the log of container node: %s", oneLine(string(text)))
		t.mu.Unlock()
		_ = t.Close()
	}()
	return t, nil
}

func (t *tunnel) explain(n int, err error) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil && t.problem != nil {
		err = t.problem
	}
	return n, err
}

// Read implements net.Conn.
func (t *tunnel) Read(p []byte) (int, error) { return t.explain(t.Stream.Read(p)) }

// Write implements net.Conn.
func (t *tunnel) Write(p []byte) (int, error) { return t.explain(t.Stream.Write(p)) }

// Close ends the connection with all its streams.
func (t *tunnel) Close() error { return t.all.Close() }

// tunnelAddr is both addresses of a tunnel.
type tunnelAddr struct{}

func (tunnelAddr) Network() string { return "portforward" }
func (tunnelAddr) String() string  { return "view" }

// LocalAddr implements net.Conn.
func (*tunnel) LocalAddr() net.Addr { return tunnelAddr{} }

// RemoteAddr implements net.Conn.
func (*tunnel) RemoteAddr() net.Addr { return tunnelAddr{} }

// SetDeadline implements net.Conn. Contexts bound the requests.
func (*tunnel) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (*tunnel) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (*tunnel) SetWriteDeadline(time.Time) error { return nil }

// dial opens a connection to the view of a pod.
func (d *Daemons) dial(ctx context.Context, pod string) (net.Conn, error) {
	if d.Dial != nil {
		return d.Dial(ctx, pod)
	}
	return forward(d.Config, d.Client, d.Namespace, pod)
}
