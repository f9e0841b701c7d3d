// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"slices"

	tea "charm.land/bubbletea/v2"

	"xsched/internal/control"
	"xsched/internal/screen"
)

// maxFilter limits the filter, which may be pasted.
const maxFilter = 100

// key handles a key.
func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "ctrl+l":
		return tea.ClearScreen
	}
	switch m.page {
	case typing:
		m.typeFilter(k)
		return nil
	case policies:
		m.choosePolicy(k.String())
		return nil
	case confirming:
		return m.confirm(k.String())
	case help:
		m.page = tenants
		return nil
	}
	if m.notice != "" {
		m.notice = ""
	}
	if m.move(k.String()) {
		return nil
	}
	return m.command(k.String())
}

// move moves the cursor and reports whether the key does that.
func (m *Model) move(key string) bool {
	step := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -m.visible(), "pgdown": m.visible(),
		"home": -len(m.rows), "g": -len(m.rows), "end": len(m.rows), "G": len(m.rows),
	}[key]
	if step == 0 {
		return false
	}
	if m.gone && (step == 1 || step == -1) {
		step = 0 // the row that the ended tenant had
	}
	m.choose(m.cursor + step)
	return true
}

func (m *Model) command(key string) tea.Cmd {
	switch key {
	case "q":
		return tea.Quit
	case "h", "?", "f1":
		m.page = help
	case "/":
		m.page = typing
	case "esc":
		m.setFilter("")
	case "o", ">":
		m.sort = (m.sort + 1) % len(orders)
		m.arrange()
	case "O", "R":
		m.reverse = !m.reverse
		m.arrange()
	case "space":
		m.paused = !m.paused
		if !m.paused {
			return m.fetch()
		}
	case "p":
		return func() tea.Msg {
			ctx, cancel := context.WithTimeout(m.ctx, actionTimeout)
			defer cancel()
			reply, err := m.source.Policies(ctx)
			return choices{reply, err}
		}
	case "+", "=":
		return m.rank(1)
	case "-", "_":
		return m.rank(-1)
	case "s":
		return m.act(func(ctx context.Context, p *control.Process) (string, error) { return m.source.Suspend(ctx, p.PID) })
	case "r":
		return m.act(func(ctx context.Context, p *control.Process) (string, error) { return m.source.Resume(ctx, p.PID) })
	}
	return nil
}

// rank changes the priority of the selected tenant. Repeated keys add up.
func (m *Model) rank(by int32) tea.Cmd {
	if m.gone || len(m.rows) == 0 {
		return m.act(nil)
	}
	p := m.rows[m.cursor].Process
	wanted, ok := m.priorities[idOf(p)]
	if !ok {
		wanted = p.Priority
	}
	wanted += by
	m.priorities[idOf(p)] = wanted
	return m.act(func(ctx context.Context, p *control.Process) (string, error) {
		return m.source.SetPriority(ctx, p.PID, wanted)
	})
}

// act queues an action on the selected tenant. Actions run one after the other, in their order.
func (m *Model) act(do func(context.Context, *control.Process) (string, error)) tea.Cmd {
	if m.gone || len(m.rows) == 0 {
		m.refuse(errors.New("no program is selected; select one with the arrow keys"))
		return nil
	}
	p := m.rows[m.cursor].Process
	return m.enqueue(action{idOf(p), func(ctx context.Context) (string, error) { return do(ctx, p) }})
}

func (m *Model) enqueue(a action) tea.Cmd {
	m.waiting = append(m.waiting, a)
	return m.next()
}

// next starts the next action unless one is under way.
func (m *Model) next() tea.Cmd {
	if m.acting || len(m.waiting) == 0 {
		return nil
	}
	a := m.waiting[0]
	m.waiting, m.acting = m.waiting[1:], true
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, actionTimeout)
		defer cancel()
		text, err := a.do(ctx)
		return done{a.of, text, err}
	}
}

// finish shows the result of an action, starts the next one and reads its effect.
func (m *Model) finish(d done) tea.Cmd {
	m.acting = false
	m.finished++
	if d.err != nil {
		m.refuse(d.err)
		delete(m.priorities, d.of)
		m.waiting = slices.DeleteFunc(m.waiting, func(a action) bool { return a.of == d.of })
	} else {
		m.say("%s", d.text)
	}
	cmds := []tea.Cmd{m.next()}
	if !m.paused {
		cmds = append(cmds, m.fetch())
	}
	return tea.Batch(cmds...)
}

func (m *Model) typeFilter(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.page = tenants
	case "esc":
		m.page = tenants
		m.setFilter("")
	case "backspace":
		if runes := []rune(m.filter); len(runes) > 0 {
			m.setFilter(string(runes[:len(runes)-1]))
		}
	case "ctrl+u":
		m.setFilter("")
	default:
		m.setFilter(m.filter + k.Text)
	}
}

func (m *Model) setFilter(text string) {
	runes := []rune(screen.Clean(text))
	m.filter = string(runes[:min(len(runes), maxFilter)])
	m.first = 0
	m.arrange()
}

func (m *Model) choosePolicy(key string) {
	switch key {
	case "up", "k":
		m.choice = max(m.choice-1, 0)
	case "down", "j":
		m.choice = min(m.choice+1, len(m.available.Available)-1)
	case "enter":
		if m.choice >= len(m.available.Available) {
			m.page = tenants
			break
		}
		m.page = confirming
	case "esc", "q", "p":
		m.page = tenants
	}
}

// confirm asks before the policy changes, because that concerns every tenant.
func (m *Model) confirm(key string) tea.Cmd {
	switch key {
	case "y", "Y":
		m.page = tenants
		name := m.available.Available[m.choice]
		return m.enqueue(action{do: func(ctx context.Context) (string, error) { return m.source.SetPolicy(ctx, name) }})
	case "n", "N", "esc", "q":
		m.page = tenants
		m.say("the policy is unchanged")
	}
	return nil
}
