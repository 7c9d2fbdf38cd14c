# SPDX-License-Identifier: Apache-2.0
"""One inference at a time, over the size of its tensor: 4 bytes to 16 MB."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import tritonffi
from benchmarks import _drive
from benchmarks._common import c_loop, workplace
from benchmarks._load import Load
from benchmarks._measure import Goal, Outcome, Plot, difference, entries, interleave, ratio
from benchmarks._peers import peers, versions

if TYPE_CHECKING:
    from benchmarks._common import Options
    from benchmarks._measure import Run, Series

KB, MB = 1 << 10, 1 << 20
SIZES = [4, 256, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB]
QUICK_SIZES = [4, 4 * KB, 256 * KB, 4 * MB]
LARGE = 256 * KB
BASE, OURS, PREPARED = "C loop", "tritonffi infer", "tritonffi prepared infer"


def main(options: Options) -> Outcome:
    """Measures everybody who is there."""
    series: list[Series] = []
    skipped: dict[str, str] = {}
    with (
        workplace() as place,
        c_loop(place) as loop,
        tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server,
        peers(place, options, skipped) as others,
    ):
        contenders: dict[str, Run] = {
            BASE: loop.run,
            OURS: partial(_drive.infer, server),
            PREPARED: partial(_drive.prepared_infer, server),
            **{name: other.run for name, other in others.items()},
        }
        for size in QUICK_SIZES if options.quick else SIZES:
            sized = entries(contenders, Load(bytes=size), "bytes", "in_flight")
            series += interleave(sized, options.rounds, options.seconds, skipped)
    outcome = Outcome("One inference at a time, over the size of its tensor", BASE, series)
    outcome.skipped, outcome.versions = skipped, versions(others)
    outcome.goals = _goals(outcome)
    outcome.plots.append(Plot("latency", "One inference at a time", "bytes", "p50"))
    return outcome


def _goals(outcome: Outcome) -> list[Goal]:
    goals = []
    for base in outcome.series:
        if base.contender != BASE:
            continue
        size = base.case["bytes"]
        ours = outcome.find(OURS, bytes=size)
        if int(size) >= LARGE:
            goals.append(Goal(f"{size} B, times the C loop", ratio(ours, base), 1.05))
        else:
            goals.append(Goal(f"{size} B, us above the C loop", difference(ours, base), 6.0))
            prepared = difference(outcome.find(PREPARED, bytes=size), base)
            goals.append(Goal(f"{size} B, prepared, us above the C loop", prepared, 3.0))
        limit = 1.3 * base.median("p99") + 6.0
        goals.append(Goal(f"{size} B, p99 in us", ours.median("p99"), limit))
    return goals
