// SPDX-License-Identifier: Apache-2.0

package amdlog

import "bytes"

// maxLine limits the bytes parsed per line. The runtime truncates messages at
// 4096; longer lines are classified by their first maxLine bytes.
const maxLine = 64 << 10

// Lines counts the lines of a log. Every line is exactly one of Records, Text
// and Damaged; the other counters overlap with these.
type Lines struct {
	Total   uint64 `json:"total"`
	Records uint64 `json:"records"` // contain at least one complete prefix
	Text    uint64 `json:"text"`    // output of the application
	Damaged uint64 `json:"damaged"` // resemble log records, but do not parse
	Cut     uint64 `json:"cut"`     // truncated records and damaged lines
	Glued   uint64 `json:"glued"`   // records preceded by text or another record
	Long    uint64 `json:"long"`    // over 64 KiB
}

func (l *Lines) add(o *Lines) {
	l.Total += o.Total
	l.Records += o.Records
	l.Text += o.Text
	l.Damaged += o.Damaged
	l.Cut += o.Cut
	l.Glued += o.Glued
	l.Long += o.Long
}

// writer is a thread with records in the chunk.
type writer struct {
	tid         uint64
	pid         uint32
	records     uint64
	first, last uint64
}

// chunk is a run of whole lines with their parsed events, in line order.
type chunk struct {
	buf           []byte
	end           int // of the lines in buf
	done          chan struct{}
	lines         Lines
	marks         uint64 // occurrences of "Dispatch Header"
	markedLines   uint64 // lines with at least one
	eras          [eras]uint64
	levels        [10]uint64
	events        []event
	writers       []writer
	index         map[writerKey]int // into writers, above fewWriters
	last          identity
	lastWriter    int
	nextMark, nul int // offsets of the next mark and the next NUL byte
}

func (c *chunk) reset() {
	clear(c.index)
	*c = chunk{buf: c.buf, done: c.done, events: c.events[:0], writers: c.writers[:0], index: c.index, lastWriter: -1}
}

// scan parses the lines of the chunk.
func (c *chunk) scan() {
	b := c.buf[:c.end]
	c.nextMark, c.nul = markFrom(b, 0), zeroFrom(b, 0)
	for at := 0; at < len(b); {
		end := bytes.IndexByte(b[at:], '\n')
		next := len(b)
		if end < 0 {
			end = len(b)
		} else {
			end += at
			next = end + 1
		}
		c.line(b, at, end)
		at = next
	}
}

// markFrom finds the next "Dispatch Header". Searching for the second word is
// faster, because a capital H is rarer in logs than a capital D.
func markFrom(b []byte, at int) int {
	const second = len("Dispatch ")
	for from := at; from < len(b); {
		i := bytes.Index(b[from:], []byte("Header"))
		if i < 0 {
			break
		}
		if start := from + i - second; start >= at && string(b[start:start+len(dispatchMark)]) == dispatchMark {
			return start
		}
		from += i + len("Header")
	}
	return len(b)
}

func zeroFrom(b []byte, at int) int {
	if i := bytes.IndexByte(b[at:], 0); i >= 0 {
		return at + i
	}
	return len(b)
}

// line parses b[at:end].
func (c *chunk) line(b []byte, at, end int) {
	c.lines.Total++
	if end > at && b[end-1] == '\r' {
		end--
	}
	if end-at > maxLine {
		c.lines.Long++
		end = at + maxLine
	}
	marked := 0
	for c.nextMark < end {
		if c.nextMark >= at && c.nextMark+len(dispatchMark) <= end {
			marked++
		}
		c.nextMark = markFrom(b, c.nextMark+1)
	}
	if marked > 0 {
		c.marks += uint64(marked)
		c.markedLines++
	}
	if c.nul < at {
		c.nul = zeroFrom(b, at)
	}
	zeros := c.nul < end
	line := b[at:end]
	h, v := parseHead(line, &c.last)
	if v == whole && !zeros {
		if inner := nextHead(line, h.message); inner < 0 {
			// The usual line.
			c.lines.Records++
			if c.record(line, at, h, marked) {
				c.lines.Cut++
			}
			return
		}
	}
	c.oddLine(line, at, marked, zeros)
}

// nextHead returns the offset of the next complete prefix at or after i, or -1.
// A prefix starts with a level between colons.
func nextHead(line []byte, i int) int {
	for {
		j := bytes.IndexByte(line[i:], ':')
		if j < 0 {
			return -1
		}
		i += j
		if len(line)-i < 12 {
			return -1
		}
		if line[i+2] == ':' && isDigit(line[i+1]) {
			var none identity
			if _, v := parseHead(line[i:], &none); v == whole {
				return i
			}
		}
		i++
	}
}

