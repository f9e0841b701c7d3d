// SPDX-License-Identifier: Apache-2.0

// The timeline of one GPU: who held it, and who waited, in red.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Device } from "./api_gen";
import { columnsOf, lanesOf, type DeviceSpans, type Lane } from "./history";
import { duration, percent } from "./format";
import { colour, indexOf, tenantColour } from "./theme";

const laneHeight = 22;
const headHeight = 30;
const axisHeight = 18;
const mostLanes = 12;

interface Props {
  device: Device;
  spans: DeviceSpans;
  seconds: number;
  selected: number;
  names: (pid: number) => string;
}

// past is a time before now, as the axis shows it.
const past = (seconds: number): string => (seconds > 60 ? `${seconds / 60} min` : `${seconds} s`);

// draw paints the lanes. Each pixel's column is as high as the part of its time.
function draw(canvas: HTMLCanvasElement, lanes: Lane[], names: (pid: number) => string, fromNS: number, toNS: number): void {
  const width = Math.max(1, Math.floor(canvas.clientWidth));
  const height = headHeight + lanes.length * laneHeight + axisHeight;
  const scale = Math.min(2, window.devicePixelRatio || 1);
  if (canvas.width !== width * scale || canvas.height !== height * scale) {
    canvas.width = width * scale;
    canvas.height = height * scale;
  }
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const red = colour("--waiting");
  const rule = colour("--rule");
  const ink = colour("--ink");
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";

  const held = new Float32Array(width); // what the head lane has so far
  lanes.forEach((lane, i) => {
    const { run, wait } = columnsOf(lane.spans, fromNS, toNS, width);
    const top = headHeight + i * laneHeight;
    const full = laneHeight - 5;
    const bar = (part: Float32Array, fromTop: boolean, style: string): void => {
      pen.fillStyle = style;
      pen.beginPath();
      for (let x = 0; x < width; x++) {
        const part0 = part[x] as number;
        if (part0 <= 0) continue;
        let end = x + 1; // equal neighbours become one rectangle
        while (end < width && part[end] === part0) end++;
        const high = Math.max(1, part0 * full);
        pen.rect(x, fromTop ? top : top + full - high, end - x, high);
        x = end - 1;
      }
      pen.fill();
    };
    const own = tenantColour(indexOf(lane.pid));
    bar(run, false, own);
    bar(wait, true, red);
    pen.beginPath();
    for (let x = 0; x < width; x++) {
      const more = Math.min(run[x] as number, 1 - (held[x] as number));
      if (more <= 0) continue;
      const high = more * (headHeight - 8);
      pen.rect(x, headHeight - 6 - (held[x] as number) * (headHeight - 8) - high, 1, high);
      held[x] = (held[x] as number) + more;
    }
    pen.fillStyle = own;
    pen.fill();
    pen.strokeStyle = rule;
    pen.beginPath();
    pen.moveTo(0, top + laneHeight - 2.5);
    pen.lineTo(width, top + laneHeight - 2.5);
    pen.stroke();
  });

  const axis = headHeight + lanes.length * laneHeight;
  pen.fillStyle = ink;
  const seconds = (toNS - fromNS) / 1e9;
  for (let i = 0; i <= 4; i++) {
    const x = (width * i) / 4;
    pen.textAlign = i === 0 ? "left" : i === 4 ? "right" : "center";
    pen.fillText(i === 4 ? "now" : `−${past((seconds * (4 - i)) / 4)}`, x, axis + axisHeight / 2);
  }
  // Names are written over the lanes, with a border in the colour of the page.
  pen.textAlign = "left";
  pen.lineJoin = "round";
  pen.lineWidth = 3;
  pen.strokeStyle = colour("--paper");
  lanes.forEach((lane, i) => {
    const y = headHeight + i * laneHeight + (laneHeight - 5) / 2;
    pen.strokeText(names(lane.pid), 4, y);
    pen.fillText(names(lane.pid), 4, y);
  });
  pen.strokeText("who held the GPU", 4, 12);
  pen.fillText("who held the GPU", 4, 12);
}

export function Timeline({ device, spans, seconds, selected, names }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const toNS = spans.toNS;
  const fromNS = toNS - seconds * 1e9;
  const { lanes, more } = lanesOf(spans.spans, fromNS, toNS, mostLanes, selected);
  useLayoutEffect(() => {
    if (canvas.current === null) return;
    const observer = new ResizeObserver(() => setWidth(canvas.current?.clientWidth ?? 0));
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, []);
  const drawn = document.documentElement.dataset["theme"];
  useLayoutEffect(() => {
    if (canvas.current !== null) draw(canvas.current, lanes, names, fromNS, toNS);
  }, [spans, seconds, selected, width, drawn, names]);
  const height = headHeight + lanes.length * laneHeight + axisHeight;
  const label = `Timeline of GPU ${device.id}, last ${past(seconds)}: ` +
    (lanes.length === 0 ? "no work" : lanes.map((l) => `${names(l.pid)} ran ${percent(l.ranNS / (toNS - fromNS))}, waited ${percent(l.waitedNS / (toNS - fromNS))}`).join("; "));
  return (
    <figure class="timeline">
      <canvas ref={canvas} role="img" aria-label={label} style={{ height: `${height}px` }} data-device={device.id} />
      <details>
        <summary>As a table{more > 0 ? ` (${more} less busy programs are not drawn)` : ""}</summary>
        <table class="plain">
          <thead><tr><th scope="col">Program</th><th scope="col">PID</th><th scope="col">Ran</th><th scope="col">Waited</th></tr></thead>
          <tbody>
            {lanes.map((l) => (
              <tr key={l.pid}>
                <th scope="row">{names(l.pid)}</th><td>{l.pid}</td>
                <td>{duration(l.ranNS / 1e3)}</td><td>{duration(l.waitedNS / 1e3)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}
