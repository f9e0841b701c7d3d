// SPDX-License-Identifier: Apache-2.0

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "./format";
import { colour, indexOf, tenantColour } from "./theme";

export interface Series {
  pid: number;
  label: string;
  values: (number | null)[];
}

export interface ChartProps {
  title: string;
  times: number[];
  series: Series[];
  text: (value: number) => string;
  hidden: ReadonlySet<number>; // PIDs
  toggle: (pid: number) => void;
  log?: boolean;
  note?: string;
}

const height = 180;

function options(p: ChartProps, width: number): uPlot.Options {
  const axis = { stroke: colour("--ink"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule"), width: 1 } };
  const range: uPlot.Range.Function = (_, low, top) => (p.log ? (top > 0 ? uPlot.rangeLog(low / 2, top * 2, 10, false) : [100, 1e5]) : [0, top > 0 ? top * 1.1 : 1]);
  return {
    width, height, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: true }, y: { range, distr: p.log ? 3 : 1 } },
    padding: [8, 36, 0, 0],
    axes: [
      { ...axis, space: 90, values: (_, times) => times.map((t) => clock(t * 1e9)) },
      { ...axis, size: 72, values: (_, values) => values.map((v) => (v === null ? "" : v === 0 ? "0" : p.text(v))) },
    ],
    series: [{}, ...p.series.map((s) => ({ label: s.label, show: !p.hidden.has(s.pid), stroke: tenantColour(indexOf(s.pid)), width: 1.5, spanGaps: false, points: { show: false } }))],
  };
}

// Chart draws lines over time. The list below the drawing has the latest values as text, and hides lines.
export function Chart(p: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const look = `${document.documentElement.dataset["theme"]} ${p.series.map((s) => `${s.pid} ${p.hidden.has(s.pid)} ${s.label}`).join("\n")}`;
  const data: uPlot.AlignedData = [p.times, ...p.series.map((s) => s.values)];
  useEffect(() => {
    if (box.current === null) return;
    const made = new uPlot(options(p, Math.max(100, box.current.clientWidth)), data, box.current);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      const width = box.current?.clientWidth ?? 0;
      if (width > 0 && width !== made.width) made.setSize({ width, height });
    });
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [look]);
  useEffect(() => plot.current?.setData(data), [p.times, look]);
  const last = (values: (number | null)[]): string => {
    const value = values[values.length - 1];
    return value === null || value === undefined ? "none" : p.text(value);
  };
  return (
    <figure class="chart">
      <figcaption>{p.title}{p.note && <small>{p.note}</small>}</figcaption>
      <div class="plot" ref={box} aria-hidden="true" />
      <ul class="legend" aria-label={`${p.title}: latest values`}>
        {p.series.map((s) => (
          <li key={s.pid} data-pid={s.pid}><label>
            <input type="checkbox" checked={!p.hidden.has(s.pid)} style={{ accentColor: tenantColour(indexOf(s.pid)) }} title={`Draw ${s.label}`} onChange={() => p.toggle(s.pid)} />{s.label} <b>{last(s.values)}</b>
          </label></li>
        ))}
      </ul>
    </figure>
  );
}
