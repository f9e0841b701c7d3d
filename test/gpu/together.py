# SPDX-License-Identifier: Apache-2.0
"""The last runs of a scenario together. In a single run, the noise of the host's CPU decides the figures of a launch-bound request."""
import math
import random

from shown import compared
from stats import MIN_BLOCKS, middle, over_blocks, redrawn
from tables import blocks, interval_text, paragraph, table, times

LAST, MIN_RUNS = 4, 3  # runs
ROUNDS = 300


def together(merged):
    """The section of the page, or [] if no scenario has enough runs."""
    rows = []
    for name in [sc["name"] for sc in compared(merged)]:
        runs = [sc for sc in merged["history"][name] if usable(sc, "live")][-LAST:]
        if len(runs) >= MIN_RUNS:
            rows.append([name, ", ".join(str(sc["run"]) for sc in runs)] + [ratio_text(runs, mode, q) for q in (0.5, 0.99) for mode in ("native", "live")])
    return rows and [paragraph("The geometric mean over the last %d runs of a scenario, whatever they found, and an interval that resamples the runs and the blocks within each. It covers the "
                               "difference between these runs and their builds. %d runs are few, so the interval is rather too narrow. Runs with fewer than %d blocks of a mode do not count."
                               % (LAST, LAST, MIN_BLOCKS)),
                     table(["scenario", "runs", "P50 / alone: native", "XSched", "P99 / alone: native", "XSched"], rows)]


def usable(sc, mode):
    return all(len(found) >= MIN_BLOCKS and all(found) for found in (blocks(sc, "alone"), blocks(sc, mode)))


def ratio_text(runs, mode, q):
    found = [(blocks(sc, "alone"), blocks(sc, mode)) for sc in runs if usable(sc, mode)]
    if len(found) < MIN_RUNS:
        return "-"
    mean, interval = mean_ratio(found, q)
    return times(mean) + interval_text(interval)


def mean_ratio(runs, q, seed=1):
    """Returns the geometric mean of percentile q over that alone, and its 95 % interval; runs is [(alone blocks, other blocks)]."""
    rng = random.Random(seed)

    def mean(drawn):
        return math.exp(sum(math.log(over_blocks(ours, q) / over_blocks(alone, q)) for alone, ours in drawn) / len(drawn))
    return mean(runs), middle([mean([redrawn(rng, *run) for run in rng.choices(runs, k=len(runs))]) for _ in range(ROUNDS)], 4)
