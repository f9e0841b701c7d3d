// SPDX-License-Identifier: Apache-2.0

// Package alert sends what an operator must know to a command or to an address: missed SLOs, faults, GPUs
// that are gone. Tenants can cause alerts, so their number is limited. Nothing waits for a receiver.
package alert

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/control"
)

// Kinds of alerts, severities and states.
const (
	SLO, Fault, GPU, Xid, Memory = "slo", "fault", "gpu", "xid", "memory"
	Warning, Critical            = "warning", "critical"
	Firing, Resolved             = "firing", "resolved"
)

// Subject is what an alert is about. Programs choose their names.
type Subject struct {
	PID  int    `json:"pid,omitempty"`
	Name string `json:"name,omitempty"`
	User string `json:"user,omitempty"`
	GPU  string `json:"gpu,omitempty"`
	Xid  int    `json:"xid,omitempty"`
}

// Alert is what a receiver gets.
type Alert struct {
	Time     time.Time `json:"time"`
	Host     string    `json:"host"`
	Kind     string    `json:"kind"`
	Severity string    `json:"severity"`
	State    string    `json:"state"`
	Subject  Subject   `json:"subject"`
	Text     string    `json:"text"`
	HeldBack uint64    `json:"held_back"` // alerts of the subject's user since the last one
	Lost     int64     `json:"lost"`      // alerts that a receiver did not get since the last that arrived
}

// Condition is something that lasts. Owner is the account that it counts for; empty: the host.
type Condition struct {
	Owner string
	Alert Alert
}

// Options of New.
type Options struct {
	// Command is run for each alert; URL gets it in a POST, with Token. Each may be empty.
	Command, URL, Token string
	Log                 *slog.Logger
}

const (
	sendTime  = 10 * time.Second // for one alert
	queueSize = 64
	maxText   = 320 // bytes
)

// Alerts is safe for concurrent use. Nil sends nothing.
type Alerts struct {
	o     Options
	host  string
	http  *http.Client
	limit time.Duration // sendTime
	queue chan job

	mu    sync.Mutex
	board board

	sent, failed atomic.Uint64
	lost         atomic.Int64
}

type job struct {
	alert  Alert
	result chan<- error // of a test; nil: nobody waits
}

// New checks the receivers. Without any it returns nil.
func New(o Options) (*Alerts, error) {
	if o.Command == "" && o.URL == "" && o.Token == "" {
		return nil, nil
	}
	if o.Command != "" {
		if err := checkCommand(o.Command); err != nil {
			return nil, err
		}
	}
	if o.URL != "" || o.Token != "" {
		if err := checkURL(o.URL, o.Token); err != nil {
			return nil, err
		}
	}
	host, _ := os.Hostname()
	return &Alerts{o: o, host: host, http: newClient(), limit: sendTime, queue: make(chan job, queueSize), board: newBoard()}, nil
}

func invalid(remedy, format string, args ...any) error {
	return control.Errorf(control.ErrInvalid, remedy, format, args...)
}

// Happened takes an event of an owner; empty: the host.
func (a *Alerts) Happened(owner string, event Alert) {
	if a != nil {
		event.clean()
		a.decide(func() []Alert { return a.board.happened(time.Now(), owner, event) })
	}
}

// Review takes all conditions that hold. The caller calls it every few seconds.
func (a *Alerts) Review(all []Condition) {
	if a == nil {
		return
	}
	for i := range all {
		all[i].Alert.clean()
	}
	a.decide(func() []Alert { return a.board.review(time.Now(), all) })
}

func (a *Alerts) decide(f func() []Alert) {
	a.mu.Lock()
	out := f()
	a.mu.Unlock()
	for i := range out {
		a.put(job{alert: out[i]})
	}
}

// put never waits.
func (a *Alerts) put(j job) {
	select {
	case a.queue <- j:
	default:
		a.failed.Add(1)
		a.lost.Add(1)
	}
}

// Test sends a test alert to all receivers and waits for the result.
func (a *Alerts) Test(ctx context.Context) error {
	if a == nil {
		return invalid("set alerts.command or alerts.url in the configuration", "the daemon sends no alerts")
	}
	ctx, cancel := context.WithTimeout(ctx, a.limit+2*time.Second)
	defer cancel()
	result := make(chan error, 1)
	a.put(job{Alert{Time: time.Now(), Kind: "test", Severity: "info", State: Firing, Text: "a test of XSched's alerts"}, result})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return errors.New("the receivers are busy with earlier alerts")
	}
}

// Counts returns how many alerts every receiver got, and how many one of them did not get.
func (a *Alerts) Counts() (sent, failed uint64) { return a.sent.Load(), a.failed.Load() }

// clean bounds the texts and removes what could control a terminal.
func (a *Alert) clean() {
	for _, s := range []*string{&a.Text, &a.Subject.Name, &a.Subject.User, &a.Subject.GPU} {
		*s = control.Short(*s, maxText)
	}
}
