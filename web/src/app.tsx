// SPDX-License-Identifier: Apache-2.0

import { useCallback, useMemo, useState } from "preact/hooks";
import { Bars } from "./bars";
import { Chart, type ChartProps, type Series } from "./chart";
import { Choice, spans } from "./choice";
import { Confirm, Controls, Login, NoAccess } from "./controls";
import { Detail } from "./detail";
import { Events } from "./events";
import { count, duration, modeText, percent, sensorsText, untimed } from "./format";
import { linesOf, spanSeconds, stepsOf, sumOf, type Line } from "./history";
import { known, rowsOf, servicesOf, type Row } from "./rows";
import { Services } from "./services";
import { ranges, type State, type Store } from "./store";
import { Tenants } from "./table";
import { Timeline } from "./timeline";

const mostLines = 8;
const windows = [...ranges.filter((r) => r > spanSeconds).reverse(), spanSeconds, 10, 2];

interface Props {
  store: Store;
  state: State;
}

export function App({ store, state }: Props) {
  const [selected, select] = useState(0);
  const rows = useMemo(() => (state.list === undefined ? [] : rowsOf(state.list)), [state.list]);
  const chosen = rows.find((r) => r.pid === selected);
  const names = useMemo(() => new Map(rows.map((r) => [r.pid, r.name])), [rows]);
  const nameOf = useCallback((pid: number): string => names.get(pid) ?? `${state.names.get(pid) ?? "process"} ${pid}`, [names, state.names]);
  return (
    <>
      <header class="top">
        <h1>XSched</h1>
        <Status state={state} />
        {state.list && <Controls store={store} state={state} />}
      </header>
      <main>
        {state.notice && (
          <p class={`notice ${state.notice.error ? "error" : ""}`} role={state.notice.error ? "alert" : "status"}>
            {state.notice.text} {state.notice.undo && <button type="button" onClick={state.notice.undo}>Undo</button>}
            <button type="button" aria-label="Dismiss message" onClick={() => store.set({ notice: undefined })}>×</button>
          </p>
        )}
        {state.problems.map((p) => (
          <p key={p.cause} class="notice error" role="alert">Problem: {p.cause}{p.remedy && `; ${p.remedy}`}</p>
        ))}
        {state.question && <Confirm store={store} question={state.question} />}
        {state.connection === "token" ? <Login store={store} reason={state.reason} /> : state.connection === "refused" ? <NoAccess reason={state.reason} /> : state.list && (
          <>
            <Services rows={rows} select={select} />
            <Devices store={store} state={state} selected={selected} names={nameOf} />
            <Tenants rows={rows} store={store} selected={selected} select={select} />
            {chosen && <Detail row={chosen} store={store} close={() => select(0)} />}
            <Past store={store} state={state} selected={selected} names={nameOf} rows={rows} />
            <Figures rows={rows} state={state} />
            <Events journal={state.journal} />
          </>
        )}
      </main>
      <footer>{state.version && <>xsched {state.version.version}, process {state.version.pid}. </>}<a href="/assets/licenses.txt">Licences of the libraries</a></footer>
    </>
  );
}

function Status({ state }: { state: State }) {
  const text = state.paused ? "paused" : state.connection === "lost" ? `not connected: ${state.reason}; trying again` : state.connection;
  return <p class={`status ${state.paused ? "paused" : state.connection}`} role="status" data-ticks={state.ticks}>{text}</p>;
}

interface View {
  state: State;
  selected: number;
  names: (pid: number) => string;
}

