// SPDX-License-Identifier: Apache-2.0

// The table of tenants. Only visible rows are in the document, so that 500 tenants cost no more than 20.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, duration, none, percent } from "./format";
import { matches, ordered, visible, type Column, type Order, type Row } from "./rows";
import type { Store } from "./store";
import { indexOf, tenantColours } from "./theme";

const rowHeight = 34;
const mostRows = 14; // of the view

// Columns of the table; narrow ones stay on a phone. That of pods is there with the first pod.
const allColumns: { id: Column; title: string; hint: string; narrow?: true; number?: true }[] = [
  { id: "name", title: "Program", hint: "Name of the program", narrow: true },
  { id: "pod", title: "Pod", hint: "Namespace, pod and container in Kubernetes" },
  { id: "user", title: "User", hint: "Owner of the process" },
  { id: "state", title: "State", hint: "running, preempted, waiting, idle, held or away (its memory)", narrow: true },
  { id: "priority", title: "Priority", hint: "Higher runs first", number: true },
  { id: "level", title: "Level", hint: "Preemption level, 1 to 3", number: true },
  { id: "share", title: "GPU", hint: "Share of the last second on GPUs", narrow: true, number: true },
  { id: "p50", title: "P50", hint: "Median request latency", number: true },
  { id: "p99", title: "P99", hint: "99th percentile of the request latency", narrow: true, number: true },
  { id: "attainment", title: "SLO", hint: "Share of requests that met the latency target", number: true },
  { id: "preemptions", title: "Preempted", hint: "Number of preemptions", number: true },
  { id: "lostUS", title: "Lost", hint: "Time lost to preemption", number: true },
];

function cell(row: Row, column: Column): string {
  switch (column) {
    case "name": return row.name;
    case "pod": return row.pod === "" ? none : row.pod;
    case "user": return row.user;
    case "state": return row.state;
    case "priority": return String(row.priority);
    case "level": return row.level === 0 ? none : String(row.level);
    case "share": return percent(row.share);
    case "p50": return duration(row.p50);
    case "p99": return duration(row.p99);
    case "attainment": return row.attainment < 0 ? none : percent(row.attainment);
    case "preemptions": return count(row.preemptions);
    case "lostUS": return duration(row.lostUS);
  }
}

interface Props {
  rows: Row[];
  store: Store;
  selected: number;
  select: (pid: number) => void;
}

