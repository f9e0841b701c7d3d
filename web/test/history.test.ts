// SPDX-License-Identifier: Apache-2.0

import assert from "node:assert/strict";
import { test } from "node:test";
import { histogramBoundsUS, type DeviceHistory, type Histogram, type History, type JournalEntry, type Span } from "../src/api_gen";
import { appendJournal, bucketsOf, columnsOf, lanesOf, linesOf, linesOfEvents, mergeSpans, stepsOf, sumOf } from "../src/history";

const span = (pid: number, state: string, from: number, to: number): Span => ({ pid, name: `p${pid}`, state, from_ns: from, to_ns: to });
const reply = (from: number, spans: Span[] | null): DeviceHistory => ({ device: "g", spans_from_ns: from, grain_ns: 0, spans, series: null });

test("a newer reply replaces what it covers", () => {
  const first = mergeSpans(undefined, reply(0, [span(1, "run", 0, 10), span(1, "preempted", 10, 20)]), 0, 20);
  const second = mergeSpans(first, reply(0, [span(1, "preempted", 5, 25), span(1, "run", 25, 30)]), 15, 30);
  assert.deepEqual(second.spans, [span(1, "run", 0, 10), span(1, "preempted", 10, 15), span(1, "preempted", 15, 25), span(1, "run", 25, 30)]);
  assert.equal(mergeSpans(second, reply(0, null), 28, 31).spans.length, 4);
});

test("a time without record is not covered by older spans", () => {
  const old = mergeSpans(undefined, reply(0, [span(1, "run", 0, 10)]), 0, 20);
  assert.deepEqual(mergeSpans(old, reply(25, [span(1, "run", 24, 30)]), 0, 30).spans, [span(1, "run", 0, 10), span(1, "run", 25, 30)]);
});

test("spans older than a minute are dropped", () => {
  const old = mergeSpans(undefined, reply(0, [span(1, "run", 0, 10), span(1, "run", 20, 5e9)]), 0, 10e9);
  assert.deepEqual(mergeSpans(old, reply(0, []), 60e9, 62e9).spans.map((s) => s.from_ns), [20]);
});

test("lanes are the busiest programs and the selected one", () => {
  const spans = [span(3, "run", 0, 5), span(1, "run", 0, 50), span(2, "wait", 10, 90), span(4, "run", 200, 300), span(1, "preempted", 50, 60)];
  const { lanes, more } = lanesOf(spans, 0, 100, 2, 0);
  assert.deepEqual(lanes.map((l) => [l.pid, l.ranNS, l.waitedNS]), [[1, 50, 10], [2, 0, 80]]);
  assert.equal(more, 1);
  assert.deepEqual(lanesOf(spans, 0, 100, 2, 3).lanes.map((l) => l.pid), [2, 3]);
  assert.deepEqual(lanesOf([], 0, 100, 2, 3), { lanes: [], more: 0 });
});

test("columns hold the part of each pixel's time", () => {
  const { run, wait } = columnsOf([span(1, "run", -50, 15), span(1, "preempted", 15, 20), span(1, "run", 35, 1000)], 0, 40, 4);
  assert.deepEqual([...run], [1, 0.5, 0, 0.5]);
  assert.deepEqual([...wait], [0, 0.5, 0, 0]);
});

test("lines add the shares of several GPUs and keep gaps", () => {
  const history: History = {
    from_ns: 100e9, to_ns: 102e9, step_ns: 1e9,
    devices: [
      { ...reply(0, null), series: [{ pid: 1, name: "a", share: [0.5, 0.25], waited: [0.25, 0], p99_us: [10, 0], preemptions: [1, 2] }, { pid: 2, name: "b", share: [0, 0], waited: [0, 0], p99_us: [0, 0], preemptions: [0, 0] }] },
      { ...reply(0, null), series: [{ pid: 1, name: "a", share: [0.25, 0.25], waited: [0, 0], p99_us: [10, 0], preemptions: [0, 1] }] },
    ],
  };
  const all = linesOf(history, 8, new Set());
  assert.deepEqual(all.times, [101, 102]);
  assert.deepEqual(all.lines[0], { pid: 1, name: "a", share: [0.75, 0.5], p99: [10, null], preemptions: [1, 3] });
  assert.deepEqual(linesOf(history, 1, new Set([2])).lines.map((l) => l.pid), [2]);
  assert.equal(linesOf(history, 1, new Set([2])).more, 1);
  assert.deepEqual(linesOf({ ...history, devices: null }, 8, new Set()), { times: [], lines: [], more: 0 });
});

