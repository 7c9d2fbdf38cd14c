# SPDX-License-Identifier: Apache-2.0
"""
How the cost of an inference grows with the inputs of a model, and with the models of a server.

32 are in flight, so that it is the work and not the waiting that is measured. How it grows with
size, threads and the inferences in flight is what latency, threads and throughput show.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import _backend

import tritonffi
from benchmarks import _drive
from benchmarks._common import c_loop, workplace
from benchmarks._load import Load
from benchmarks._measure import Outcome, Plot, entries, interleave

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks._common import Options
    from benchmarks._measure import Run, Series

INPUTS = [1, 2, 4, 8, 16, 32, 64]
MODELS = [1, 2, 5, 10, 20, 50, 100, 200]
BASE, OURS = "C loop", "tritonffi submit"
IN_FLIGHT, BYTES = 32, 1024


def main(options: Options) -> Outcome:
    """Measures both kinds of growth, each with models of its own."""
    series: list[Series] = []
    for dimension, numbers in (("inputs", INPUTS), ("models", MODELS)):
        chosen = numbers[::3] if options.quick else numbers
        series += _measure(dimension, chosen, options)
    outcome = Outcome(f"How the cost grows: {IN_FLIGHT} in flight, {BYTES} B tensors", BASE, series)
    outcome.plots += [
        Plot("growth_inputs", "Inputs, and as many outputs, of a request", "inputs", "us"),
        Plot("growth_models", "Models that take turns", "models", "us"),
    ]
    return outcome


def _measure(dimension: str, numbers: Sequence[int], options: Options) -> list[Series]:
    with workplace() as place:
        _write_models(place.repository, dimension, numbers)
        with (
            c_loop(place) as loop,
            tritonffi.Server(
                place.repository, backend_directory=place.backends, metrics=False
            ) as server,
        ):
            contenders: dict[str, Run] = {
                BASE: loop.run,
                OURS: partial(_drive.submit, server),
            }
            everything = []
            for number in numbers:
                load = _load(dimension, number)
                everything += entries(contenders, load, dimension, "in_flight")
            return interleave(everything, options.rounds, options.seconds)


def _write_models(repository: Path, dimension: str, numbers: Sequence[int]) -> None:
    if dimension == "models":
        for i in range(max(numbers)):
            _backend.write_model(repository, f"m{i}", {"INPUT0": ("FP32", [-1])})
        return
    for number in numbers:
        inputs = {f"INPUT{i}": ("FP32", [-1]) for i in range(number)}
        _backend.write_model(repository, f"inputs{number}", inputs)


def _load(dimension: str, number: int) -> Load:
    if dimension == "models":
        return Load("m", models=number, bytes=BYTES, in_flight=IN_FLIGHT)
    name = f"inputs{number}"
    return Load(name, inputs=number, bytes=BYTES, in_flight=IN_FLIGHT)
