// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"

	"xsched/internal/control"
	"xsched/internal/screen"
)

var helpLines = []screen.Line{
	{},
	{{Text: "  up, down, PgUp, PgDn   select a program", Style: screen.Plain}},
	{{Text: "  + -                    raise or lower its priority", Style: screen.Plain}},
	{{Text: "  s r                    suspend or resume it", Style: screen.Plain}},
	{{Text: "  p                      switch the policy, after a question", Style: screen.Plain}},
	{{Text: "  o O                    next sort order, reverse it", Style: screen.Plain}},
	{{Text: "  / Esc                  filter by PID, user, state or command", Style: screen.Plain}},
	{{Text: "  space                  pause, and continue", Style: screen.Plain}},
	{{Text: "  q                      quit", Style: screen.Plain}},
	{},
	{{Text: "  STATE  running, idle, held (suspended by hand),", Style: screen.Faint}},
	{{Text: "         preempted (by others), waiting (others' timeslices),", Style: screen.Faint}},
	{{Text: "         away (its memory is not on the GPU, or moves)", Style: screen.Faint}},
	{{Text: "  GPU    share of the last second; LAST: its history", Style: screen.Faint}},
	{{Text: "  P99    request latency; LOST: time lost to preemption", Style: screen.Faint}},
	{{Text: "  Any key returns.", Style: screen.Faint}},
}

// foot has the details of the selected tenant, the last notice and the keys.
func (m *Model) foot(width, height int) []screen.Line {
	var lines []screen.Line
	notice := m.notices(width)
	if height >= 16 && m.interactive() {
		most := min(height/6, 4)
		notice = notice[:min(len(notice), most)]
		lines = append(lines, m.details(width, most+1-len(notice))...)
	} else {
		notice = notice[:1]
	}
	if height >= 4 {
		lines = append(lines, notice...)
	}
	return append(lines, m.keys(width))
}

// notices is the last notice. A long one takes lines of the details, because a cut error has no remedy.
func (m *Model) notices(width int) []screen.Line {
	line := m.noticeLine()
	if m.notice == "" || m.page != tenants || width <= 0 {
		return []screen.Line{line}
	}
	var lines []screen.Line
	for _, text := range screen.Wrap(line.String(), width) {
		lines = append(lines, screen.Text(text, line[0].Style))
	}
	return lines
}

func (m *Model) noticeLine() screen.Line {
	switch {
	case m.page == typing:
		return screen.Line{{Text: "filter: " + m.filter, Style: screen.Bold}, {Text: " ", Style: screen.Selected}}
	case m.page == confirming:
		question := fmt.Sprintf("switch all programs from policy %s to %s? y/n", m.available.Name, m.available.Available[m.choice])
		return screen.Text(screen.Clean(question), screen.Warn)
	case m.notice != "" && m.refused:
		return screen.Text("refused: "+m.notice, screen.Bad)
	case m.notice != "":
		return screen.Text(m.notice, screen.Good)
	}
	order := "sorted by " + orders[m.sort].name
	if m.reverse {
		order += ", reversed"
	}
	if m.filter != "" {
		order += ", filter: " + m.filter
	}
	return screen.Text(order, screen.Faint)
}

// keys names the most important keys that fit.
func (m *Model) keys(width int) screen.Line {
	pairs := []string{"q", "quit", "h", "help", "+-", "priority", "s", "suspend", "r", "resume", "p", "policy", "o", "sort", "/", "filter", "space", "pause"}
	if m.shown.Fleet != nil {
		pairs = []string{"q", "quit", "h", "help", "o", "sort", "/", "filter", "space", "pause"}
	}
	switch m.page {
	case typing:
		pairs = []string{"enter", "keep", "esc", "clear"}
	case policies:
		pairs = []string{"enter", "choose", "up/down", "move", "esc", "back"}
	case confirming:
		pairs = []string{"y", "switch", "n", "keep"}
	case help:
		pairs = []string{"any key", "back"}
	}
	var line screen.Line
	used := 0
	for i := 0; i < len(pairs); i += 2 {
		used += len(pairs[i]) + len(pairs[i+1]) + 2
		if width > 0 && used > width+1 {
			break
		}
		line = append(line, screen.Span{Text: pairs[i], Style: screen.Accent}, screen.Span{Text: " " + pairs[i+1] + " ", Style: screen.Plain})
	}
	return line
}

func (m *Model) policyList(room int) []screen.Line {
	lines := []screen.Line{screen.Text("Switch the policy to:", screen.Bold)}
	names := m.available.Available
	first := min(max(0, m.choice-room+2), max(0, len(names)-1))
	for i := first; i < len(names); i++ {
		mark := "  "
		if names[i] == m.available.Name {
			mark = "* "
		}
		style := screen.Plain
		if i == m.choice {
			style = screen.Selected
		}
		lines = append(lines, screen.Text(screen.Clean(fmt.Sprintf("%s%-6s %s", mark, names[i], m.available.Summaries[names[i]])), style))
	}
	return lines
}

