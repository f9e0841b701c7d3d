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

interface Props {
  title: string;
  times: number[];
  series: Series[];
  text: (value: number) => string;
  max?: number;
}

const height = 180;

function options(p: Props, width: number): uPlot.Options {
  const axis = { stroke: colour("--ink"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule"), width: 1 } };
  return {
    width, height, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: true }, y: { range: (_, __, top) => [0, p.max ?? (top > 0 ? top * 1.1 : 1)] } },
    padding: [8, 36, 0, 0],
    axes: [
      { ...axis, space: 90, values: (_, times) => times.map((t) => clock(t * 1e9)) },
      { ...axis, size: 72, values: (_, values) => values.map((v) => (v === 0 ? "0" : p.text(v))) },
    ],
    series: [{}, ...p.series.map((s) => ({ label: s.label, stroke: tenantColour(indexOf(s.pid)), width: 1.5, spanGaps: false, points: { show: false } }))],
  };
}

// Chart draws lines over time. The list below the drawing has the latest values as text.
export function Chart(p: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const look = `${document.documentElement.dataset["theme"]} ${p.max} ${p.series.map((s) => `${s.pid} ${s.label}`).join("\n")}`;
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
      <figcaption>{p.title}</figcaption>
      <div class="plot" ref={box} aria-hidden="true" />
      <ul class="legend" aria-label={`${p.title}: latest values`}>
        {p.series.map((s) => <li key={s.pid}><span class="swatch" style={{ background: tenantColour(indexOf(s.pid)) }} aria-hidden="true" />{s.label} <b>{last(s.values)}</b></li>)}
      </ul>
    </figure>
  );
}
