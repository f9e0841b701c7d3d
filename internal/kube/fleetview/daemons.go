// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// Names in the DaemonSet.
const (
	selector  = "app.kubernetes.io/name=xsched,app.kubernetes.io/component=node"
	container = "daemon"
	program   = "/usr/bin/xsched"
)

const (
	concurrent = 32               // commands that wait for an answer at once
	patience   = 10 * time.Second // for an answer, unless told otherwise
	page       = 500              // pods of one request, so that a large cluster's API server keeps few in memory
)

// Daemons are the daemons of a cluster.
type Daemons struct {
	Config    *rest.Config
	Client    kubernetes.Interface
	Namespace string
	// Timeout bounds the wait for one node; 0: ten seconds.
	Timeout time.Duration
}

// Target is a daemon's pod. Problem tells why it can't be asked.
type Target struct{ Node, Pod, Problem string }

// Targets returns the daemons' pods by node: of one node, or with an empty name of all.
func (d *Daemons) Targets(ctx context.Context, node string) ([]Target, error) {
	options := metav1.ListOptions{LabelSelector: selector, Limit: page}
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	var all []corev1.Pod
	pods, err := d.Client.CoreV1().Pods(d.Namespace).List(ctx, options)
	for ; err == nil; pods, err = d.Client.CoreV1().Pods(d.Namespace).List(ctx, options) {
		all = append(all, pods.Items...)
		if options.Continue = pods.Continue; options.Continue == "" {
			break
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("not allowed to list pods in %s; ask for the role xsched-viewer there", d.Namespace)
	case err != nil:
		return nil, fmt.Errorf("list the daemons' pods: %w", err)
	case len(all) == 0 && node != "":
		return nil, fmt.Errorf("node %s has no daemon; see `kubectl -n %s get pods -o wide`", node, d.Namespace)
	case len(all) == 0:
		return nil, fmt.Errorf("no daemon in namespace %s; install the chart xsched", d.Namespace)
	}
	return choose(all), nil
}

// choose takes the best pod of each node: during an update a node has two.
func choose(pods []corev1.Pod) []Target {
	best := map[string]corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			continue // not placed yet
		}
		if old, ok := best[p.Spec.NodeName]; !ok || problem(&old) != "" && problem(&p) == "" {
			best[p.Spec.NodeName] = p
		}
	}
	var out []Target
	for node, p := range best {
		out = append(out, Target{node, p.Name, problem(&p)})
	}
	slices.SortFunc(out, func(a, b Target) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// problem tells why the daemon of a pod can't be asked.
func problem(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "the pod ends"
	}
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.Name != container:
		case s.State.Running != nil:
			return ""
		case s.State.Waiting != nil:
			return strings.TrimSuffix("the daemon waits: "+s.State.Waiting.Reason+" "+oneLine(s.State.Waiting.Message), " ")
		default:
			return "the daemon has ended"
		}
	}
	return "the pod is " + strings.ToLower(cmp.Or(string(p.Status.Phase), "unknown"))
}

// Exec runs xsched with arguments in a daemon's container and writes its output to out. An error of
// the command itself is its one line on standard error.
func (d *Daemons) Exec(ctx context.Context, pod string, out io.Writer, args ...string) error {
	request := d.Client.CoreV1().RESTClient().Post().Namespace(d.Namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: append([]string{program}, args...), Stdout: true, Stderr: true}, scheme.ParameterCodec)
	socket, err := remotecommand.NewWebSocketExecutor(d.Config, http.MethodGet, request.URL().String())
	if err != nil {
		return fmt.Errorf("prepare exec: %w", err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(d.Config, http.MethodPost, request.URL())
	if err != nil {
		return fmt.Errorf("prepare exec: %w", err)
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return fmt.Errorf("prepare exec: %w", err)
	}
	var complaint tail
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: &complaint})
	var exit utilexec.ExitError
	switch {
	case err == nil || ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		return &CommandError{exit.ExitStatus(), cmp.Or(strings.TrimPrefix(complaint.String(), "xsched: "), fmt.Sprintf("the command ended with exit code %d", exit.ExitStatus()))}
	case apierrors.IsForbidden(err) || strings.Contains(err.Error(), "forbidden"):
		return fmt.Errorf("not allowed to exec in %s; ask for the role xsched-viewer there", d.Namespace)
	}
	return fmt.Errorf("exec: %w", err)
}

// CommandError is the failure of a command in a container.
type CommandError struct {
	Code int
	Text string
}

func (e *CommandError) Error() string { return e.Text }

// tail keeps the end of what a command prints.
type tail struct{ text []byte }

const maxTail = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(p), nil
}

func (t *tail) String() string { return oneLine(string(t.text)) }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Ask runs a command on all targets and gives each answer to done, or why there is none. A fixed number is
// asked at once, and none is waited for longer than the timeout.
func (d *Daemons) Ask(ctx context.Context, targets []Target, done func(i int, answer []byte, err error), args ...string) {
	var all sync.WaitGroup
	slots := make(chan struct{}, concurrent)
	for i, t := range targets {
		if t.Problem != "" {
			done(i, nil, errors.New(t.Problem))
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			answer, err := d.ask(ctx, t.Pod, args...)
			done(i, answer, err)
		})
	}
	all.Wait()
}

// ask returns what a command prints, also if it fails.
func (d *Daemons) ask(ctx context.Context, pod string, args ...string) ([]byte, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer d.whenSilent(cancel).Stop()
	out := limited{most: maxLine}
	err := d.Exec(waiting, pod, &out, args...)
	if err != nil && waiting.Err() != nil {
		err = context.Cause(waiting)
	}
	return out.take(), err
}

// patience is the time that a node has for an answer.
func (d *Daemons) patience() time.Duration { return cmp.Or(d.Timeout, patience) }

// whenSilent ends the wait for a node, unless it is stopped. A deadline of the context would not do: the
// network's own errors come first.
func (d *Daemons) whenSilent(cancel context.CancelCauseFunc) *time.Timer {
	return time.AfterFunc(d.patience(), func() { cancel(fmt.Errorf("no answer within %s", d.patience())) })
}

// Once asks all targets for a snapshot.
func (d *Daemons) Once(ctx context.Context, targets []Target) Fleet {
	nodes := make([]Node, len(targets))
	d.Ask(ctx, targets, func(i int, answer []byte, err error) {
		nodes[i] = Node{Name: targets[i].Node, Pod: targets[i].Pod}
		if err == nil {
			nodes[i].Snapshot, err = parse(answer)
		}
		if err != nil {
			nodes[i].Error = oneLine(err.Error())
		}
	}, "top", "--once", "--json")
	return Fleet{TimeNS: now(), Nodes: nodes}
}

// limited is a buffer that refuses to grow beyond a bound. The stream of a command that was given up may still
// write to it.
type limited struct {
	most  int
	mu    sync.Mutex
	text  []byte
	taken bool
}

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.taken:
		return 0, io.ErrClosedPipe
	case len(l.text)+len(p) > l.most:
		return 0, fmt.Errorf("the answer has more than %d bytes", l.most)
	}
	l.text = append(l.text, p...)
	return len(p), nil
}

// take returns what was written. More is refused from now on.
func (l *limited) take() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = true
	return l.text
}
