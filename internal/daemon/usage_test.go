// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/ledger"
	"xsched/internal/model"
)

// usedBy returns a usage of three accounts and one pod.
func usedBy(users ...identity.User) *usage {
	now, wall := model.Time(0), time.Now().Add(-time.Minute)
	u := &usage{access: &access{uid: os.Getuid()}, users: &userNames{}, ledger: ledger.New(now, wall, slog.New(slog.DiscardHandler))}
	for i, user := range users {
		session := uint64(i)
		u.ledger.Joined(now, session)
		u.ledger.Left(now.Add(10*time.Second), ledger.Program{
			Session: session, Key: ledger.Key{Owner: ownerText(user.Account()), Program: "train.py", Pod: map[int]string{2: "team/pod"}[i]},
			Use: ledger.Use{GPUs: []ledger.GPUUse{{GPU: "0000:01:00.0", Ran: time.Duration(i+1) * time.Second}}, Requests: 10, Met: 9, Missed: 1},
		})
	}
	u.ledger.Sample(now.Add(10*time.Second), wall, []string{"0000:01:00.0", "0000:02:00.0"}, nil)
	return u
}

// TestReportPermissions: the administrator reads all rows, every other user its own, and in a container only
// root of the whole container.
func TestReportPermissions(t *testing.T) {
	docker := "/docker/" + strings.Repeat("4f", 32)
	inside, label := identity.User{UID: 0, Container: docker}, "container "+strings.Repeat("4f", 15)
	u := usedBy(identity.OnHost(54321), identity.OnHost(54322), inside)
	for name, c := range map[string]struct {
		caller control.Caller
		rows   string
	}{
		"root":                          {control.Caller{User: identity.OnHost(0)}, label + " 54322 54321"},
		"daemon's user":                 {control.Caller{User: identity.OnHost(os.Getuid())}, label + " 54322 54321"},
		"a user":                        {control.Caller{User: identity.OnHost(54321)}, "54321"},
		"a user without programs":       {control.Caller{User: identity.OnHost(54323)}, ""},
		"nobody":                        {control.Nobody, "refused"},
		"root of the container":         {control.Caller{User: inside, Admin: true}, label},
		"a user of the container":       {control.Caller{User: identity.User{UID: 1000, Container: docker}}, "refused"},
		"root of a container inside":    {control.Caller{User: identity.User{Container: docker + "/docker/" + strings.Repeat("9b", 32)}, Admin: true}, "refused"},
		"root of another container":     {control.Caller{User: identity.User{Container: "/docker/4f0b"}, Admin: true}, ""},
		"a namespace of an unknown uid": {control.Caller{User: identity.User{UID: 54321, Namespace: 7, Creator: -1}, Admin: true}, "refused"},
		"a namespace of the user":       {control.Caller{User: identity.User{UID: 54321, Namespace: 7, Creator: 54321}, Admin: true}, "refused"},
	} {
		report, err := u.Report(context.Background(), c.caller, control.ReportRequest{})
		var rows []string
		for i := range report.Rows {
			rows = append(rows, report.Rows[i].User)
		}
		if got := strings.Join(rows, " "); c.rows == "refused" != errors.Is(err, control.ErrNotAllowed) || err == nil && got != c.rows {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.rows)
		}
	}
}

// TestReportKinds: the kinds of a report have the same sum, and shares are of the time of all GPUs.
func TestReportKinds(t *testing.T) {
	u := usedBy(identity.OnHost(54321), identity.OnHost(0), identity.OnHost(54321))
	for by, want := range map[string]string{
		"": "54321 root", control.ByUser: "54321 root", control.ByPod: "team/pod root 54321", control.ByProgram: "54321:train.py root:train.py", control.ByGPU: "0000:01:00.0",
		control.ByGroup: "unknown root",
	} {
		r, err := u.Report(context.Background(), control.Caller{}, control.ReportRequest{By: by, Since: "12h"})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		sum := control.ReportRow{}
		for i := range r.Rows {
			row := &r.Rows[i]
			name := row.User + row.Group + row.Pod + row.GPU
			if row.Program != "" {
				name += ":" + row.Program
			}
			names = append(names, name)
			sum.GPUNS, sum.OpenNS, sum.Requests, sum.Judged, sum.Met = sum.GPUNS+row.GPUNS, sum.OpenNS+row.OpenNS, sum.Requests+row.Requests, sum.Judged+row.Judged, sum.Met+row.Met
		}
		sum.Share = 6.0 / 20
		if got := strings.Join(names, " "); got != want || sum != r.Total || r.Total.GPUNS != 6e9 || r.Total.OpenNS != 30e9 || r.Total.Met != 27 {
			t.Errorf("%s: %q, want %q; %+v, total %+v", by, got, want, sum, r.Total)
		}
	}
	for _, bad := range []control.ReportRequest{{By: "colour"}, {Since: "0d"}, {Since: "-5h"}, {Since: "401d"}, {Since: "99999999999999999999d"}, {Since: "d"}} {
		if _, err := u.Report(context.Background(), control.Caller{}, bad); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestReportIsBounded: the rows beyond the limit are one.
func TestReportIsBounded(t *testing.T) {
	u := &usage{access: &access{}, users: &userNames{}, ledger: ledger.Open(filepath.Join(t.TempDir(), "state.json"), 0, time.Now().Add(-20*time.Hour), slog.New(slog.DiscardHandler))}
	now := model.Time(0)
	for hour := range 20 {
		now = now.Add(time.Minute)
		u.ledger.Sample(now, time.Now().Add(time.Duration(hour-20)*time.Hour), nil, nil)
		for i := range 100 {
			id := uint64(hour*100 + i)
			u.ledger.Joined(now, id)
			u.ledger.Left(now, ledger.Program{Session: id, Key: ledger.Key{Owner: ownerText(identity.User{Container: "c" + time.Duration(id).String()})}, Use: ledger.Use{GPUs: []ledger.GPUUse{{GPU: "a", Ran: time.Second}}}})
		}
	}
	r, err := u.Report(context.Background(), control.Caller{}, control.ReportRequest{Since: "1d"})
	if err != nil || len(r.Rows) != maxReportRows || r.Rows[maxReportRows-1].User != "" || r.Rows[maxReportRows-1].GPUNS != 1001e9 || r.Total.GPUNS != 2000e9 {
		t.Errorf("%d rows, %v, %+v of %+v", len(r.Rows), err, r.Rows[len(r.Rows)-1], r.Total)
	}
}
