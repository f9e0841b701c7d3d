# SPDX-License-Identifier: Apache-2.0
"""Latencies as SVG."""
import html
import math

import stats

COLOURS = {"alone": "#2b8a3e", "native": "#c92a2a", "live": "#1864ab", "timeslice": "#0b7285", "suspend": "#5f3dc4",
           "level1": "#e67700", "level2": "#a61e4d", "level3": "#862e9c", "mps": "#868e96", "mps-priority": "#495057"}
MORE = ["#1864ab", "#c92a2a", "#2b8a3e", "#e67700", "#5f3dc4", "#0b7285"]


def ticks(low, high):
    """1, 2, 5 times powers of ten, inside the range."""
    out = []
    for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        out += [k * 10.0 ** e for k in (1, 2, 5) if low <= k * 10.0 ** e <= high]
    return out


def cdf(title, curves, width=720, height=360):
    """Latency on a logarithmic axis against the part of the requests that needed more, also
    logarithmic: what matters is the tail."""
    left, right, top, bottom = 60, 190, 34, 44
    values = [v for c in curves.values() for v in c if v > 0]
    if not values:
        return ""
    low, high = min(values) * 0.9, max(values) * 1.1
    least = 1 / max(len(c) for c in curves.values()) / 1.5

    def x(v):
        return left + (math.log(v) - math.log(low)) / (math.log(high) - math.log(low)) * (width - left - right)

    def y(part):
        return top + (math.log(max(part, least)) / math.log(least)) * (height - top - bottom)
    esc = html.escape
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="12">'
           % (width, height, width, height), '<rect width="100%" height="100%" fill="white"/>',
           '<text x="%d" y="20" font-size="14">%s: latency of the high</text>' % (left, esc(title))]
    for t in ticks(low, high):
        out.append('<path d="M%.1f %d V%d" stroke="#e9ecef"/><text x="%.1f" y="%d" text-anchor="middle" fill="#495057">%g</text>'
                   % (x(t), top, height - bottom, x(t), height - bottom + 16, t))
    for part, label in ((1, "all"), (0.5, "P50"), (0.1, "P90"), (0.05, "P95"), (0.01, "P99"), (0.001, "P99.9")):
        if part >= least:
            out.append('<path d="M%d %.1f H%d" stroke="#e9ecef"/><text x="%d" y="%.1f" text-anchor="end" fill="#495057">%s</text>'
                       % (left, y(part), width - right, left - 6, y(part) + 4, label))
    out.append('<text x="%d" y="%d" text-anchor="middle" fill="#495057">ms, logarithmic; lower left is better</text>'
               % ((left + width - right) // 2, height - 8))
    for i, (name, c) in enumerate(curves.items()):
        s = sorted(v for v in c if v > 0)
        colour = COLOURS.get(name, MORE[i % len(MORE)])
        points = " ".join("%.1f,%.1f" % (x(v), y(1 - k / len(s))) for k, v in enumerate(s))
        out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="1.8"/>' % (points, colour))
        p99 = stats.percentile(s, 0.99)
        out.append('<path d="M%d %d h16" stroke="%s" stroke-width="3"/><text x="%d" y="%d">%s: %.2f ms</text>'
                   % (width - right + 10, top + 14 + 18 * i, colour, width - right + 32, top + 18 + 18 * i, esc(name[:20]), p99))
    out.append('<text x="%d" y="%d" fill="#495057">mode: P99</text></svg>' % (width - right + 10, top - 2))
    return "\n".join(out)