// oddLine handles lines that are not exactly one record: text, records that
// concurrent writers interleaved, or damage.
func (c *chunk) oddLine(line []byte, at, marked int, zeros bool) {
	var none identity
	start := nextHead(line, 0)
	if start < 0 {
		_, v := parseHead(line, &none)
		switch {
		case v == cutOff:
			c.lines.Damaged++
			c.lines.Cut++
		case zeros || marked > 0 || looksBroken(line) || bytes.Contains(line, []byte(commandMark)):
			c.lines.Damaged++
		default:
			c.lines.Text++
		}
		c.orphans(line)
		return
	}
	if zeros {
		// A hole in the file: the text around it may stem from different times.
		c.lines.Damaged++
		c.orphans(line)
		return
	}
	c.lines.Records++
	c.orphans(line[:start])
	cut, glued := false, start > 0
	for start >= 0 {
		part := line[start:]
		h, _ := parseHead(part, &none)
		next := nextHead(part, h.message)
		if next >= 0 {
			part, glued = part[:next], true
		}
		cut = c.record(part, at+start, h, bytes.Count(part, []byte(dispatchMark))) || cut
		if next < 0 {
			break
		}
		start += next
	}
	if glued {
		c.lines.Glued++
	}
	if cut {
		c.lines.Cut++
	}
}

// looksBroken distinguishes damaged records from application output.
func looksBroken(line []byte) bool {
	if len(line) >= 3 && line[0] == ':' && isDigit(line[1]) && line[2] == ':' {
		return true
	}
	return bytes.Contains(line, []byte(" us: [pid:")) || bytes.Contains(line, []byte("HWq=0x")) ||
		bytes.Contains(line, []byte(".cpp ")) && bytes.Contains(line, []byte(" us: "))
}

// record counts one record and reports whether it was truncated. The record
// contains marked occurrences of dispatchMark.
func (c *chunk) record(part []byte, at int, h head, marked int) bool {
	c.eras[h.era]++
	c.levels[h.level]++
	w := c.writer(h)
	w.records++
	if w.records == 1 {
		w.first, w.last = h.time, h.time
	} else {
		w.first, w.last = min(w.first, h.time), max(w.last, h.time)
	}
	m := part[h.message:]
	at += h.message
	for len(m) > 0 && m[0] == ' ' {
		m, at = m[1:], at+1
	}
	k := classify(m)
	if k == other && marked == 0 {
		// A packet truncated before its header.
		return len(m) >= 4 && (string(m[:4]) == "SWq=" || string(m[:4]) == "HWq=")
	}
	if marked > 0 {
		k = dispatch
	}
	c.events = append(c.events, event{time: h.time, kind: k, writer: uint32(c.lastWriter)})
	e := &c.events[len(c.events)-1]
	decode(m, at, e)
	cut := e.cut
	if k == dispatch {
		for range marked - 1 { // further packets in the message are unreadable, but were submitted
			c.events = append(c.events, event{time: h.time, kind: dispatch, writer: uint32(c.lastWriter), id: -1, priority: -1, cut: true})
		}
	}
	return cut
}

// orphans counts the dispatches and commands of a damaged text, whose time and
// process are unknown.
func (c *chunk) orphans(text []byte) {
	for _, o := range [...]struct {
		kind kind
		mark string
	}{{dispatch, dispatchMark}, {command, commandMark}} {
		for range bytes.Count(text, []byte(o.mark)) {
			c.events = append(c.events, event{kind: o.kind, writer: noWriter})
		}
	}
}

const noWriter = 1<<32 - 1

// writer returns the entry of a record's thread. Consecutive records mostly
// share one.
func (c *chunk) writer(h head) *writer {
	if c.lastWriter >= 0 {
		if w := &c.writers[c.lastWriter]; w.pid == h.pid && w.tid == h.tid {
			return w
		}
	}
	key := writerKey{h.pid, h.tid}
	if len(c.writers) <= fewWriters {
		for i := range c.writers {
			if w := &c.writers[i]; w.pid == h.pid && w.tid == h.tid {
				c.lastWriter = i
				return w
			}
		}
	} else if i, ok := c.index[key]; ok {
		c.lastWriter = i
		return &c.writers[i]
	}
	c.lastWriter = len(c.writers)
	c.writers = append(c.writers, writer{pid: h.pid, tid: h.tid})
	if len(c.writers) > fewWriters {
		if len(c.index) == 0 {
			c.index = map[writerKey]int{}
			for i, w := range c.writers {
				c.index[writerKey{w.pid, w.tid}] = i
			}
		}
		c.index[key] = c.lastWriter
	}
	return &c.writers[c.lastWriter]
}

type writerKey struct {
	pid uint32
	tid uint64
}

// fewWriters is the largest count for which a linear search is faster.
const fewWriters = 16
