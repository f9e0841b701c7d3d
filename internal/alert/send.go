// SPDX-License-Identifier: Apache-2.0

package alert

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
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/health"
)

const (
	commandPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // the command's only variable
	outputTime  = 200 * time.Millisecond                                              // for a process that the command left
	maxAnswer   = 4 << 10
)

// Run sends alerts, one at a time, until ctx ends.
func (a *Alerts) Run(ctx context.Context, part *health.Part) {
	runtime.LockOSThread() // never unlocked: the kernel kills the command when this thread ends
	part.End()
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-a.queue:
			part.Begin()
			err := a.send(ctx, j.alert)
			part.End()
			if err != nil && ctx.Err() == nil {
				a.o.Log.Warn("alert not delivered; try `xsched alert-test`", "kind", j.alert.Kind, "err", err)
			}
			if j.result != nil {
				j.result <- err
			}
		}
	}
}

func (a *Alerts) send(ctx context.Context, alert Alert) error {
	alert.Host, alert.Lost = a.host, a.lost.Load()
	body, err := json.Marshal(alert)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	posted := make(chan error, 1)
	go func() { posted <- a.post(ctx, body) }()
	err = a.run(ctx, body)
	if err = errors.Join(err, <-posted); err != nil {
		a.failed.Add(1)
		a.lost.Add(1)
		return err
	}
	a.sent.Add(1)
	a.lost.Add(-alert.Lost)
	return nil
}

// run runs the command, in a process group of its own. It checks the file again: its owner may have replaced it.
func (a *Alerts) run(ctx context.Context, body []byte) error {
	if a.o.Command == "" {
		return nil
	}
	if err := checkCommand(a.o.Command); err != nil {
		return err
	}
	var output head
	cmd := exec.CommandContext(ctx, a.o.Command)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stderr, cmd.WaitDelay = []string{commandPath}, "/", bytes.NewReader(append(body, '\n')), &output, outputTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil: // what it left keeps its output
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the command did not end within %v and was killed", a.limit)
	}
	return fmt.Errorf("the command: %w: %s", err, control.Short(string(bytes.TrimSpace(output)), maxText))
}

// head keeps the begin of what is written.
type head []byte

func (h *head) Write(b []byte) (int, error) {
	*h = append(*h, b[:min(len(b), maxText-len(*h))]...)
	return len(b), nil
}

// checkCommand refuses a command that others could change. On the way to it there must be no link, whose own folder
// would count, too.
func checkCommand(path string) error {
	if !filepath.IsAbs(path) {
		return invalid("name it with its folder, such as /etc/xsched/alert", "the alert command %q has no absolute path", path)
	}
	file := filepath.Clean(path)
	for at := file; ; at = filepath.Dir(at) {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return invalid("correct --alert-command", "the alert command: %s: %v", at, err)
		}
		kind := st.Mode & unix.S_IFMT
		switch {
		case kind == unix.S_IFLNK:
			return invalid(fmt.Sprintf("name the file that `realpath %s` prints", file), "%s, on the way to the alert command, is a link", at)
		case at == file && (kind != unix.S_IFREG || st.Mode&0o111 == 0):
			return invalid("use a file and `chmod +x`", "the alert command %s is not an executable file", at)
		case st.Uid != 0 && int(st.Uid) != os.Geteuid():
			return invalid(fmt.Sprintf("use `chown %d %s`", os.Geteuid(), at), "%s belongs to another user, who could change the alert command", at)
		case st.Mode&0o022 != 0 && (at == file || st.Mode&unix.S_ISVTX == 0):
			return invalid("use `chmod go-w "+at+"`", "other users can write %s and change the alert command", at)
		case at == "/":
			return nil
		}
	}
}

func checkURL(text, token string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		err = errors.New("is not a URL") // the text may have a secret
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		err = errors.New("has no host, or another scheme than http and https")
	case u.User != nil:
		err = errors.New("has a user or a password, which belong to --alert-token-file")
	case token != "" && u.Scheme == "http" && !net.ParseIP(u.Hostname()).IsLoopback():
		err = errors.New("would get the token unencrypted")
	default:
		return nil
	}
	return invalid("use https://HOST/PATH", "the address for alerts %v", err)
}

// newClient takes no proxy from the environment, and follows redirects only within the host.
func newClient() *http.Client {
	return &http.Client{
		Timeout:   sendTime,
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: sendTime}).DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if first := via[0].URL; r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
				return errors.New("it redirects to another host")
			}
			if r.Method != http.MethodPost || len(via) > 3 {
				return errors.New("it redirects to something else")
			}
			return nil
		},
	}
}

func (a *Alerts) post(ctx context.Context, body []byte) error {
	if a.o.URL == "" {
		return nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.o.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if a.o.Token != "" {
		r.Header.Set("Authorization", "Bearer "+a.o.Token)
	}
	answer, err := a.http.Do(r)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the address, which may have a secret
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %v", a.limit)
		}
		return fmt.Errorf("the address for alerts: %w", err)
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the address for alerts answers %s", control.Short(answer.Status, maxText))
	}
	return nil
}