test("steps have the parts in which a program ran and waited", () => {
  const history: History = {
    from_ns: 100, to_ns: 121, step_ns: 10,
    devices: [{ ...reply(0, null), series: [{ pid: 1, name: "a", share: [0.5, 0.25], waited: [0.25, 0], p99_us: [0, 0], preemptions: [0, 0] }] }],
  };
  const { spans, toNS } = stepsOf(history, "g");
  assert.equal(toNS, 120);
  assert.deepEqual(lanesOf(spans, 100, 120, 9, 0).lanes.map((l) => [l.pid, l.ranNS, l.waitedNS]), [[1, 7.5, 2.5]]);
  const { run, wait } = columnsOf(spans, 100, 120, 4);
  assert.deepEqual([[...run], [...wait]], [[0.5, 0.5, 0.25, 0.25], [0.25, 0.25, 0, 0]]);
  assert.deepEqual(stepsOf(history, "other").spans, []);
});

const histogram = (counts: number[], beyond = 0): Histogram => {
  let sum = 0;
  const cumulative = histogramBoundsUS.map((_, i) => (sum += counts[i] ?? 0));
  return { count: sum + beyond, p50_us: 0, p90_us: 0, p99_us: 0, max_us: 2e7, sum_us: 0, cumulative };
};

test("bars leave out empty ends only", () => {
  assert.deepEqual(bucketsOf(undefined), []);
  assert.deepEqual(bucketsOf(histogram([])), []);
  assert.deepEqual(bucketsOf(histogram([0, 3, 0, 4])), [{ toUS: 2, count: 3 }, { toUS: 5, count: 0 }, { toUS: 10, count: 4 }]);
  assert.deepEqual(bucketsOf(histogram([], 2)), [{ toUS: Infinity, count: 2 }]);
});

test("sums of histograms have quantiles", () => {
  const sum = sumOf([histogram([0, 50]), histogram([0, 0, 49, 1])]);
  assert.deepEqual([sum.count, sum.p50_us, sum.p90_us, sum.p99_us], [100, 2, 5, 5]);
  assert.equal(sumOf([]).p99_us, 0);
  assert.equal(sumOf([histogram([], 1)]).p99_us, 2e7);
});

const entry = (seq: number, kind = "preemption"): JournalEntry => ({ seq, kind, time_ns: seq }) as JournalEntry;

test("the journal has each entry once, and the newest of each kind", () => {
  const kept = appendJournal([entry(0, "change"), entry(1), entry(2)], [entry(2), entry(3), entry(4), entry(5, "left"), entry(6)], 3);
  assert.deepEqual(kept.map((e) => e.seq), [0, 3, 4, 5, 6]);
});

test("preemptions between other events share a line", () => {
  const journal = [entry(1), entry(2, "change"), entry(3), entry(4), entry(5), entry(6, "left"), entry(7, "left")];
  assert.deepEqual(linesOfEvents(journal, "").map((e) => [e.seq, e.more, e.sinceNS]), [[7, 0, 7], [6, 0, 6], [5, 2, 3], [2, 0, 2], [1, 0, 1]]);
  assert.deepEqual(linesOfEvents(journal, "preemption").map((e) => [e.seq, e.more]), [[5, 0], [4, 0], [3, 0], [1, 0]]);
  assert.deepEqual(linesOfEvents([], ""), []);
});
