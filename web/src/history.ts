// SPDX-License-Identifier: Apache-2.0

// What the dashboard keeps of the history, and how it is cut into lanes, columns and lines. All
// functions are pure.

import type { DeviceHistory, Histogram, History, JournalEntry, Span } from "./api_gen";
import { histogramBoundsUS } from "./api_gen";

export const spanSeconds = 60;

// Piece is a span, or a step of which a program was only a part in that state.
export interface Piece extends Span {
  part?: number; // 0 to 1; without it all of the time
}

// DeviceSpans are the spans of one GPU within the last minute, or the steps of a longer time.
export interface DeviceSpans {
  device: string;
  toNS: number;
  grainNS: number;
  spans: Piece[];
}

// stepsOf returns the steps of a history as pieces: the timeline of more than a minute.
export function stepsOf(history: History, device: string): DeviceSpans {
  const spans: Piece[] = [];
  let points = 0;
  for (const s of history.devices?.find((d) => d.device === device)?.series ?? []) {
    const share = s.share ?? [];
    points = Math.max(points, share.length);
    share.forEach((ran, i) => {
      const from_ns = history.from_ns + i * history.step_ns;
      const step = { pid: s.pid, name: s.name, from_ns, to_ns: from_ns + history.step_ns };
      const waited = s.waited?.[i] ?? 0;
      if (ran > 0) spans.push({ ...step, state: "run", part: ran });
      if (waited > 0) spans.push({ ...step, state: "wait", part: waited });
    });
  }
  return { device, toNS: history.from_ns + points * history.step_ns, grainNS: history.step_ns, spans };
}

// mergeSpans adds a newer, shorter reply of the time from fromNS to toNS. What it covers replaces what
// was there.
export function mergeSpans(old: DeviceSpans | undefined, reply: DeviceHistory, fromNS: number, toNS: number): DeviceSpans {
  const seam = Math.max(reply.spans_from_ns, fromNS);
  const oldest = toNS - spanSeconds * 1e9;
  const spans: Piece[] = [];
  for (const s of old?.spans ?? []) {
    if (s.from_ns >= seam || s.to_ns <= oldest) continue;
    spans.push(s.to_ns > seam ? { ...s, to_ns: seam } : s);
  }
  for (const s of reply.spans ?? []) {
    if (s.to_ns > seam) spans.push(s.from_ns < seam ? { ...s, from_ns: seam } : s);
  }
  return { device: reply.device, toNS, grainNS: reply.grain_ns, spans };
}

// Lane is one program in the timeline of a GPU.
export interface Lane {
  pid: number;
  name: string;
  spans: Piece[];
  ranNS: number;
  waitedNS: number;
}

// lanesOf groups the spans of a window by program: the selected one and the busiest, in order of PID.
export function lanesOf(spans: readonly Piece[], fromNS: number, toNS: number, limit: number, selected: number): { lanes: Lane[]; more: number } {
  const byPID = new Map<number, Lane>();
  for (const s of spans) {
    const inside = (Math.min(s.to_ns, toNS) - Math.max(s.from_ns, fromNS)) * (s.part ?? 1);
    if (inside <= 0) continue;
    let lane = byPID.get(s.pid);
    if (lane === undefined) byPID.set(s.pid, (lane = { pid: s.pid, name: s.name, spans: [], ranNS: 0, waitedNS: 0 }));
    lane.spans.push(s);
    if (s.state === "run") lane.ranNS += inside;
    else lane.waitedNS += inside;
  }
  const busy = (l: Lane): number => (l.pid === selected ? Infinity : l.ranNS + l.waitedNS);
  const all = [...byPID.values()].sort((a, b) => busy(b) - busy(a) || a.pid - b.pid);
  return { lanes: all.slice(0, limit).sort((a, b) => a.pid - b.pid), more: Math.max(0, all.length - limit) };
}

// Columns has the parts of each pixel's time in which a program ran and waited, 0 to 1.
export interface Columns {
  run: Float32Array;
  wait: Float32Array;
}

// columnsOf divides a window into pixels, so that short waits stay visible and are not exaggerated.
export function columnsOf(spans: readonly Piece[], fromNS: number, toNS: number, width: number): Columns {
  const out: Columns = { run: new Float32Array(width), wait: new Float32Array(width) };
  const scale = width / (toNS - fromNS);
  for (const s of spans) {
    const into = s.state === "run" ? out.run : out.wait;
    const from = Math.max(0, (s.from_ns - fromNS) * scale);
    const to = Math.min(width, (s.to_ns - fromNS) * scale);
    for (let x = Math.floor(from); x < to; x++) {
      into[x] = Math.min(1, (into[x] ?? 0) + (Math.min(to, x + 1) - Math.max(from, x)) * (s.part ?? 1));
    }
  }
  return out;
}

// Line is one program in the charts of the last minutes.
export interface Line {
  pid: number;
  name: string;
  share: number[];
  p99: (number | null)[]; // µs; null: no request
  preemptions: number[];
}

