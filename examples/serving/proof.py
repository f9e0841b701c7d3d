# SPDX-License-Identifier: Apache-2.0
"""Decides whether a comparison is proven: launches intercepted, the job preempted, results equal."""

from __future__ import annotations

from typing import NamedTuple


class Missing(Exception):
    """There is no proof, so there is no comparison."""


class Ending(NamedTuple):
    launches: dict[str, tuple]  # program -> by itself, by the shim, by the device
    steps: int
    wrong_steps: int
    server_code: int
    job_code: int
    server: dict[str, int]  # its counters at the end
    checked: int  # answers compared with the right one


def collect(blocks: list, end: Ending, virtual: bool) -> list[str]:
    """Returns the evidence as sentences, or raises Missing with everything that is not proven."""
    parts = [intercepted(end, virtual), untouched(blocks), preempted(blocks, virtual), equal(blocks, end)]
    bad = [problem for problems, _ in parts for problem in problems]
    if bad:
        raise Missing("; ".join(bad))
    return [text for _, text in parts]


def intercepted(end: Ending, virtual: bool) -> tuple[list[str], str]:
    bad = []
    for name, (own, shim, device) in end.launches.items():
        if not shim:
            bad.append(f"the shim saw no launch of the {name}")
        elif virtual and not own == shim == device:
            bad.append(f"launches of the {name}: {own} by its own count, {shim} by the shim, {device} by the device")
    by = "shim = program = device" if virtual else "by the shim"
    return bad, f"launches intercepted ({by}): " + ", ".join(f"{name} {shim}" for name, (_, shim, _) in end.launches.items())


def untouched(blocks: list) -> tuple[list[str], str]:
    """Without XSched, nothing of it may be in force."""
    bad = []
    for b in blocks:
        if b.mode == "xsched":
            continue
        if b.counted["suspends"] or b.counted["gate_holds"]:
            bad.append(f"{b.counted['suspends']} suspensions and {b.counted['gate_holds']} gate holds in a block of mode {b.mode}")
        if any(us for found in b.slices for us in found.values()):
            bad.append(f"timeslices of XSched in a block of mode {b.mode}: {b.slices}")
        if any(found["server"] != found["job"] for found in b.device):
            bad.append(f"the device has different timeslices in a block of mode {b.mode}: {b.device}")
    return bad, "nothing suspended and no timeslice set in the blocks without XSched"


def preempted(blocks: list, virtual: bool) -> tuple[list[str], str]:
    ours, bad = [b for b in blocks if b.mode == "xsched"], []
    for b in blocks:
        if b.counted["device_errors"]:
            bad.append(f"{b.counted['device_errors']} device errors in mode {b.mode}")
    for b in ours:
        ranked = any(found["server"] > found["job"] > 0 for found in b.device or b.slices)
        if not b.counted["suspends"] and not b.counted["gate_holds"] and not ranked:
            bad.append(f"a block of XSched neither stopped the job nor ranked its timeslice: {b.device or b.slices}")
        if virtual and not b.preempted:
            bad.append("the device preempted no kernel of the job in a block of XSched")
    suspends, holds, kernels = sum(b.counted["suspends"] for b in ours), sum(b.counted["gate_holds"] for b in ours), sum(b.preempted or 0 for b in ours)
    slices = (ours[-1].device or ours[-1].slices)[-1] if ours else {"server": 0, "job": 0}
    text = f"job preempted under XSched: {suspends} suspensions, {holds} gate holds, timeslices of {slices['server']} us (server) and {slices['job']} us (job)"
    return bad + ([] if ours else ["no block of XSched"]), text + (f", {kernels} kernels stopped midway by the device's record" if virtual else "")


def equal(blocks: list, end: Ending) -> tuple[list[str], str]:
    samples = [s for b in blocks for s in b.samples]
    wrong = [s.wrong for s in samples if s.wrong]
    failed = [s.status for s in samples if s.status not in (200, 503)]
    answered = sum(s.status == 200 for s in samples)
    bad = [f"{len(wrong)} wrong answers, such as {wrong[0]}"] if wrong else []
    bad += [f"{len(failed)} requests failed, such as with status {failed[0]}"] if failed else []
    if not answered or end.checked != answered:
        bad.append(f"{end.checked} of {answered} answers compared")
    if any(b.mode != "job alone" and not any(s.status == 200 for s in b.samples) for b in blocks):
        bad.append("a block without an answer")
    if end.wrong_steps or not end.steps:
        bad.append(f"{end.wrong_steps} of {end.steps} steps of the job are wrong")
    if end.server_code or end.job_code:
        bad.append(f"exit codes: server {end.server_code}, job {end.job_code}")
    elif end.server.get("answered", 0) < answered:
        bad.append(f"the server counts {end.server.get('answered')} answers, its clients {answered}")
    return bad, f"results equal: {answered} answers, {end.steps} steps of the job"
