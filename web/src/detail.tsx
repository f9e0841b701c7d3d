// SPDX-License-Identifier: Apache-2.0

// One tenant: its numbers, its latencies, and what can be changed.

import { useState } from "preact/hooks";
import { priorityMax, priorityMin, type Memory } from "./api_gen";
import { Bars } from "./bars";
import { bytes, count, duration, memoryText, none, percent, plain } from "./format";
import { known, protection, type Row } from "./rows";
import type { Store } from "./store";

function Priority({ row, store }: { row: Row; store: Store }) {
  const [text, setText] = useState<string>();
  const value = Number(text ?? row.priority);
  const valid = Number.isInteger(value) && value >= priorityMin && value <= priorityMax;
  return (
    <form class="inline" onSubmit={(e) => {
      e.preventDefault();
      if (valid) void store.setPriority(row.pid, row.name, value, row.priority).then((done) => done && setText(undefined));
    }}>
      <label>Priority{" "}
        <input type="number" name="priority" min={priorityMin} max={priorityMax} step={1} required value={text ?? String(row.priority)}
          onInput={(e) => setText(e.currentTarget.value)} />
      </label>{" "}
      <button type="submit" disabled={!valid}>Set priority</button>
    </form>
  );
}

// MoveBar shows a move of memory in progress.
function MoveBar({ memory }: { memory: Memory }) {
  const move = memory.move;
  if (!move?.active) return null;
  return (
    <p class="inline">
      <label>{memory.device}: {memory.residency}{" "}
        <progress max={Math.max(1, move.bytes)} value={move.moved_bytes} />
      </label>{" "}
      {bytes(move.moved_bytes)} of {bytes(move.bytes)}
    </p>
  );
}

export function Detail({ row, store, close }: { row: Row; store: Store; close: () => void }) {
  const p = row.process;
  const facts: [string, string][] = [
    ["Process", String(row.pid)],
    ["User", row.user],
    ["Command", row.command === "" ? "only shown to its user and root" : row.command],
    ["State", row.state],
    ["Level", row.level === 0 ? none : String(row.level)],
    ["GPU share, last second", percent(row.share)],
    ["P50", duration(row.p50)],
    ["P99", duration(row.p99)],
    ["Waiting for others, P99", duration(known(p)?.wait.p99_us)],
    ["Requests", p.latency === undefined ? none : `${count(p.latency.requests)} (${p.latency.source}${p.latency.uncertain ? `, ${p.latency.uncertain}` : ""})`],
    ["Latency target", p.slo === undefined ? none : duration(p.slo.target_us)],
    ["Requests within the target", p.slo === undefined ? none : percent(p.slo.attainment)],
    ["Error budget left", p.slo === undefined ? none : percent(p.slo.budget_left)],
    ...protection(p),
    ["Preemptions", count(row.preemptions)],
    ["Time lost to preemption", duration(row.lostUS)],
  ];
  for (const m of p.memory ?? []) facts.push([`Memory, ${m.device}`, memoryText(m)]);
  if (row.pod !== "") facts.push(["Pod", row.pod]);
  if (p.class) facts.push(["Class", plain(p.class)]);
  if (p.group) facts.push(["Group", plain(p.group) + (p.group_held ? ", suspended on all nodes" : "")]);
  if (p.container) facts.push(["Container", p.container]);
  if (p.priority_reason) facts.push(["Priority not granted", p.priority_reason]);
  return (
    <section class="detail" aria-labelledby="detail" onKeyDown={(e) => e.key === "Escape" && close()}>
      <header class="bar">
        <h2 id="detail">{row.name}</h2>
        <button type="button" onClick={close}>Close details</button>
      </header>
      <div class="split">
        <dl>{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
        <div>
          <Priority row={row} store={store} key={row.pid} />
          <p class="inline">
            {row.held ? <button type="button" onClick={() => store.resume(row.pid)}>Resume</button>
              : <button type="button" onClick={() => store.askSuspend(row.pid, row.name)}>Suspend</button>}
          </p>
          {(p.memory ?? []).map((m) => <MoveBar memory={m} key={m.device} />)}
          <Bars title={`Request latency of ${row.name}`} histogram={p.latency?.total} empty="No request has ended yet." />
          <Bars title="Of that, waiting for others" histogram={p.latency?.wait} empty="No request has ended yet." waiting />
        </div>
      </div>
    </section>
  );
}
