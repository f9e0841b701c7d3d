// SPDX-License-Identifier: Apache-2.0

// The rows of the table of tenants, and their order. All functions are pure.

import type { Latency, List, Process } from "./api_gen";
import { count, duration, percent, plain } from "./format";

export interface Row {
  key: number; // the session
  pid: number;
  name: string;
  command: string;
  user: string;
  pod: string; // namespace/pod/container; empty: not in a known pod
  state: string;
  priority: number;
  level: number; // the lowest of its queues; 0: no queue yet
  share: number;
  p50: number; // µs; 0: no request yet
  p99: number;
  attainment: number; // 0..1; -1: no target
  preemptions: number;
  lostUS: number;
  held: boolean;
  process: Process;
}

export type Column = "name" | "pod" | "user" | "state" | "priority" | "level" | "share" | "p50" | "p99" | "attainment" | "preemptions" | "lostUS";

export interface Order {
  column: Column;
  descending: boolean;
}

// known is the latency of a program whose requests the daemon can tell apart.
export function known(p: Process): Latency | undefined {
  return p.latency?.uncertain ? undefined : p.latency;
}

// protection tells, by GPU, what running before lower programs gains a program and costs them.
export function protection(p: Process): [string, string][] {
  const all = p.protection ?? [];
  return all.flatMap((on): [string, string][] => {
    const name = all.length > 1 ? `Protection on ${plain(on.device)}` : "Protection";
    const how = on.submission?.strategy;
    const strategy: [string, string][] = how ? [[`Strategy${all.length > 1 ? ` on ${plain(on.device)}` : ""}`, `${plain(how)}: ${plain(on.submission.reason)}`]] : [];
    if (on.state === "learning") return [[name, `learning, ${count(on.requests)} requests`], ...strategy];
    const cost = on.cost_ratio < 0.0005 ? "nothing" : `up to ${percent(on.cost_ratio)}`;
    const gain = on.gain_p99_us > 0 ? `${duration(on.gain_p99_us)} of ${duration(on.native_p99_us)} (${plain(on.native_source)})` : "nothing";
    return [[`${name} gains, P99`, gain], [`${name} costs others`, on.state === "native" ? "nothing: off, because it gains too little" : cost], ...strategy];
  });
}

export function rowOf(p: Process): Row {
  const levels = (p.queues ?? []).map((q) => q.level).filter((level) => level > 0);
  return {
    key: p.session,
    pid: p.pid,
    name: plain(p.name ?? "") || `process ${p.pid}`,
    command: plain(p.command),
    user: plain(p.user),
    pod: p.pod ? plain([p.namespace, p.pod, p.pod_container].filter(Boolean).join("/")) : "",
    state: p.state,
    priority: p.priority,
    level: levels.length === 0 ? 0 : Math.min(...levels),
    share: p.gpu_share,
    p50: known(p)?.total.p50_us ?? 0,
    p99: known(p)?.total.p99_us ?? 0,
    attainment: p.slo?.attainment ?? -1,
    preemptions: p.preemptions,
    lostUS: p.lost_ns / 1e3,
    held: p.held,
    process: p,
  };
}

export const rowsOf = (list: List): Row[] => (list.processes ?? []).map(rowOf);

// missed reports whether a program misses its latency target.
export const missed = (row: Row): boolean => row.attainment >= 0 && row.attainment < (row.process.slo?.objective ?? 0);

// servicesOf are the programs that are protected from others or have a latency target, those that miss it first.
export function servicesOf(rows: readonly Row[]): Row[] {
  const service = (r: Row): boolean => r.attainment >= 0 || (r.process.protection ?? []).some((on) => on.requests > 0);
  return rows.filter(service).sort((a, b) => Number(missed(b)) - Number(missed(a)) || b.priority - a.priority || a.pid - b.pid);
}

// verdict answers whether a service is protected, in a few words.
export function verdict(row: Row): string {
  const states = new Set((row.process.protection ?? []).map((on) => on.state));
  if (row.held) return "held";
  if (missed(row)) return "target missed";
  if (states.has("protected")) return "protected";
  if (states.has("learning")) return "learning";
  return states.has("native") ? "not protected" : "no lower program";
}

// serviceFacts are the figures of a service's tile.
export function serviceFacts(row: Row): [string, string][] {
  const { slo } = row.process;
  const wait = known(row.process)?.wait.p99_us;
  const facts: [string, string][] = [["P99 now", duration(row.p99)], ["Waiting for the GPU, P99", wait === 0 ? "nothing" : duration(wait)], ...protection(row.process)];
  if (slo) facts.push([`Within ${duration(slo.target_us)}`, `${percent(slo.attainment)} (goal ${percent(slo.objective)})`], ["Error budget left", percent(Math.max(0, slo.budget_left))]);
  return facts;
}

// matches reports whether a row has every word of the filter in its name, command, pod, user, state or PID.
export function matches(row: Row, filter: string): boolean {
  const text = `${row.name} ${row.command} ${row.pod} ${row.user} ${row.state} ${row.pid}`.toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

// ordered sorts rows; equal ones are in the order of their PIDs, so that rows do not jump.
export function ordered(rows: readonly Row[], order: Order): Row[] {
  const sign = order.descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = a[order.column];
    const y = b[order.column];
    const by = typeof x === "string" ? x.localeCompare(y as string, "en") : x - (y as number);
    return by === 0 ? a.pid - b.pid : by * sign;
  });
}

// visible is the part of a long table to draw: rows first to last of total at this scroll position.
export function visible(total: number, scrollTop: number, viewHeight: number, rowHeight: number, spare = 4): { first: number; last: number } {
  const top = Math.max(0, Math.floor(scrollTop / rowHeight) - spare);
  const bottom = Math.min(total, Math.ceil((scrollTop + viewHeight) / rowHeight) + spare);
  return { first: Math.min(top, total), last: Math.max(bottom, Math.min(top, total)) };
}
