// SPDX-License-Identifier: Apache-2.0

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Latency, Process, Protection, Queue, SLO } from "../src/api_gen";
import { none } from "../src/format";
import { matches, ordered, protection, rowOf, serviceFacts, servicesOf, verdict, visible, type Row } from "../src/rows";

const queue = (level: number): Queue => ({ level }) as Queue;
const process = (change: Partial<Process>): Process =>
  ({ pid: 1, session: 1, command: "", user: "root", state: "idle", priority: 0, gpu_share: 0, preemptions: 0, lost_ns: 0, held: false, queues: null, ...change }) as Process;
const row = (change: Partial<Process>): Row => rowOf(process(change));

test("a row has the lowest level of its queues", () => {
  assert.equal(row({ queues: null }).level, 0);
  assert.equal(row({ queues: [queue(3), queue(0), queue(2)] }).level, 2);
});

test("a row has the daemon's name of its program, as plain text", () => {
  assert.equal(row({ pid: 5, name: "s.py --port\u202e 80" }).name, "s.py --port\ufffd 80");
  assert.equal(row({ pid: 5 }).name, "process 5");
});

const slo = (attainment: number): SLO => ({ target_us: 20_000, objective: 0.99, attainment, budget_left: -2 }) as SLO;
const protectedBy = (state: string, requests = 9): Partial<Process> => ({ protection: [{ device: "g", state, requests, gain_p99_us: 0, cost_ratio: 0 } as Protection] });

test("services have a target or are protected; those that miss it come first", () => {
  const rows = [row({ pid: 1 }), row({ pid: 2, priority: 5, slo: slo(1) }), row({ pid: 3, priority: 9, ...protectedBy("protected") }), row({ pid: 4, slo: slo(0.5) }), row({ pid: 5, ...protectedBy("learning", 0) })];
  assert.deepEqual(servicesOf(rows).map((r) => r.pid), [4, 3, 2]);
});

test("a verdict answers whether a service is protected", () => {
  const of = (change: Partial<Process>): string => verdict(row(change));
  assert.equal(of(protectedBy("protected")), "protected");
  assert.equal(of({ ...protectedBy("protected"), slo: slo(0.99) }), "protected");
  assert.equal(of({ ...protectedBy("protected"), slo: slo(0.98) }), "target missed");
  assert.equal(of({ ...protectedBy("protected"), held: true }), "held");
  assert.equal(of(protectedBy("learning")), "learning");
  assert.equal(of(protectedBy("native")), "not protected");
  assert.equal(of({ slo: slo(1) }), "no lower program");
});

test("a tile has the latency, the wait, the target, and no figure that is not known", () => {
  const latency = { source: "busy periods", total: { p99_us: 4100 }, wait: { p99_us: 90 } } as Latency;
  assert.deepEqual(serviceFacts(row({ latency, slo: slo(0.998) })),
    [["P99 now", "4.10 ms"], ["Waiting for the GPU, P99", "90 µs"], ["Within 20.0 ms", "99.8 % (goal 99 %)"], ["Error budget left", "0 %"]]);
  assert.deepEqual(serviceFacts(row({ latency: { ...latency, wait: { p99_us: 0 } } as Latency }))[1], ["Waiting for the GPU, P99", "nothing"]);
  assert.deepEqual(serviceFacts(row({ latency: { ...latency, uncertain: "always busy" } })).map(([, value]) => value), [none, none]);
});

test("a row has its pod, and a filter finds it", () => {
  assert.equal(row({}).pod, "");
  assert.equal(row({ namespace: "ml", pod: "train-0" }).pod, "ml/train-0");
  const r = row({ namespace: "ml", pod: "train-0", pod_container: "main\n" });
  assert.equal(r.pod, "ml/train-0/main\ufffd");
  assert.ok(matches(r, "ml/train"));
});

test("a program without requests or target has neither", () => {
  const r = row({});
  assert.equal(r.p99, 0);
  assert.equal(r.attainment, -1);
});

test("busy periods of a program that is never idle are no latency", () => {
  const latency = { source: "busy periods", requests: 3, total: { p50_us: 5, p99_us: 7 } } as Latency;
  assert.equal(row({ latency }).p99, 7);
  assert.equal(row({ latency: { ...latency, uncertain: "always busy" } }).p99, 0);
});

test("protection has its gain and its cost by GPU", () => {
  const on = { device: "0000:01:00.0", state: "protected", requests: 5180, native_p99_us: 38_200, native_source: "modelled", gain_p99_us: 34_100, cost_ratio: 0.021 } as Protection;
  const facts = (...all: Partial<Protection>[]): [string, string][] => protection(process({ protection: all.map((change) => ({ ...on, ...change })) }));
  assert.deepEqual(protection(process({})), []);
  assert.deepEqual(protection(process({ protection: null })), []);
  assert.deepEqual(facts({}), [["Protection gains, P99", "34.1 ms of 38.2 ms (modelled)"], ["Protection costs others", "up to 2.1 %"]]);
  assert.deepEqual(facts({ cost_ratio: 0.0001 })[1], ["Protection costs others", "nothing"]);
  assert.deepEqual(facts({ state: "learning", requests: 1200 }), [["Protection", "learning, 1,200 requests"]]);
  assert.deepEqual(facts({ state: "native", gain_p99_us: -3 }), [["Protection gains, P99", "nothing"], ["Protection costs others", "nothing: off, because it gains too little"]]);
  const submission = { strategy: "batches", reason: "70 kernels\n" } as Protection["submission"];
  assert.deepEqual(facts({ submission })[2], ["Strategy", "batches: 70 kernels\ufffd"]);
  assert.deepEqual(facts({}, { device: "b\n", state: "learning", requests: 0 }).map(([name]) => name),
    ["Protection on 0000:01:00.0 gains, P99", "Protection on 0000:01:00.0 costs others", "Protection on b\ufffd"]);
});

test("rows are sorted, and equal ones by PID in both directions", () => {
  const rows = [row({ pid: 3, priority: 1 }), row({ pid: 1, priority: 1 }), row({ pid: 2, priority: -256 }), row({ pid: 4, priority: 10 })];
  assert.deepEqual(ordered(rows, { column: "priority", descending: true }).map((r) => r.pid), [4, 1, 3, 2]);
  assert.deepEqual(ordered(rows, { column: "priority", descending: false }).map((r) => r.pid), [2, 1, 3, 4]);
  assert.deepEqual(rows.map((r) => r.pid), [3, 1, 2, 4]);
});

test("every word of a filter must match", () => {
  const r = row({ pid: 42, command: "python3 train.py --lr 3", user: "anna" });
  for (const filter of ["", "train", "TRAIN", "anna train", "42", "lr  3"]) assert.ok(matches(r, filter), filter);
  for (const filter of ["serve", "anna serve"]) assert.ok(!matches(r, filter), filter);
});

test("the visible part of a table is bounded and inside it", () => {
  assert.deepEqual(visible(0, 0, 0, 34), { first: 0, last: 0 });
  assert.deepEqual(visible(3, 0, 102, 34), { first: 0, last: 3 });
  assert.deepEqual(visible(500, 3400, 476, 34), { first: 96, last: 118 });
  assert.deepEqual(visible(500, 1e9, 476, 34), { first: 500, last: 500 });
});
