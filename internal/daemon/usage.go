// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/ledger"
	"xsched/internal/loop"
)

// usage brings what programs use to the ledger, and answers who used how much.
type usage struct {
	ledger *ledger.Ledger
	access *access
	terms  *terms
	users  *userNames
	gpus   hostGPUs
}

func (u *usage) joined(who loop.Identity) { u.ledger.Joined(clock.Now(), uint64(who.ID)) }

// removed accounts what a program used until its end.
func (u *usage) removed(who loop.Identity, totals []loop.GPUTotal, requests loop.Counts) {
	u.ledger.Left(clock.Now(), u.program(&who, totals, requests))
}

func (u *usage) sample(programs []loop.ClientView) {
	all := make([]ledger.Program, 0, len(programs))
	for i := range programs {
		if p := &programs[i]; len(p.Totals) > 0 {
			all = append(all, u.program(&p.Identity, p.Totals, p.Counts()))
		}
	}
	u.ledger.Sample(clock.Now(), time.Now(), u.gpus.list(), all)
}

func (u *usage) program(who *loop.Identity, totals []loop.GPUTotal, requests loop.Counts) ledger.Program {
	p := ledger.Program{
		Session: uint64(who.ID),
		Key:     ledger.Key{Owner: ownerText(who.User.Account()), Pod: u.podOf(who), Program: control.TenantName(who.Command)},
		Use:     ledger.Use{Requests: requests.Requests, Met: requests.Met, Missed: requests.Missed},
	}
	for _, t := range totals {
		p.Use.GPUs = append(p.Use.GPUs, ledger.GPUUse{GPU: t.Device.String(), Ran: t.Ran, Waited: t.Waited})
	}
	return p
}

