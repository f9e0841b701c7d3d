// SPDX-License-Identifier: Apache-2.0

import { useState } from "preact/hooks";
import { count } from "./format";
import { missed, serviceFacts, servicesOf, verdict, type Row } from "./rows";

const mostTiles = 6;

// Services has a tile for each service: whether it is protected, and what that gains and costs.
export function Services({ rows, select }: { rows: Row[]; select: (pid: number) => void }) {
  const [all, showAll] = useState(false);
  const services = servicesOf(rows);
  const rest = services.length - mostTiles;
  return (
    <section aria-labelledby="services">
      <h2 id="services">Services</h2>
      {services.length === 0 && <p class="empty">No program has a latency target or runs before others. Set one with <code>xsched hint PID --slo 20ms</code> or <code>--priority 10</code>.</p>}
      <ul class="tiles">
        {services.slice(0, all ? services.length : mostTiles).map((row) => (
          <li key={row.key} class="tile" data-pid={row.pid}>
            <h3><button type="button" class="name" title={row.command} onClick={() => select(row.pid)}>{row.name}</button> <span class={`badge ${missed(row) ? "missed" : verdict(row)}`} data-fact="verdict">{verdict(row)}</span></h3>
            <dl>{serviceFacts(row).map(([name, value]) => <div key={name}><dt>{name}</dt><dd data-fact={name}>{value}</dd></div>)}</dl>
          </li>
        ))}
      </ul>
      {rest > 0 && !all && <button type="button" onClick={() => showAll(true)}>Show {count(rest)} more services</button>}
    </section>
  );
}
