# SPDX-License-Identifier: Apache-2.0
"""Calculates the time to the first token of a server from measured prompts.

The P99 contains a queue, which multiplies every change of the CPU's speed. So the suite submission measures prompts in blocks that are
shorter than such a change, and this module puts the same arrivals before the prompts of each mode.
"""
import itertools
import random

import stats
import worker

BLOCK_S, BLOCKS = 2.85, 120  # simulated, with their own arrivals
CHUNK, DRAWS = 5, 60         # rounds in a row, which keep the speed of the CPU; resamples


def first_tokens(prompts, token_ms, arrivals, blocks=BLOCKS, seed=1):
    """Returns the times to the first token. The server runs one request at a time: the prompt, then a number of tokens."""
    out, at = [], 0
    for turn in range(blocks):
        words = arrivals.replace("SEED", "%d-%d" % (seed, turn)).split()
        free, counts = 0.0, worker.token_counts(words)
        for due in itertools.takewhile(lambda s: s < BLOCK_S, worker.arrivals(words)):
            begun = max(due * 1000, free)
            first = begun + prompts[at % len(prompts)]
            out.append(first - due * 1000)
            free, at = first + (next(counts) - 1) * token_ms, at + 1
    return out


def added(blocks, more):
    """Adds the n-th times of the n-th blocks."""
    return [[x + y for x, y in zip(*pair)] for pair in zip(blocks, more)]


def rounds(alone, ours):
    """Pairs the n-th requests of the n-th blocks: [[(alone, ours)]]."""
    return [list(zip(a, b)) for a, b in zip(alone, ours)]


def ratios(alone, ours, alone_token_ms, token_ms, arrivals, quantiles=(0.5, 0.99)):
    """The percentiles of a mode over those of alone, as [(ratio, 95 % interval)]. alone and ours are blocks of prompts in ms."""
    paired = rounds(alone, ours)

    def at(drawn):
        requests = [pair for r in drawn for pair in r]
        base = first_tokens([a for a, _ in requests], alone_token_ms, arrivals)
        mine = first_tokens([b for _, b in requests], token_ms, arrivals)
        return [stats.percentile(mine, q) / stats.percentile(base, q) for q in quantiles]
    rng, many = random.Random(1), []
    for _ in range(DRAWS):
        starts = [rng.randrange(len(paired)) for _ in range(-(-len(paired) // CHUNK))]
        many.append(at([paired[(s + i) % len(paired)] for s in starts for i in range(CHUNK)]))
    return [(value, stats.middle([m[i] for m in many], 4)) for i, value in enumerate(at(paired))]