// podOf names the pod of a process without the container: "namespace/pod".
func (u *usage) podOf(who *loop.Identity) string {
	parts := strings.SplitN(u.terms.podName(who), "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

// ownerText stands for an account in the ledger: the uid of a user of the host, else a name with a hash of
// what identifies the account.
func ownerText(account identity.User) string {
	if account.Host() {
		return strconv.Itoa(account.UID)
	}
	name := account.String()
	if account.UID == 0 && account.Container != "" {
		name = "container " + path.Base(account.Container)
	}
	hash := sha256.Sum256([]byte(account.Key()))
	return fmt.Sprintf("%s#%x", name[:min(len(name), 40)], hash[:8])
}

// rowsOf returns the owner whose rows a caller may read; empty: all. Accounts are coarser than users, so
// of those in containers only root of the whole container may.
func (u *usage) rowsOf(c control.Caller) (owner string, err error) {
	account := c.User.Account()
	switch {
	case u.access.administers(c.User):
		return "", nil
	case c.User.Host() && c.User.UID > 0, c.Admin && account.UID == 0 && account.Container != "" && account.Container == c.User.Container:
		return ownerText(account), nil
	}
	return "", control.Errorf(control.ErrNotAllowed, "ask as root of the container, or on the host", "this user has no report of its own")
}

// maxReportRows bounds a report. The rows with the least time become one.
const maxReportRows = 1000

// Report implements control.Control.
func (u *usage) Report(_ context.Context, c control.Caller, r control.ReportRequest) (control.Report, error) {
	length, err := control.ReportLength(r.Since)
	if err != nil {
		return control.Report{}, err
	}
	r.By = cmp.Or(r.By, control.ByUser)
	if !slices.Contains(control.ReportKinds(), r.By) {
		return control.Report{}, control.Errorf(control.ErrInvalid, "use "+strings.Join(control.ReportKinds(), ", "), "unknown kind of report %q", r.By)
	}
	owner, err := u.rowsOf(c)
	if err != nil {
		return control.Report{}, err
	}
	total := u.ledger.Sum(time.Now(), length, func(k ledger.Key) (ledger.Key, bool) {
		return groupBy(r.By, k), owner == "" || k.Owner == owner
	})
	out := control.Report{
		By: r.By, FromNS: total.From.UnixNano(), ToNS: total.To.UnixNano(), WatchedNS: total.Watched.Nanoseconds(), CapacityNS: total.Capacity.Nanoseconds(),
		Own: owner != "", Rows: []control.ReportRow{},
	}
	rows, sum := map[control.ReportRow]ledger.Amounts{}, ledger.Amounts{}
	for k, a := range total.Rows {
		row := u.rowOf(r.By, k)
		all := rows[row]
		all.Add(a)
		rows[row] = all
		sum.Add(a)
	}
	for row, a := range rows {
		out.Rows = append(out.Rows, withAmounts(row, a, total.Capacity))
	}
	slices.SortFunc(out.Rows, func(a, b control.ReportRow) int {
		return cmp.Or(cmp.Compare(b.GPUNS, a.GPUNS), cmp.Compare(a.Name(r.By), b.Name(r.By)), cmp.Compare(a.User, b.User))
	})
	out.Total = withAmounts(control.ReportRow{}, sum, total.Capacity)
	if len(out.Rows) > maxReportRows {
		least := ledger.Amounts{}
		for i := range out.Rows[maxReportRows-1:] {
			least.Add(amountsOf(&out.Rows[maxReportRows-1+i]))
		}
		out.Rows = append(out.Rows[:maxReportRows-1], withAmounts(control.ReportRow{}, least, total.Capacity))
	}
	return out, nil
}

// groupBy removes what does not matter to a kind of report.
func groupBy(by string, k ledger.Key) ledger.Key {
	switch {
	case by == control.ByGPU:
		return ledger.Key{GPU: cmp.Or(k.GPU, ledger.OtherGPU)}
	case by == control.ByPod && k.Pod != "":
		return ledger.Key{Pod: k.Pod}
	case by == control.ByProgram:
		return ledger.Key{Owner: k.Owner, Program: k.Program}
	}
	return ledger.Key{Owner: k.Owner}
}

// rowOf names a row for people.
func (u *usage) rowOf(by string, k ledger.Key) control.ReportRow {
	row := control.ReportRow{Pod: k.Pod, Program: k.Program, GPU: k.GPU}
	login, group := "", ""
	if uid, err := strconv.Atoi(k.Owner); err == nil {
		login, group = u.users.find(uid)
	} else {
		login, _, _ = strings.Cut(k.Owner, "#")
		group = login
	}
	if row.User = login; by == control.ByGroup {
		row.User, row.Group = "", group
	}
	return row
}

func withAmounts(row control.ReportRow, a ledger.Amounts, capacity time.Duration) control.ReportRow {
	row.GPUNS, row.OpenNS, row.WaitedNS, row.Requests, row.Judged, row.Met = a.Ran, a.Open, a.Waited, a.Requests, a.Judged, a.Met
	if capacity > 0 {
		row.Share = float64(a.Ran) / float64(capacity)
	}
	return row
}

func amountsOf(r *control.ReportRow) ledger.Amounts {
	return ledger.Amounts{Ran: r.GPUNS, Open: r.OpenNS, Waited: r.WaitedNS, Requests: r.Requests, Judged: r.Judged, Met: r.Met}
}

// hostGPUs are the GPUs of this host, as of the last answer of the drivers. Nobody waits for them: a driver may
// hang.
type hostGPUs struct {
	drivers *driver.Set

	mu    sync.Mutex
	asked time.Time
	busy  bool // the drivers have not answered yet
	names []string
}

// gpusTime is how long an answer counts.
const gpusTime = 30 * time.Second

func (g *hostGPUs) list() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.busy && time.Since(g.asked) >= gpusTime {
		g.busy, g.asked = true, time.Now()
		go func() {
			names := map[string]bool{}
			for _, id := range g.drivers.Devices() {
				names[id.String()] = true
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.busy, g.names = false, slices.Sorted(maps.Keys(names))
		}()
	}
	return g.names
}
