// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"xsched/internal/control"
	"xsched/internal/screen"
)

// Timeouts of requests. A stopped daemon must not stop the view.
const (
	fetchTimeout  = 3 * time.Second
	actionTimeout = 10 * time.Second
)

// Options configure the view.
type Options struct {
	Interval time.Duration
	UTF8     bool // the terminal shows block characters
	// Sort is a name of SortNames; empty: by priority.
	Sort   string
	Filter string
}

// id identifies a tenant. A PID alone may be reused.
type id struct {
	pid     int
	session uint64
}

func idOf(p *control.Process) id { return id{p.PID, p.Session} }

// page is what the main part of the screen shows.
type page int

const (
	tenants page = iota
	typing       // the filter
	policies
	confirming // the choice of a policy
	help
)

// Model is the state of the view. It is a tea.Model.
type Model struct {
	options       Options
	source        Source
	ctx           context.Context //nolint:containedctx // the life of the view
	width, height int

	have     bool // a snapshot arrived
	shown    control.Snapshot
	shares   map[id][]float64
	rows     []row // filtered and sorted
	fetching bool
	turn     int // of the ticks
	paused   bool
	lost     string // why the daemon can't be reached; empty: it can

	page      page
	sort      int
	reverse   bool
	filter    string
	selected  id
	cursor    int // its row; with gone, the row it had
	gone      bool
	first     int // first visible row
	available control.PolicyReply
	choice    int

	notice     string
	refused    bool // the notice is an error
	waiting    []action
	acting     bool
	finished   int          // number of actions
	priorities map[id]int32 // requested, and not yet in a snapshot
}

// action is a request to the daemon.
type action struct {
	of id
	do func(context.Context) (string, error)
}

// Messages to the model.
type (
	fetched struct {
		snapshot control.Snapshot
		err      error
		finished int // actions before the request
	}
	tick struct{ turn int }
	done struct {
		of   id
		text string
		err  error
	}
	choices struct {
		reply control.PolicyReply
		err   error
	}
)

// New returns a model that reads from a source until ctx ends.
func New(ctx context.Context, source Source, o Options) *Model {
	return &Model{
		options: o, source: source, ctx: ctx, shares: map[id][]float64{}, priorities: map[id]int32{},
		filter: screen.Clean(o.Filter), sort: max(slices.Index(SortNames(), o.Sort), 0), width: 80, height: 24,
	}
}

// Init starts the first request.
func (m *Model) Init() tea.Cmd { return m.fetch() }

func (m *Model) fetch() tea.Cmd {
	if m.fetching {
		return nil
	}
	m.fetching = true
	finished := m.finished
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, fetchTimeout)
		defer cancel()
		s, err := m.source.Fetch(ctx)
		if ctx.Err() != nil && m.ctx.Err() == nil {
			err = fmt.Errorf("the daemon did not answer within %s", fetchTimeout)
		}
		return fetched{s, err, finished}
	}
}

// Update changes the state by a message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		if msg.Width > 0 && msg.Height > 0 { // some terminals do not tell their size
			m.width, m.height = msg.Width, msg.Height
		}
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.PasteMsg:
		if m.page == typing {
			m.setFilter(m.filter + msg.Content)
		}
	case tick:
		if !m.paused && msg.turn == m.turn {
			return m, m.fetch()
		}
	case fetched:
		m.fetching = false
		if !m.paused {
			m.Take(msg.snapshot, msg.err)
		}
		if msg.finished < m.finished && !m.paused {
			return m, m.fetch() // the snapshot may be from before the last action
		}
		if !m.acting {
			clear(m.priorities)
		}
		m.turn++ // an earlier tick, before an action read its effect, has no effect
		turn := m.turn
		return m, tea.Tick(m.options.Interval, func(time.Time) tea.Msg { return tick{turn} })
	case done:
		return m, m.finish(msg)
	case choices:
		if msg.err != nil {
			m.refuse(msg.err)
			break
		}
		m.page, m.available = policies, msg.reply
		m.choice = max(slices.Index(msg.reply.Available, msg.reply.Name), 0)
	}
	return m, nil
}

