# SPDX-License-Identifier: Apache-2.0
"""BYTES: 16,384 short strings there and back, beside what tritonclient does to frame them."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

import _backend
import numpy as np

import tritonffi
from benchmarks._common import workplace
from benchmarks._measure import Entry, Goal, Outcome, if_measured, interleave, ratio, summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benchmarks._common import Options
    from benchmarks._load import Load
    from benchmarks._measure import Round

    Objects = NDArray[np.object_]

COUNT = 16_384
BASE, INFER = "tritonclient, framing alone", "tritonffi infer"


def main(options: Options) -> Outcome:
    """Measures the framing alone on their side, and a whole inference on ours."""
    skipped: dict[str, str] = {}
    texts: Objects = np.array([b"text %d" % i for i in range(COUNT)], np.object_)
    with workplace() as place:
        _backend.write_model(place.repository, "text", {"INPUT0": ("BYTES", [-1])})
        with tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server:
            model = server.model("text")
            ways: dict[str, Callable[[], object]] = {
                INFER: lambda: model.infer({"INPUT0": texts})["OUTPUT0"]
            }
            try:
                from tritonclient import utils
            except ImportError as error:
                skipped[BASE] = str(error)
            else:
                ways[BASE] = lambda: utils.deserialize_bytes_tensor(
                    utils.serialize_byte_tensor(texts).item()
                )
            everything = [
                Entry({"strings": COUNT}, name, partial(_repeat, way)) for name, way in ways.items()
            ]
            series = interleave(everything, options.rounds, options.seconds)
    title = "16,384 short strings (BYTES) there and back"
    outcome = Outcome(title, BASE, series)
    outcome.skipped = skipped
    outcome.goals.append(
        Goal(
            "text there and back, times as fast as tritonclient's framing",
            if_measured(lambda: ratio(outcome.find(BASE), outcome.find(INFER))),
            8.0,
            is_floor=True,
        )
    )
    return outcome


def _repeat(way: Callable[[], object], load: Load) -> Round:
    times = []
    begin = perf_counter_ns()
    for _ in range(load.count):
        start = perf_counter_ns()
        way()
        times.append((perf_counter_ns() - start) / 1e3)
    return summary((perf_counter_ns() - begin) / 1e3, times)
