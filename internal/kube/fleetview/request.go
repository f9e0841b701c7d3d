// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/view"
)

// tokenSeconds is the shortest life of a token that the API server grants.
const tokenSeconds = 600

// token is a viewer's token. It is for the views of nodes and nothing else, so that a node can't use it
// elsewhere. The user's own credentials stay with the API server.
type token struct {
	mu    sync.Mutex
	text  string
	err   error // why there is none
	renew time.Time
}

// keepFailure lets the requests to many nodes share one failure.
const keepFailure = 2 * time.Second

// token returns a token that is valid for some minutes.
func (d *Daemons) token(ctx context.Context) (string, error) {
	t := &d.viewer
	t.mu.Lock()
	defer t.mu.Unlock()
	if (t.text != "" || t.err != nil) && time.Now().Before(t.renew) {
		return t.text, t.err
	}
	t.text, t.err = d.createToken(ctx)
	t.renew = time.Now().Add(keepFailure)
	if t.err == nil {
		// A stream lasts 5 minutes at most, and must not outlive its token.
		t.renew = time.Now().Add(tokenSeconds / 3 * time.Second)
	}
	return t.text, t.err
}

func (d *Daemons) createToken(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.patience()) // the token is for all nodes
	defer cancel()
	seconds := int64(tokenSeconds)
	got, err := d.Client.CoreV1().ServiceAccounts(d.Namespace).CreateToken(ctx, cluster.ViewAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{cluster.ViewAudience}, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("not allowed to create a token of %s in %s; ask for the role xsched-viewer there", cluster.ViewAccount, d.Namespace)
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("no service account %s in %s; install the chart with viewer.create=true", cluster.ViewAccount, d.Namespace)
	case err != nil:
		return "", fmt.Errorf("create a token for the view: %w", err)
	}
	return got.Status.Token, nil
}

// forget drops a token that a node refused.
func (t *token) forget(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text == text {
		t.text = ""
	}
}

// Get asks the view of a pod. The caller closes the answer.
func (d *Daemons) Get(ctx context.Context, pod, path string, query url.Values) (io.ReadCloser, error) {
	text, err := d.token(ctx)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://view"+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	r.Header.Set("Authorization", "Bearer "+text)
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dial(ctx, pod) },
	}
	answer, err := transport.RoundTrip(r)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && (apierrors.IsForbidden(err) || strings.Contains(err.Error(), "forbidden")):
		return nil, fmt.Errorf("not allowed to forward ports in %s; ask for the role xsched-viewer there", d.Namespace)
	case err != nil:
		return nil, err
	case answer.StatusCode == http.StatusOK:
		return answer.Body, nil
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusUnauthorized {
		d.viewer.forget(text)
	}
	var failure view.Failure
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxTail)).Decode(&failure); err != nil || failure.Error == "" {
		return nil, fmt.Errorf("the node plugin answered %s; update it, or kubectl xsched", answer.Status)
	}
	return nil, errors.New(failure.Error)
}

// maxTail bounds the text of an error.
const maxTail = 4096

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// ask returns the whole answer of a view.
func (d *Daemons) ask(ctx context.Context, pod, path string) ([]byte, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer d.whenSilent(cancel).Stop()
	body, err := d.Get(waiting, pod, path, nil)
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(io.LimitReader(body, maxLine+1))
		_ = body.Close()
	}
	switch {
	case err != nil && waiting.Err() != nil:
		return nil, context.Cause(waiting)
	case err != nil:
		return nil, err
	case len(answer) > maxLine:
		return nil, fmt.Errorf("the answer has more than %d bytes", maxLine)
	}
	return answer, nil
}

// patience is the time that a node has for an answer.
func (d *Daemons) patience() time.Duration { return cmp.Or(d.Timeout, patience) }

// whenSilent ends the wait for a node, unless it is stopped. A deadline of the context would not do: the
// network's own errors come first.
func (d *Daemons) whenSilent(cancel context.CancelCauseFunc) *time.Timer {
	return time.AfterFunc(d.patience(), func() { cancel(fmt.Errorf("no answer within %s", d.patience())) })
}

// Lines gives each line of an answer to a function, until the answer or the context ends. It waits for the
// first part of the answer for the timeout at most.
func (d *Daemons) Lines(ctx context.Context, pod, path string, query url.Values, each func(line []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := d.whenSilent(cancel)
	defer silent.Stop()
	body, err := d.Get(ctx, pod, path, query)
	if err == nil {
		silent.Stop()
		defer func() { _ = body.Close() }()
		err = eachLine(body, each)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func eachLine(r io.Reader, each func(line []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	return lines.Err()
}