export interface Lines {
  times: number[]; // Unix seconds
  lines: Line[];
  more: number;
}

// linesOf sums the series of all GPUs by program: the preferred ones and those that used most.
export function linesOf(history: History, limit: number, preferred: ReadonlySet<number>): Lines {
  const byPID = new Map<number, Line>();
  let points = 0;
  for (const device of history.devices ?? []) {
    for (const s of device.series ?? []) {
      const share = s.share ?? [];
      points = Math.max(points, share.length);
      let line = byPID.get(s.pid);
      if (line === undefined) byPID.set(s.pid, (line = { pid: s.pid, name: s.name, share: [], p99: [], preemptions: [] }));
      for (let i = 0; i < share.length; i++) {
        line.share[i] = (line.share[i] ?? 0) + (share[i] ?? 0);
        line.preemptions[i] = (line.preemptions[i] ?? 0) + (s.preemptions?.[i] ?? 0);
        line.p99[i] = Math.max(line.p99[i] ?? 0, s.p99_us?.[i] ?? 0) || null;
      }
    }
  }
  const used = (l: Line): number => (preferred.has(l.pid) ? Infinity : l.share.reduce((a, b) => a + b, 0));
  const all = [...byPID.values()].map((l) => ({ l, used: used(l) })).sort((a, b) => (a.used === b.used ? a.l.pid - b.l.pid : b.used - a.used)).map(({ l }) => l);
  const times: number[] = [];
  for (let i = 0; i < points; i++) times.push((history.from_ns + (i + 1) * history.step_ns) / 1e9);
  return { times, lines: all.slice(0, limit).sort((a, b) => a.pid - b.pid), more: Math.max(0, all.length - limit) };
}

// Bucket is one bar of a histogram: the durations above the bound before, up to toUS.
export interface Bucket {
  toUS: number; // Infinity for the last one
  count: number;
}

// bucketsOf returns the bars of a histogram without empty ones at both ends.
export function bucketsOf(h: Histogram | undefined): Bucket[] {
  const cumulative = h?.cumulative ?? [];
  if (h === undefined || cumulative.length === 0) return [];
  const out: Bucket[] = cumulative.map((n, i) => ({ toUS: histogramBoundsUS[i] ?? Infinity, count: n - (i === 0 ? 0 : (cumulative[i - 1] ?? 0)) }));
  const beyond = h.count - (cumulative[cumulative.length - 1] ?? 0);
  if (beyond > 0) out.push({ toUS: Infinity, count: beyond });
  const first = out.findIndex((b) => b.count > 0);
  if (first < 0) return [];
  let last = out.length;
  while ((out[last - 1]?.count ?? 1) === 0) last--;
  return out.slice(first, last);
}

// sumOf adds histograms; the quantiles are upper bounds, from the buckets.
export function sumOf(histograms: readonly Histogram[]): Histogram {
  const out: Histogram = { count: 0, p50_us: 0, p90_us: 0, p99_us: 0, max_us: 0, sum_us: 0, cumulative: [] };
  const cumulative = out.cumulative as number[];
  for (const h of histograms) {
    out.count += h.count;
    out.sum_us += h.sum_us;
    out.max_us = Math.max(out.max_us, h.max_us);
    (h.cumulative ?? []).forEach((n, i) => (cumulative[i] = (cumulative[i] ?? 0) + n));
  }
  const quantile = (q: number): number => {
    const i = cumulative.findIndex((n) => n >= q * out.count);
    return out.count === 0 ? 0 : Math.min(out.max_us, i < 0 ? out.max_us : (histogramBoundsUS[i] ?? out.max_us));
  };
  out.p50_us = quantile(0.5);
  out.p90_us = quantile(0.9);
  out.p99_us = quantile(0.99);
  return out;
}

// appendJournal keeps the newest entries of each kind, oldest first, each once.
export function appendJournal(old: readonly JournalEntry[], entries: readonly JournalEntry[], keep: number): JournalEntry[] {
  const last = old[old.length - 1]?.seq ?? -1;
  const room = new Map<string, number>();
  return [...old, ...entries.filter((e) => e.seq > last)].reverse().filter((e) => {
    const left = room.get(e.kind) ?? keep;
    room.set(e.kind, left - 1);
    return left > 0;
  }).reverse();
}

// EventLine is an event, and how many earlier ones of its run it stands for.
export interface EventLine extends JournalEntry {
  more: number;
  sinceNS: number; // of the first one
}

// linesOfEvents has the newest first. Without a kind, preemptions between other events share a line.
export function linesOfEvents(journal: readonly JournalEntry[], kind: string): EventLine[] {
  const out: EventLine[] = [];
  for (const e of [...journal].reverse()) {
    const above = out[out.length - 1];
    if (kind !== "" && e.kind !== kind) continue;
    if (kind === "" && e.kind === "preemption" && above?.kind === e.kind) {
      above.more++;
      above.sinceNS = e.time_ns;
    } else out.push({ ...e, more: 0, sinceNS: e.time_ns });
  }
  return out;
}
