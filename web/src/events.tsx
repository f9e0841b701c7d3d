// SPDX-License-Identifier: Apache-2.0

import { useMemo, useState } from "preact/hooks";
import type { JournalEntry } from "./api_gen";
import { Choice } from "./choice";
import { clock, count, plain } from "./format";
import { linesOfEvents } from "./history";

const mostShown = 200;

// Events lists the newest entries of the journal first.
export function Events({ journal }: { journal: JournalEntry[] }) {
  const [kind, setKind] = useState("");
  const options = useMemo((): [string, string][] => {
    const counts = new Map<string, number>();
    for (const e of journal) counts.set(e.kind, (counts.get(e.kind) ?? 0) + 1);
    return [["", "all"], ...[...counts].sort().map(([name, n]): [string, string] => [name, `${name} (${count(n)})`])];
  }, [journal]);
  const shown = useMemo(() => linesOfEvents(journal, kind).slice(0, mostShown), [journal, kind]);
  return (
    <section aria-labelledby="events">
      <header class="bar">
        <h2 id="events">Events</h2>
        <Choice legend="Show" options={options} value={kind} set={setKind} />
      </header>
      {shown.length === 0 ? <p class="empty">No events yet.</p> : (
        <ol class="events" tabIndex={0} aria-label="Events, newest first">
          {shown.map((e) => (
            <li key={e.seq} data-seq={e.seq} class={e.kind}>
              <time dateTime={new Date(e.time_ns / 1e6).toISOString()}>{clock(e.time_ns)}</time> <span class="kind">{e.kind}</span> {plain(e.text)}
              {e.more > 0 && <small>, and {count(e.more)} more since {clock(e.sinceNS)}</small>}
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}