export function Tenants({ rows, store, selected, select }: Props) {
  const [order, setOrder] = useState<Order>({ column: "priority", descending: true });
  const [filter, setFilter] = useState("");
  const [top, setTop] = useState(0);
  const view = useRef<HTMLDivElement>(null);
  const focus = useRef(-1); // the row to focus after it was scrolled into view
  const shown = useMemo(() => ordered(rows.filter((r) => matches(r, filter)), order), [rows, filter, order]);
  const columns = rows.some((r) => r.pod !== "") ? allColumns : allColumns.filter((c) => c.id !== "pod");
  const viewHeight = Math.min(shown.length, mostRows) * rowHeight;
  const { first, last } = visible(shown.length, Math.min(top, Math.max(0, shown.length * rowHeight - viewHeight)), viewHeight, rowHeight);

  const button = (row: number): HTMLElement | null | undefined => view.current?.querySelector<HTMLElement>(`tr[aria-rowindex="${row + 2}"] button`);
  useLayoutEffect(() => {
    if (focus.current < 0) return;
    button(focus.current)?.focus({ preventScroll: true });
    focus.current = -1;
  });

  // Arrow keys move between the rows' buttons, also beyond what is in the document.
  const onKey = (event: KeyboardEvent): void => {
    const row = (event.target as HTMLElement).closest("tr[aria-rowindex]");
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: mostRows, PageUp: -mostRows, Home: -shown.length, End: shown.length }[event.key];
    if (row === null || step === undefined || view.current === null) return;
    event.preventDefault();
    const next = Math.min(shown.length - 1, Math.max(0, Number(row.getAttribute("aria-rowindex")) - 2 + step));
    const from = view.current.scrollTop;
    if (next * rowHeight < from) view.current.scrollTop = next * rowHeight;
    if ((next + 1) * rowHeight > from + viewHeight) view.current.scrollTop = (next + 1) * rowHeight - viewHeight;
    const there = button(next);
    if (there) {
      there.focus({ preventScroll: true });
      return;
    }
    focus.current = next; // it is drawn for the new position first
    setTop(view.current.scrollTop);
  };

  const sortBy = (column: Column): void =>
    setOrder((o) => ({ column, descending: o.column === column ? !o.descending : column !== "name" && column !== "pod" && column !== "user" }));

  return (
    <section aria-labelledby="tenants">
      <header class="bar">
        <h2 id="tenants">Tenants <span class="count">{filter === "" ? rows.length : `${shown.length} of ${rows.length}`}</span></h2>
        <label class="filter">Filter <input type="search" value={filter} onInput={(e) => setFilter(e.currentTarget.value)} /></label>
      </header>
      <div class="view" ref={view} onScroll={(e) => setTop(e.currentTarget.scrollTop)} onKeyDown={onKey} style={{ maxHeight: `${(mostRows + 1) * rowHeight + 4}px` }}
        tabIndex={0} role="region" aria-label="Table of tenants">
        <table class="tenants" aria-rowcount={shown.length + 1}>
          <thead>
            <tr aria-rowindex={1}>
              {columns.map((c) => (
                <th key={c.id} scope="col" class={`${c.narrow ? "" : "wide"} ${c.number ? "number" : ""}`}
                  aria-sort={order.column !== c.id ? "none" : order.descending ? "descending" : "ascending"}>
                  <button type="button" class="sort" title={c.hint} onClick={() => sortBy(c.id)}>{c.title}</button>
                </th>
              ))}
              <th scope="col" class="actions"><span class="hidden">Actions</span></th>
            </tr>
          </thead>
          <tbody>
            {first > 0 && <tr class="spare" aria-hidden="true" style={{ height: `${first * rowHeight}px` }}><td colSpan={columns.length + 1} /></tr>}
            {shown.slice(first, last).map((row, i) => (
              <tr key={row.key} aria-rowindex={first + i + 2} data-pid={row.pid} class={row.pid === selected ? "selected" : ""}>
                {columns.map((c) => (
                  <td key={c.id} data-column={c.id} class={`${c.narrow ? "" : "wide"} ${c.number ? "number" : ""}`} title={c.id === "name" ? row.command : undefined}>
                    {c.id === "name" ? (
                      <button type="button" class="name" aria-expanded={row.pid === selected} aria-label={`Details of ${row.name}, process ${row.pid}`}
                        onClick={() => select(row.pid === selected ? 0 : row.pid)}>
                        <span class={`dot tenant-${indexOf(row.pid) % tenantColours}`} aria-hidden="true" />{row.name}
                      </button>
                    ) : c.id === "state" ? <span class={`badge ${row.state}`}>{row.state}</span> : cell(row, c.id)}
                  </td>
                ))}
                <td class="actions">
                  {row.held
                    ? <button type="button" aria-label={`Resume ${row.name}, process ${row.pid}`} onClick={() => store.resume(row.pid)}>Resume</button>
                    : <button type="button" aria-label={`Suspend ${row.name}, process ${row.pid}`} onClick={() => store.askSuspend(row.pid, row.name)}>Suspend</button>}
                </td>
              </tr>
            ))}
            {last < shown.length && <tr class="spare" aria-hidden="true" style={{ height: `${(shown.length - last) * rowHeight}px` }}><td colSpan={columns.length + 1} /></tr>}
          </tbody>
        </table>
      </div>
      {shown.length === 0 && <p class="empty">{rows.length === 0 ? <>No program runs under XSched. Start one with <code>xsched run -- COMMAND</code>.</> : "No program matches the filter."}</p>}
    </section>
  );
}
