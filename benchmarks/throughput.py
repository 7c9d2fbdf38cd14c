# SPDX-License-Identifier: Apache-2.0
"""Several inferences in flight, from one thread: 1 to 1,024 of them, 4 KB each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import tritonffi
from benchmarks import _drive
from benchmarks._common import c_loop, workplace
from benchmarks._load import Load
from benchmarks._measure import Goal, Outcome, Plot, entries, interleave, ratio
from benchmarks._peers import peers, versions

if TYPE_CHECKING:
    from benchmarks._common import Options
    from benchmarks._measure import Entry, Run

IN_FLIGHT = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
QUICK_IN_FLIGHT = [1, 32, 1024]
PEERS_IN_FLIGHT = [1, 4, 32]
BASE, SUBMIT, MAP = "C loop", "tritonffi submit", "tritonffi map"
KEEPING = "C loop that keeps its requests"
PREPARED = "tritonffi prepared submit"
USUAL, MANY = 32, 1024


def main(options: Options) -> Outcome:
    """Measures everybody who is there."""
    skipped: dict[str, str] = {}
    everything: list[Entry] = []
    with (
        workplace() as place,
        c_loop(place) as loop,
        c_loop(place, keep=True) as keeping_loop,
        tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server,
        peers(place, options, skipped) as others,
    ):
        ours: dict[str, Run] = {
            BASE: loop.run,
            KEEPING: keeping_loop.run,
            SUBMIT: partial(_drive.submit, server),
            PREPARED: partial(_drive.prepared_submit, server),
            MAP: partial(_drive.mapped, server),
        }
        for in_flight in QUICK_IN_FLIGHT if options.quick else IN_FLIGHT:
            contenders = dict(ours)
            if in_flight in PEERS_IN_FLIGHT:
                contenders.update({name: other.run for name, other in others.items()})
            everything += entries(contenders, Load(in_flight=in_flight), "bytes", "in_flight")
        # All in one session, so that 1,024 in flight can be divided by 32.
        series = interleave(everything, options.rounds, options.seconds, skipped)
    outcome = Outcome("Several in flight from one thread, 4 KB each", BASE, series)
    outcome.skipped, outcome.versions = skipped, versions(others)
    outcome.goals = _goals(outcome)
    outcome.plots.append(Plot("throughput", outcome.title, "in_flight", "us", per_second=True))
    return outcome


def _goals(outcome: Outcome) -> list[Goal]:
    usual = outcome.find(SUBMIT, in_flight=USUAL)
    base = outcome.find(BASE, in_flight=USUAL)
    mapped = outcome.find(MAP, in_flight=USUAL)
    return [
        Goal("32 in flight, submit and result, times the C loop", ratio(usual, base), 1.5),
        Goal(
            "32 in flight, prepared, times the C loop",
            ratio(outcome.find(PREPARED, in_flight=USUAL), base),
            1.3,
        ),
        Goal("32 in flight, map, times the C loop", ratio(mapped, base), 1.2),
        Goal(
            "1,024 in flight, times 32 in flight",
            ratio(outcome.find(SUBMIT, in_flight=MANY), usual),
            1.2,
        ),
    ]
