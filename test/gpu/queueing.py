# SPDX-License-Identifier: Apache-2.0
"""Calculates the time to the first token of a server from measured prompts.

The P99 contains a queue, which multiplies every change of the CPU's speed. So this module puts the same arrivals before the prompts of
each mode, as the suite submission measured them.
"""
import functools
import itertools
import random
from collections import namedtuple

import stats
import worker
from inference import HIGHS
from scene import HEAD_S

BLOCK_S = HIGHS["serve"].block_s  # as in first-token; requests of the head do not count
BLOCKS, DRAWN_BLOCKS = 900, 200
CHUNK, DRAWS = 5, 200  # rounds in a row, which keep the speed of the CPU; resamples
QUANTILES = 0.5, 0.99

Prompt = namedtuple("Prompt", "submission wait")  # ms


@functools.lru_cache(maxsize=4)
def requests(arrivals, blocks):
    """[[(due in ms, tokens after the first, counts)]], one list per block."""
    out = []
    for turn in range(blocks):
        words = arrivals.replace("SEED", "queue-%d" % turn).split()
        dues = itertools.takewhile(lambda s: s < HEAD_S + BLOCK_S, worker.arrivals(words))
        out.append([(due * 1000, tokens - 1, due >= HEAD_S) for due, tokens in zip(dues, worker.token_counts(words))])
    return out


def first_tokens(prompts, token_ms, arrivals, blocks=BLOCKS):
    """Returns the times to the first token. The server runs one request at a time: the prompt, then its tokens. The prompts, in ms,
    repeat."""
    out, following = [], itertools.cycle(prompts)
    for block in requests(arrivals, blocks):
        free = 0.0
        for due, tokens, counts in block:
            first = (due if due > free else free) + next(following)
            if counts:
                out.append(first - due)
            free = first + tokens * token_ms
    return out


def measured(alone, ours):
    """[[(prompt of alone, prompt of the mode)]] by round, in ms. A request that only one of them has does not count."""
    return [[(a.submission + a.wait, b.submission + b.wait) for a, b in zip(*pair)] for pair in zip(alone, ours)]


def with_equal_submission(alone, ours):
    """The same, but the prompts of the mode have the submission times of alone. A wait depends on the submission before it, so the k-th
    fastest prompt of alone gets the wait of the k-th fastest prompt of the mode."""
    ranked = sorted(p for b in ours for p in b)
    places = sorted((p, r, i) for r, b in enumerate(alone) for i, p in enumerate(b))
    out = [[None] * len(b) for b in alone]
    for k, (p, r, i) in enumerate(places):
        out[r][i] = (p.submission + p.wait, p.submission + ranked[k * len(ranked) // len(places)].wait)
    return out


def fastest(blocks, share):
    """The prompts with the shortest submission: a share of all, and blocks without one are left out."""
    limit = stats.percentile([p.submission for b in blocks for p in b], share)
    return [b for b in ([p for p in b if p.submission <= limit] for b in blocks) if b]


def ratios(rounds, alone_token_ms, token_ms, arrivals):
    """The percentiles of a mode over those of alone, as [(ratio, 95 % interval)]."""
    def at(drawn, blocks):
        pairs = [pair for r in drawn for pair in r]
        base, mine = ([pair[side] for pair in pairs] for side in (0, 1))
        times = first_tokens(mine, token_ms, arrivals, blocks), first_tokens(base, alone_token_ms, arrivals, blocks)
        return [stats.percentile(times[0], q) / stats.percentile(times[1], q) for q in QUANTILES]
    rng, many = random.Random(1), []
    for _ in range(DRAWS):
        starts = [rng.randrange(len(rounds)) for _ in range(-(-len(rounds) // CHUNK))]
        many.append(at([rounds[(s + i) % len(rounds)] for s in starts for i in range(CHUNK)], DRAWN_BLOCKS))
    return [(value, stats.middle([m[i] for m in many], 4)) for i, value in enumerate(at(rounds, BLOCKS))]
