// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"xsched/internal/control"
	"xsched/internal/screen"
)

// View returns the screen for the terminal.
func (m *Model) View() tea.View {
	v := tea.NewView(screen.Styled(m.Lines(m.width, m.height)))
	v.AltScreen = true
	return v
}

// Lines returns the screen with exactly height lines of a width. With height 0 it has all tenants
// and no keys; with width 0 no line is cut.
func (m *Model) Lines(width, height int) []screen.Line {
	lines := m.compose(width, height)
	if height > 0 {
		lines = lines[:min(len(lines), height)]
	}
	for i := range lines {
		lines[i] = lines[i].Fit(width)
		if !m.options.UTF8 {
			for j := range lines[i] {
				lines[i][j].Text = screen.ASCII(lines[i][j].Text)
			}
		}
	}
	return lines
}

func (m *Model) compose(width, height int) []screen.Line {
	lines := append([]screen.Line{m.title()}, m.gpus(width, height)...)
	if height == 0 {
		return append(lines, m.table(width, len(m.rows), false)...)
	}
	foot := m.foot(width, height)
	room := max(height-len(lines)-len(foot), 0)
	var body []screen.Line
	switch m.page {
	case help:
		body = helpLines
	case policies, confirming:
		body = m.policyList(room)
	default:
		body = m.table(width, max(room-1, 0), true) // less the titles
	}
	body = body[:min(len(body), room)]
	for len(body) < room {
		body = append(body, screen.Line{})
	}
	return slices.Concat(lines, body, foot)
}

// title is the first line: the daemon, or that it can't be reached.
func (m *Model) title() screen.Line {
	switch {
	case m.lost != "" && m.have:
		return screen.Text("daemon lost, retrying: "+screen.Clean(m.lost), screen.Bad)
	case m.lost != "":
		return screen.Text("waiting for the daemon: "+screen.Clean(m.lost), screen.Bad)
	case !m.have:
		return screen.Text("connecting to the daemon", screen.Faint)
	}
	s := &m.shown
	line := screen.Line{{Text: "xsched", Style: screen.Bold}}
	add := func(name, value string, style screen.Style) {
		line = append(line, screen.Span{Text: "  " + name, Style: screen.Faint}, screen.Span{Text: screen.Clean(value), Style: style})
	}
	if f := s.Fleet; f != nil {
		add("nodes ", fmt.Sprint(f.Nodes), screen.Plain)
	}
	if m.paused {
		line = append(line, screen.Span{Text: "  paused", Style: screen.Warn})
	}
	add("policy ", s.List.Policy, screen.Bold)
	add("mode ", control.ModeText(s.List.Mode, s.List.ModeLevel), screen.Bold)
	programs := fmt.Sprint(len(s.List.Processes))
	if m.filter != "" {
		programs = fmt.Sprintf("%d of %d", len(m.rows), len(s.List.Processes))
	}
	add("programs ", programs, screen.Plain)
	if up := s.Time().Sub(time.Unix(0, s.Daemon.StartedNS)); up > 0 && s.Fleet == nil {
		add("up ", duration(float64(up)/1e3), screen.Plain)
	}
	add("", s.Daemon.Version, screen.Faint)
	return line
}

// gpus has one line per GPU, after those of nodes that do not answer, and at most a third of the screen. In a
// fleet, idle GPUs share a line.
func (m *Model) gpus(width, height int) []screen.Line {
	all, idle := m.shown.Devices, 0
	if m.shown.Fleet != nil {
		all = slices.DeleteFunc(slices.Clone(all), func(d control.Device) bool { return d.Processes == 0 && d.Others == 0 && d.Utilization == 0 })
		idle = len(m.shown.Devices) - len(all)
	}
	lines := append(lostLines(m.shown.Fleet, height), m.problems(width, height)...)
	most := len(all)
	if height > 0 {
		most = min(most, max(height/3-1-len(lines)-min(idle, 1), 0))
	}
	shown, more := all, 0
	if most < len(all) {
		shown = all[:max(most-1, 0)]
		more = len(all) - len(shown)
	}
	longest := 0
	for _, d := range shown {
		longest = max(longest, screen.Width(d.ID))
	}
	bar := 20
	if width > 0 && width < 60 {
		bar = 8
	}
	own := settings(&m.shown.List)
	detailed := height == 0 || len(lines)+2*len(all)+min(idle, 1) < height/3
	for _, d := range shown {
		full, empty := screen.Bar(d.Utilization, bar, m.options.UTF8)
		line := screen.Line{
			{Text: screen.Pad(screen.Clean(d.ID), longest, false) + " ", Style: screen.Plain},
			{Text: full, Style: loadStyle(d.Utilization)},
			{Text: empty, Style: screen.Faint},
			{Text: screen.Pad(percent(d.Utilization), 5, true), Style: screen.Bold},
			{Text: "  " + screen.Clean(cmp.Or(d.Name, d.Driver)), Style: screen.Plain},
		}
		line = append(line, screen.Span{Text: "  " + gpuNotes(&d, own[d.ID]), Style: screen.Faint})
		lines = append(lines, line)
		if text := sensorText(&d); text != "" && (detailed || d.Sensors.MemoryLow) {
			lines = append(lines, screen.Text(strings.Repeat(" ", longest+1)+text, sensorStyle(d.Sensors)))
		}
	}
	if more > 0 && most > 0 {
		lines = append(lines, rest(all[len(shown):]))
	}
	if idle > 0 && (height == 0 || len(lines) < height/3) {
		lines = append(lines, screen.Text(fmt.Sprintf("idle GPUs: %d", idle), screen.Faint))
	}
	return lines
}

