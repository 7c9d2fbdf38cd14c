# SPDX-License-Identifier: Apache-2.0
"""
Where the time of an inference goes, by Triton's own trace: one at a time, and 32 in flight.

A trace costs some microseconds itself, so the sum is more than what an inference takes without.
Read it for the proportions; and of many in flight, the queue is the time behind the others.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING

import tritonffi
from benchmarks._common import workplace
from benchmarks._drive import make_inputs
from benchmarks._load import Load
from benchmarks._measure import Outcome, Plot, entries, interleave

if TYPE_CHECKING:
    from benchmarks._common import Options
    from benchmarks._measure import Round, Run

OURS = "tritonffi"
STEPS = {
    "call": "the call in Python and C, up to Triton",
    "accept": "Triton's checks, into its queue",
    "queue": "in the queue: the wake-up of the instance's thread, and others before it",
    "model": "the model",
    "answer": "the response through the callbacks",
    "result": "the wake-up of Python, and the arrays",
}
IN_FLIGHT = [1, 32]


def main(options: Options) -> Outcome:
    """Measures the steps."""
    with (
        workplace() as place,
        tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server,
    ):
        contenders: dict[str, Run] = {OURS: partial(_run, server)}
        everything = []
        for in_flight in IN_FLIGHT:
            load = Load(in_flight=in_flight)
            everything += entries(contenders, load, "bytes", "in_flight")
        series = interleave(everything, options.rounds, options.seconds)
    outcome = Outcome("Where the time of an inference goes, in microseconds", "", series)
    title = "Where the time of one inference goes"
    outcome.plots.append(Plot("where", title, "in_flight", "us", {"in_flight": 1}, steps=STEPS))
    return outcome


def _run(server: tritonffi.Server, load: Load) -> Round:
    requests = make_inputs(load)
    model = server.model(load.model)
    model.infer(next(make_inputs(load)))
    pending: deque[tuple[int, tritonffi.Trace, tritonffi.Inference]] = deque()
    marks: list[tuple[int, tritonffi.Trace, int]] = []

    def finish() -> None:
        start, trace, inference = pending.popleft()
        inference.result()
        marks.append((start, trace, monotonic_ns()))

    begin = monotonic_ns()
    for inputs in requests:
        if len(pending) == load.in_flight:
            finish()
        trace = tritonffi.Trace(max_activities=16)
        start = monotonic_ns()
        pending.append((start, trace, model.submit(inputs, trace=trace)))
    while pending:
        finish()
    us = (monotonic_ns() - begin) / 1e3 / load.count
    steps = [_steps(start, trace.timestamps, end) for start, trace, end in marks]
    return {"us": us, **{name: median(one[name] for one in steps) for name in STEPS}}


def _steps(start: int, seen: dict[str, int], end: int) -> Round:
    at = [
        start,
        seen["REQUEST_START"],
        seen["QUEUE_START"],
        seen["COMPUTE_START"],
        seen["COMPUTE_END"],
        seen["REQUEST_END"],
        end,
    ]
    return {
        name: (after - before) / 1e3
        for name, before, after in zip(STEPS, at[:-1], at[1:], strict=True)
    }
