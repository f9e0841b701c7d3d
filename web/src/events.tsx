// SPDX-License-Identifier: Apache-2.0

import { useMemo, useState } from "preact/hooks";
import type { JournalEntry } from "./api_gen";
import { clock, plain } from "./format";

const mostShown = 100;

// Events lists the newest entries of the journal first.
export function Events({ journal }: { journal: JournalEntry[] }) {
  const [kind, setKind] = useState("");
  const kinds = useMemo(() => [...new Set(journal.map((e) => e.kind))].sort(), [journal]);
  const shown = useMemo(() => journal.filter((e) => kind === "" || e.kind === kind).slice(-mostShown).reverse(), [journal, kind]);
  return (
    <section aria-labelledby="events">
      <header class="bar">
        <h2 id="events">Events</h2>
        <label>Show{" "}
          <select name="kind" value={kind} onChange={(e) => setKind(e.currentTarget.value)}>
            <option value="">all</option>
            {kinds.map((k) => <option key={k} value={k}>{k}</option>)}
          </select>
        </label>
      </header>
      {shown.length === 0 ? <p class="empty">No events yet.</p> : (
        <ol class="events" tabIndex={0} aria-label="Events, newest first">
          {shown.map((e) => (
            <li key={e.seq} data-seq={e.seq} class={e.kind}>
              <time dateTime={new Date(e.time_ns / 1e6).toISOString()}>{clock(e.time_ns)}</time> <span class="kind">{e.kind}</span> {plain(e.text)}
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}