// problems tells why nothing can be scheduled, in at most a quarter of the screen.
func (m *Model) problems(width, height int) (lines []screen.Line) {
	for _, p := range m.shown.Problems {
		text := []string{screen.Clean("problem: " + strings.TrimSuffix(p.Cause+"; "+p.Remedy, "; "))}
		if width > 0 {
			text = screen.Wrap(text[0], width)
		}
		for _, t := range text {
			lines = append(lines, screen.Text(t, screen.Bad))
		}
	}
	if height > 0 {
		lines = lines[:min(len(lines), max(height/4, 1))]
	}
	return lines
}

// rest sums up the GPUs without a line of their own.
func rest(all []control.Device) screen.Line {
	sum := 0.0
	for _, d := range all {
		sum += d.Utilization
	}
	return screen.Text(fmt.Sprintf("%d more GPUs, mean utilisation %s", len(all), percent(sum/float64(len(all)))), screen.Faint)
}

// settings returns those of single GPUs, by address.
func settings(l *control.List) map[string]control.DeviceSetting {
	out := map[string]control.DeviceSetting{}
	for _, s := range l.Devices {
		out[s.Device] = s
	}
	return out
}

func gpuNotes(d *control.Device, own control.DeviceSetting) string {
	notes := []string{fmt.Sprintf("%d programs", d.Processes)}
	if d.Processes == 1 {
		notes[0] = "1 program"
	}
	if own.Policy != "" {
		notes = append(notes, "policy "+own.Policy)
	}
	if own.Mode != "" {
		notes = append(notes, "mode "+control.ModeText(own.Mode, own.Level))
	}
	if d.Others > 0 {
		notes = append(notes, fmt.Sprintf("%d unmanaged", d.Others))
	}
	return screen.Clean(strings.Join(notes, ", "))
}

func sensorStyle(s *control.Sensors) screen.Style {
	if s.Unknown != "" || s.MemoryLow {
		return screen.Warn
	}
	return screen.Faint
}

func loadStyle(share float64) screen.Style {
	if share >= 0.9 {
		return screen.Warn
	}
	return screen.Good
}

// visible is the number of rows with tenants.
func (m *Model) visible() int {
	return max(m.height-1-len(m.gpus(m.width, m.height))-1-len(m.foot(m.width, m.height)), 1)
}

// table has the titles and up to most tenants, around the cursor if there is one.
func (m *Model) table(width, most int, cursored bool) []screen.Line {
	highest, history := 0, false
	for _, r := range m.rows {
		highest, history = max(highest, r.PID), history || len(r.shares) > 1
	}
	shown := fitting(columnsOf(m.shown.Fleet, m.rows), width, len(strconv.Itoa(highest)), history)
	var titles screen.Line
	for _, c := range shown {
		titles = append(titles, screen.Span{Text: screen.Pad(c.title, c.width, c.right) + " ", Style: screen.Faint})
	}
	lines := []screen.Line{append(titles, screen.Span{Text: "COMMAND", Style: screen.Faint})}
	if len(m.rows) == 0 {
		return append(lines, m.empty())
	}
	cursor := min(m.cursor, len(m.rows)-1)
	if most < len(m.rows) {
		m.first = min(max(m.first, cursor-most+1), cursor, len(m.rows)-most)
	} else {
		m.first = 0
	}
	for i := m.first; i < min(m.first+most, len(m.rows)); i++ {
		line := m.tenant(m.rows[i], shown, width)
		switch {
		case cursored && !m.gone && i == cursor:
			line = line.Fit(width).In(screen.Selected)
		case m.lost != "":
			line = line.In(screen.Faint)
		}
		lines = append(lines, line)
	}
	return lines
}

// interactive reports whether a cursor makes sense.
func (m *Model) interactive() bool { return m.page == tenants || m.page == typing }

func (m *Model) empty() screen.Line {
	switch {
	case !m.have:
		return screen.Line{}
	case m.filter != "":
		return screen.Text("no program matches the filter; Esc clears it", screen.Faint)
	}
	if m.shown.Fleet != nil {
		return screen.Text("no programs on these nodes", screen.Faint)
	}
	return screen.Text("no programs; start one with `xsched run -- CMD`", screen.Faint)
}

// tenant is the line of a program. Where its command does not fit, its name tells it apart.
func (m *Model) tenant(r row, shown []column, width int) screen.Line {
	var line screen.Line
	for _, c := range shown {
		text, style := c.text(r, m.options.UTF8)
		line = append(line, screen.Span{Text: screen.Pad(text, c.width, c.right), Style: style}, screen.Span{Text: " ", Style: screen.Plain})
	}
	text := shortCommand(r.Process)
	if width > 0 && screen.Width(line.String()+text) > width && r.Command != "" && r.Name != "" {
		text = screen.Clean(r.Name)
	}
	return append(line, screen.Span{Text: text, Style: screen.Plain})
}
