# SPDX-License-Identifier: Apache-2.0
"""Threads that each do one inference after the other, 4 KB: what the GIL leaves of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import tritonffi
from benchmarks import _drive
from benchmarks._common import c_loop, workplace
from benchmarks._load import Load
from benchmarks._measure import Goal, Outcome, Plot, entries, interleave, ratio

if TYPE_CHECKING:
    from benchmarks._common import Options
    from benchmarks._measure import Run

THREADS = [1, 2, 4, 8, 16, 32]
QUICK_THREADS = [1, 8, 16]
BASE, OURS, ONE_THREAD = "C loop", "tritonffi infer", "tritonffi submit"
SEVERAL, MANY, IN_FLIGHT = 8, 16, 32


def main(options: Options) -> Outcome:
    """Measures threads in C, in Python, and one Python thread with 32 in flight beside them."""
    with (
        workplace() as place,
        c_loop(place) as loop,
        tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server,
    ):
        contenders: dict[str, Run] = {
            BASE: loop.run,
            OURS: partial(_drive.threads, server),
        }
        everything = []
        for count in QUICK_THREADS if options.quick else THREADS:
            load = Load(threads=count, in_flight=count)
            everything += entries(contenders, load, "threads", "in_flight")
        alone: dict[str, Run] = {ONE_THREAD: partial(_drive.submit, server)}
        everything += entries(alone, Load(in_flight=IN_FLIGHT), "threads", "in_flight")
        series = interleave(everything, options.rounds, options.seconds)
    title = "Threads that each do one inference after the other, 4 KB"
    outcome = Outcome(title, BASE, series)
    outcome.goals = _goals(outcome)
    outcome.plots.append(Plot("threads", title, "threads", "us", per_second=True))
    return outcome


def _goals(outcome: Outcome) -> list[Goal]:
    best = min(
        (one for one in outcome.series if one.contender == OURS), key=lambda one: one.median("us")
    )
    several, many = (outcome.find(OURS, threads=count) for count in (SEVERAL, MANY))
    # Throughputs: the times of an inference the other way round.
    return [
        Goal(
            "throughput of 8 threads, times one thread with 32 in flight",
            ratio(outcome.find(ONE_THREAD), several),
            0.25,
            is_floor=True,
        ),
        Goal("throughput of 16 threads, times the best", ratio(best, many), 0.6, is_floor=True),
    ]