function Devices({ store, state, selected, names }: View & { store: Store }) {
  const [chosen, choose] = useState(spanSeconds);
  // Above a minute, the timeline has the range of the charts.
  const seconds = chosen > spanSeconds ? state.range : chosen;
  const history = seconds > spanSeconds ? state.history : undefined;
  const past = useMemo(() => new Map(history?.devices?.map((d) => [d.device, stepsOf(history, d.device)])), [history]);
  return (
    <section aria-labelledby="devices">
      <header class="bar">
        <h2 id="devices">GPUs</h2>
        <p class="key"><span class="box run" aria-hidden="true" />running <span class="box wait" aria-hidden="true" />waiting or preempted</p>
        <Choice legend="Timeline" options={spans(windows)} value={seconds} set={(v) => { choose(v); if (v > spanSeconds) store.setRange(v); }} />
      </header>
      {state.historyReason !== "" && <p class="empty">No timeline: {state.historyReason}</p>}
      {state.devices.length === 0 && <p class="empty">No GPU is known yet.</p>}
      <div class="devices">
        {state.devices.map((d) => {
          const spans = (seconds > spanSeconds ? past : state.spans).get(d.id);
          return (
            <article key={d.id} aria-label={`GPU ${d.id}`}>
              <h3>{d.name || "GPU"} <small>{d.id}</small></h3>
              <p class="facts">
                <meter min={0} max={1} value={Math.min(1, d.utilization)} aria-label={`Utilisation of ${d.id}`} />{" "}
                <span data-device={d.id}>{percent(d.utilization)}</span> used, {count(d.processes)} programs, {count(d.queues)} queues, level {d.max_level}, {d.policy}, mode {modeText(d.mode, d.mode_level)}
                {d.others > 0 && <>, {count(d.others)} unmanaged</>}
              </p>
              {d.sensors && <p class={`facts ${d.sensors.unknown || d.sensors.memory_low ? "bad" : ""}`}>{sensorsText(d.sensors)}</p>}
              {spans && <Timeline device={d} spans={spans} seconds={seconds} selected={selected} names={names} />}
            </article>
          );
        })}
      </div>
    </section>
  );
}

function Past({ store, state, selected, names, rows }: View & { store: Store; rows: Row[] }) {
  const [hidden, hide] = useState<ReadonlySet<number>>(new Set());
  const lines = useMemo(() => {
    const preferred = new Set([selected, ...servicesOf(rows).slice(0, mostLines - 1).map((r) => r.pid)]);
    return state.history === undefined ? undefined : linesOf(state.history, mostLines, preferred);
  }, [state.history, selected]);
  const toggle = (pid: number): void => hide((old) => {
    const now = new Set(old);
    if (!now.delete(pid)) now.add(pid);
    return now;
  });
  // The busy periods of a program that is never idle are no requests.
  const busy = new Set(rows.filter((r) => r.process.latency?.uncertain).map((r) => r.pid));
  const without = lines?.lines.filter((l) => busy.has(l.pid)) ?? [];
  const chart = (title: string, text: (value: number) => string, of: (line: Line) => Series["values"], more?: Partial<ChartProps>) => (
    <Chart title={title} times={lines?.times ?? []} text={text} hidden={hidden} toggle={toggle}
      series={(lines?.lines ?? []).filter((l) => !more?.log || (!busy.has(l.pid) && l.p99.some((v) => v !== null))).map((l) => ({ pid: l.pid, label: names(l.pid), values: of(l) }))} {...more} />
  );
  return (
    <section aria-labelledby="past">
      <header class="bar">
        <h2 id="past">History</h2>
        <Choice legend="Range" options={spans(ranges)} value={state.range} set={(range) => store.setRange(range)} />
      </header>
      {lines === undefined || lines.lines.length === 0 ? <p class="empty">{state.historyReason || "No history yet."}</p> : (
        <div class="charts">
          {chart("Request latency, P99", duration, (l) => l.p99, { log: true, note: without.length === 0 ? "" : `no known requests: ${without.map((l) => names(l.pid)).join(", ")}` })}
          {chart("Share of GPUs", percent, (l) => l.share)}
          {chart("Preemptions", count, (l) => l.preemptions)}
        </div>
      )}
      {lines !== undefined && lines.more > 0 && <p class="empty">{count(lines.more)} programs that used less are not drawn. Select one in the table to draw it.</p>}
    </section>
  );
}

// Figures are the distributions of all tenants together.
function Figures({ rows, state }: { rows: Row[]; state: State }) {
  const latency = useMemo(() => sumOf(rows.flatMap((r) => known(r.process)?.total ?? [])), [rows]);
  const preempt = useMemo(() => sumOf(state.stats?.preempt_time ?? []), [state.stats]);
  return (
    <section aria-labelledby="figures">
      <h2 id="figures">Distributions</h2>
      <div class="charts">
        <Bars title="Request latency of all tenants" histogram={latency} empty="No request has ended yet." />
        <Bars title="Time to preempt a program" histogram={preempt} empty={untimed(state.stats)} />
        <Bars title="Time until a preempted program ran again" histogram={state.stats?.queue_wait} empty={untimed(state.stats)} waiting />
      </div>
    </section>
  );
}
