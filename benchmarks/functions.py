# SPDX-License-Identifier: Apache-2.0
"""
A Python function as a model, behind the dynamic batcher: here, and the way others serve it.

Triton's python backend runs it in a process of its own, for a server and a client that are ours as
well. pytriton has server, function and clients in processes of their own; its client is
tritonclient's gRPC, so what is measured there is what its users have.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import tritonffi
from benchmarks import _drive
from benchmarks._children import child
from benchmarks._common import workplace
from benchmarks._load import Load
from benchmarks._measure import (
    ContenderError,
    Goal,
    Outcome,
    Plot,
    entries,
    if_measured,
    interleave,
    ratio,
)
from benchmarks._peers import versions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchmarks._children import Child
    from benchmarks._common import Options
    from benchmarks._measure import Round, Run

    Array = NDArray[np.float32]

IN_FLIGHT = [1, 8, 32, 128]
LARGE = 1 << 20
BASE, OURS, PYTRITON = "python backend", "tritonffi function", "pytriton"
OTHERS = {BASE: "benchmarks._python_backend", PYTRITON: "benchmarks._pytriton"}
PYTRITON_PYTHON = "TRITONFFI_BENCH_PYTRITON_PYTHON"
MAX_BATCH = 64
INPUT_COPIES, OUTPUT_COPIES = "copies of inputs", "of outputs"


def double(INPUT0: Array) -> dict[str, Array]:  # noqa: N803 - called by the input's name
    """The function."""
    return {"OUTPUT0": INPUT0 * 2}


def main(options: Options) -> Outcome:
    """Measures everybody who is there."""
    skipped: dict[str, str] = {}
    with workplace() as place, ExitStack() as stack:
        server = stack.enter_context(
            tritonffi.Server(place.repository, backend_directory=place.backends, metrics=False)
        )
        server.load_function(
            "quick",
            double,
            inputs={"INPUT0": ("FP32", [-1])},
            outputs={"OUTPUT0": ("FP32", [-1])},
            max_batch_size=MAX_BATCH,
            config={"dynamic_batching": {}},
        )
        others: dict[str, Child] = {}
        for name, module in OTHERS.items():
            try:
                command = [_python_of(name), "-m", module, str(MAX_BATCH)]
                others[name] = stack.enter_context(child(command))
            except ContenderError as error:  # noqa: PERF203 - one by one
                skipped[name] = f"{error}{_hint(name)}"
        ways: dict[str, Run] = {OURS: partial(_run, server)}
        ways.update({name: other.run for name, other in others.items()})
        sizes = [(4096, in_flight) for in_flight in IN_FLIGHT] + [(LARGE, 1), (LARGE, 8)]
        everything = []
        for size, in_flight in sizes:
            load = Load("quick", bytes=size, batched=1, in_flight=in_flight)
            everything += entries(ways, load, "bytes", "in_flight")
        series = interleave(everything, options.rounds, options.seconds, skipped)
    outcome = Outcome("A Python function behind the dynamic batcher", BASE, series)
    outcome.skipped, outcome.versions = skipped, versions(others)
    plot = Plot("functions", outcome.title + ", 4 KB", "in_flight", "us", {"bytes": 4096}, True)
    outcome.plots.append(plot)
    alone = outcome.find(OURS, bytes=LARGE, in_flight=1)
    several = outcome.find(OURS, bytes=LARGE, in_flight=8)
    outcome.goals += [
        Goal("function, 1 MB, copies of an input, one in flight", alone.median(INPUT_COPIES), 0),
        Goal("function, 1 MB, copies of an input, 8 in flight", several.median(INPUT_COPIES), 1),
        Goal("function, 1 MB, copies of an output", several.median(OUTPUT_COPIES), 1),
    ]
    outcome.goals += [
        Goal(
            f"function, {in_flight} in flight, throughput times the python backend's",
            if_measured(partial(_throughput, outcome, in_flight)),
            4.0,
            is_floor=True,
        )
        for in_flight in (32, 128)
    ]
    return outcome


def _throughput(outcome: Outcome, in_flight: int) -> float:
    """Ours, times theirs: the times of an inference the other way round."""
    theirs, ours = (outcome.find(name, bytes=4096, in_flight=in_flight) for name in (BASE, OURS))
    return ratio(theirs, ours)


def _run(server: tritonffi.Server, load: Load) -> Round:
    """A round of ours, and how often what it sent was copied."""
    before = tritonffi.function_copies()
    figures = _drive.several(server, load)
    copied = _difference(tritonffi.function_copies(), before)
    inputs = copied.inputs + copied.lent_inputs
    return {
        **figures,
        INPUT_COPIES: copied.inputs / inputs,
        OUTPUT_COPIES: copied.outputs / inputs,
    }


def _difference(
    now: tritonffi.FunctionCopies, before: tritonffi.FunctionCopies
) -> tritonffi.FunctionCopies:
    counts = zip(dataclasses.astuple(now), dataclasses.astuple(before), strict=True)
    return tritonffi.FunctionCopies(*(one - other for one, other in counts))


def _python_of(name: str) -> str:
    if name != PYTRITON:
        return sys.executable
    named = os.environ.get(PYTRITON_PYTHON)
    if not named:
        raise ContenderError(f"{PYTRITON_PYTHON} names no Python that has pytriton")
    return named


def _hint(name: str) -> str:
    named = os.environ.get(PYTRITON_PYTHON)
    return f" ({PYTRITON_PYTHON} is {named})" if name == PYTRITON and named else ""