// details describes the selected tenant in exactly most lines.
func (m *Model) details(width, most int) []screen.Line {
	lines := make([]screen.Line, 0, most)
	if !m.gone && len(m.rows) > 0 {
		p := m.rows[m.cursor].Process
		lines = append(lines, screen.Text(place(m.shown.Fleet, p)+fmt.Sprintf("%d %s", p.PID, Command(p)), screen.Bold))
		text := ""
		for _, part := range facts(p) {
			switch {
			case text == "":
				text = part
			case width > 0 && screen.Width(text)+len(", ,")+screen.Width(part) > width:
				lines = append(lines, screen.Text(text+",", screen.Plain))
				text = part
			default:
				text += ", " + part
			}
		}
		lines = append(lines, screen.Text(text, screen.Plain))
	}
	for len(lines) < most {
		lines = append(lines, screen.Line{})
	}
	return lines[:most]
}

// leastMemory is the memory that is worth a mention.
const leastMemory = 1 << 20

// facts lists what the table may have no room for, the most important first.
func facts(p *control.Process) []string {
	facts := []string{screen.Cut(User(p), 24), fmt.Sprintf("priority %d", p.Priority), "level " + strings.TrimPrefix(Level(lowestLevel(p)), "Lv")}
	if s := p.SLO; s != nil {
		verb := "met"
		if Missed(s) {
			verb = "MISSED"
		}
		facts = append(facts, fmt.Sprintf("SLO %s %s: %.1f%% of %g%%, budget left %.0f%%", duration(float64(s.TargetUS)), verb, 100*s.Attainment, 100*s.Objective, 100*s.BudgetLeft))
	}
	switch l := p.Latency; {
	case l != nil && l.Uncertain != "":
		facts = append(facts, fmt.Sprintf("P50 - P99 - of %s %s: %s", number(l.Requests), screen.Clean(l.Source), screen.Clean(l.Uncertain)))
	case l.Certain():
		facts = append(facts, fmt.Sprintf("P50 %s P99 %s (waiting for others %s) of %s %s",
			duration(l.Total.P50US), duration(l.Total.P99US), duration(l.Wait.P99US), number(l.Requests), screen.Clean(l.Source)))
	}
	for i := range p.Protection {
		on := ""
		if len(p.Protection) > 1 {
			on = " on " + screen.Clean(p.Protection[i].Device)
		}
		facts = append(facts, "protection"+on+": "+Protection(&p.Protection[i]))
		if s := Strategy(&p.Protection[i].Submission); s != "" {
			facts = append(facts, "strategy"+on+": "+s)
		}
	}
	for i := range p.Memory {
		if m := &p.Memory[i]; m.UsedBytes >= leastMemory {
			facts = append(facts, "memory on "+screen.Clean(m.Device)+": "+screen.Clean(m.Text()))
		}
	}
	if p.Preemptions == 0 && p.LostNS == 0 {
		facts = append(facts, "never preempted")
	} else {
		facts = append(facts, fmt.Sprintf("%s preemptions", number(p.Preemptions)), "lost "+duration(float64(p.LostNS)/1e3))
	}
	by := map[int]uint64{}
	var order []int
	for _, q := range p.Queues {
		for _, c := range q.PreemptedBy {
			if c.PID > 0 && by[c.PID] == 0 {
				order = append(order, c.PID)
			}
			by[c.PID] += c.Count
		}
	}
	for _, pid := range order {
		facts = append(facts, fmt.Sprintf("%sx by %d", number(by[pid]), pid))
	}
	if p.PriorityReason != "" {
		facts = append(facts, screen.Clean(p.PriorityReason))
	}
	return facts
}

// Strategy tells how lower programs share the GPU with a program, and why; "" if there are none.
func Strategy(s *control.Submission) string {
	if s.Strategy == "" {
		return ""
	}
	return screen.Clean(s.Strategy) + " (" + screen.Clean(s.Reason) + ")"
}

// Protection tells what running before lower programs gains a program, and what it costs them.
func Protection(p *control.Protection) string {
	if p.State == control.ProtectionLearning {
		return fmt.Sprintf("learning, %d requests", p.Requests)
	}
	text := fmt.Sprintf("%+.1f ms P99 (%s)", -p.GainP99US/1e3, screen.Clean(p.NativeSource))
	switch {
	case p.State == control.ProtectionNative:
		return text + ", not worth its cost"
	case p.CostRatio < 0.0005:
		return text + ", costs others nothing"
	}
	return fmt.Sprintf("%s, costs others up to %.1f %%", text, 100*p.CostRatio)
}