// Take shows a snapshot, or why there is none.
func (m *Model) Take(s control.Snapshot, err error) {
	if err != nil {
		m.lost = oneLine(err.Error())
		return
	}
	switch {
	case m.have && s.Daemon.StartedNS != m.shown.Daemon.StartedNS:
		m.say("the daemon was restarted (PID %d); reconnected", s.Daemon.PID)
		clear(m.shares)
	case m.lost != "" && m.have:
		m.say("reconnected")
	}
	m.have, m.lost, m.shown = true, "", s
	alive := make(map[id]bool, len(s.List.Processes))
	for i := range s.List.Processes {
		p := &s.List.Processes[i]
		alive[idOf(p)] = true
		past := append(m.shares[idOf(p)], p.GPUShare)
		m.shares[idOf(p)] = past[max(0, len(past)-sparkWidth):]
	}
	for id := range m.shares {
		if !alive[id] {
			delete(m.shares, id)
		}
	}
	m.arrange()
}

// orders are the sort orders. Equal tenants are in the order of their PIDs.
var orders = []struct {
	name    string
	compare func(a, b *control.Process) int
}{
	{"priority", func(a, b *control.Process) int { return cmp.Compare(b.Priority, a.Priority) }},
	{"gpu", func(a, b *control.Process) int { return cmp.Compare(b.GPUShare, a.GPUShare) }},
	{"p99", func(a, b *control.Process) int { return cmp.Compare(tail(b), tail(a)) }},
	{"lost", func(a, b *control.Process) int { return cmp.Compare(b.LostNS, a.LostNS) }},
	{"pid", func(*control.Process, *control.Process) int { return 0 }},
}

// SortNames are the names of the sort orders.
func SortNames() []string {
	names := make([]string, len(orders))
	for i, o := range orders {
		names[i] = o.name
	}
	return names
}

func tail(p *control.Process) float64 {
	if !p.Latency.Certain() {
		return -1
	}
	return p.Latency.Total.P99US
}

// arrange filters and sorts the tenants. The selection stays with its tenant. If that has ended,
// nothing is selected, so that a key never acts on another tenant that took its row.
func (m *Model) arrange() {
	m.rows = m.rows[:0]
	for i := range m.shown.List.Processes {
		p := &m.shown.List.Processes[i]
		if m.matches(p) {
			m.rows = append(m.rows, row{p, m.shares[idOf(p)], nodeOf(m.shown.Fleet, p)})
		}
	}
	compare := orders[m.sort].compare
	slices.SortStableFunc(m.rows, func(a, b row) int {
		order := cmp.Or(compare(a.Process, b.Process), cmp.Compare(a.PID, b.PID))
		if m.reverse {
			return -order
		}
		return order
	})
	if len(m.rows) == 0 {
		m.gone = m.selected != id{}
		return
	}
	if m.selected == (id{}) {
		m.choose(0)
		return
	}
	if i := slices.IndexFunc(m.rows, func(r row) bool { return idOf(r.Process) == m.selected }); i >= 0 {
		m.cursor, m.gone = i, false
	} else {
		m.gone = true
	}
}

// matches reports whether a tenant passes the filter.
func (m *Model) matches(p *control.Process) bool {
	if m.filter == "" {
		return true
	}
	text := fmt.Sprintf("%s%d %s %s %s", place(m.shown.Fleet, p), p.PID, User(p), p.State, Command(p))
	return strings.Contains(strings.ToLower(text), strings.ToLower(m.filter))
}

// choose selects a row.
func (m *Model) choose(i int) {
	if len(m.rows) == 0 {
		return
	}
	m.cursor = min(max(i, 0), len(m.rows)-1)
	m.selected, m.gone = idOf(m.rows[m.cursor].Process), false
}

func (m *Model) say(format string, args ...any) {
	m.notice, m.refused = screen.Clean(fmt.Sprintf(format, args...)), false
}

func (m *Model) refuse(err error) {
	m.notice, m.refused = screen.Clean(oneLine(err.Error())), true
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
