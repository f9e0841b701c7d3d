// SPDX-License-Identifier: Apache-2.0

import type { Histogram } from "./api_gen";
import { count, duration, round } from "./format";
import { bucketsOf } from "./history";

const mostLabels = 8; // next to each other

// Bars draws a histogram.
export function Bars({ title, histogram, empty, waiting }: { title: string; histogram: Histogram | undefined; empty: string; waiting?: boolean }) {
  const buckets = bucketsOf(histogram);
  if (histogram === undefined || buckets.length === 0) {
    return <figure class="bars"><figcaption>{title}</figcaption><p class="empty">{empty}</p></figure>;
  }
  const most = Math.max(...buckets.map((b) => b.count));
  const bound = (us: number): string => (us === Infinity ? "more" : round(us));
  const every = Math.ceil(buckets.length / mostLabels);
  const summary = `${count(histogram.count)} in all, P50 ${duration(histogram.p50_us)}, P99 ${duration(histogram.p99_us)}, longest ${duration(histogram.max_us)}`;
  return (
    <figure class="bars">
      <figcaption>{title}<small>{summary}</small></figcaption>
      <ol class={waiting ? "waiting" : ""} aria-label={`${title}: ${summary}`}>
        {buckets.map((b, i) => (
          <li key={b.toUS} title={`up to ${bound(b.toUS)}: ${count(b.count)}`}>
            <span class="stick" style={{ height: `${(b.count === 0 ? 0 : Math.max(2, (100 * b.count) / most)).toFixed(1)}%` }} />
            <span class="hidden">up to {bound(b.toUS)}: {count(b.count)}</span>
            {i % every === 0 && <span class="bound" aria-hidden="true">{bound(b.toUS)}</span>}
          </li>
        ))}
      </ol>
    </figure>
  );
}
