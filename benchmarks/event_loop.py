# SPDX-License-Identifier: Apache-2.0
"""Tasks that each await one inference after the other, 4 KB, in asyncio's loop and in uvloop's."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import tritonffi
from benchmarks import _drive
from benchmarks._common import c_loop, workplace
from benchmarks._load import Load
from benchmarks._measure import Goal, Outcome, Plot, entries, if_measured, interleave, ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._common import Options
    from benchmarks._measure import Run

TASKS = [1, 8, 32, 128, 1024]
QUICK_TASKS = [1, 32]
USUAL = 32
BASE, PLAIN, UVLOOP = "C loop", "asyncio", "uvloop"


def main(options: Options) -> Outcome:
    """Measures both loops, or the one that is there."""
    skipped: dict[str, str] = {}
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {PLAIN: asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError as error:
        skipped[UVLOOP] = str(error)
    else:
        loops[UVLOOP] = uvloop.new_event_loop
    with (
        workplace() as place,
        c_loop(place) as loop,
        tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server,
    ):
        contenders: dict[str, Run] = {BASE: loop.run}
        for name, new_loop in loops.items():
            contenders[name] = partial(_drive.tasks(new_loop), server)
        everything = []
        for count in QUICK_TASKS if options.quick else TASKS:
            everything += entries(contenders, Load(in_flight=count), "in_flight")
        series = interleave(everything, options.rounds, options.seconds, skipped)
    title = "Tasks that each await one inference after the other, 4 KB"
    outcome = Outcome(title, BASE, series)
    outcome.skipped = skipped
    outcome.goals += [
        Goal(
            f"32 tasks, {name}, times the C loop",
            if_measured(partial(_times_c, outcome, name)),
            2.5,
        )
        for name in (PLAIN, UVLOOP)
    ]
    outcome.plots.append(Plot("event_loop", title, "in_flight", "us", per_second=True))
    return outcome


def _times_c(outcome: Outcome, name: str) -> float:
    return ratio(outcome.find(name, in_flight=USUAL), outcome.find(BASE, in_flight=USUAL))
