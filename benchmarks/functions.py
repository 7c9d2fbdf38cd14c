# SPDX-License-Identifier: Apache-2.0
"""
A Python function as a model, behind the dynamic batcher: here, and the way others serve it.

Triton's python backend runs it in a process of its own, for the same client and in the same server
as our function model. pytriton has server, function and clients in processes of their own; its
client is tritonclient's gRPC, so what is measured there is what its users have.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import tritonffi
from benchmarks import _drive
from benchmarks._common import child, workplace
from benchmarks._load import Load
from benchmarks._measure import ContenderError, Goal, Outcome, Plot, entries, interleave, ratio

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from benchmarks._common import Options, Workplace
    from benchmarks._measure import Round, Run

    Array = NDArray[np.float32]

IN_FLIGHT = [1, 8, 32, 128]
LARGE = 1 << 20
BASE, OURS, PYTRITON = "python backend", "tritonffi function", "pytriton"
PYTRITON_PYTHON = "TRITONFFI_BENCH_PYTRITON_PYTHON"
MAX_BATCH = 64
INPUT_COPIES, OUTPUT_COPIES = "copies of inputs", "of outputs"

# The loop over requests is how Triton's documentation has it.
MODEL_PY = """
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = utils.Tensor("OUTPUT0", array * 2)
            responses.append(utils.InferenceResponse([output]))
        return responses
"""
CONFIG = f"""
name: "slow"
backend: "python"
max_batch_size: {MAX_BATCH}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }}
dynamic_batching {{}}
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""


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
        ways: dict[str, Run] = {OURS: _way(server, "quick")}
        try:
            _load_python_model(server, place)
            ways[BASE] = _way(server, "slow")
        except tritonffi.TritonError as error:
            skipped[BASE] = str(error).partition("\n")[0]
        try:
            ways[PYTRITON] = stack.enter_context(
                child([_pytriton_python(), "-m", "benchmarks._pytriton", str(MAX_BATCH)])
            ).run
        except ContenderError as error:
            skipped[PYTRITON] = str(error)
        sizes = [(4096, in_flight) for in_flight in IN_FLIGHT] + [(LARGE, 1), (LARGE, 8)]
        everything = []
        for size, in_flight in sizes:
            load = Load("quick", bytes=size, batched=1, in_flight=in_flight)
            everything += entries(ways, load, "bytes", "in_flight")
        series = interleave(everything, options.rounds, options.seconds, skipped)
    outcome = Outcome("A Python function behind the dynamic batcher", BASE, series)
    outcome.skipped = skipped
    plot = Plot("functions", outcome.title + ", 4 KB", "in_flight", "us", {"bytes": 4096}, True)
    outcome.plots.append(plot)
    alone = outcome.find(OURS, bytes=LARGE, in_flight=1)
    several = outcome.find(OURS, bytes=LARGE, in_flight=8)
    outcome.goals += [
        Goal("function, 1 MB, copies of an input, one in flight", alone.median(INPUT_COPIES), 0),
        Goal("function, 1 MB, copies of an input, 8 in flight", several.median(INPUT_COPIES), 1),
        Goal("function, 1 MB, copies of an output", several.median(OUTPUT_COPIES), 1),
    ]
    if BASE not in skipped:
        outcome.goals += [
            Goal(
                f"function, {in_flight} in flight, throughput times the python backend's",
                ratio(
                    outcome.find(BASE, bytes=4096, in_flight=in_flight),
                    outcome.find(OURS, bytes=4096, in_flight=in_flight),
                ),
                4.0,
                is_floor=True,
            )
            for in_flight in (32, 128)
        ]
    return outcome


def _way(server: tritonffi.Server, model: str) -> Run:
    """One in flight is an infer, as in the other benchmarks. Requests in a call are counted too."""
    statistics = server.model(model).statistics

    def run(load: Load) -> Round:
        load = dataclasses.replace(load, model=model)
        before, copies = statistics(), tritonffi.function_copies()
        figures = (_drive.infer if load.in_flight == 1 else _drive.submit)(server, load)
        done = statistics() - before
        copied = _difference(tritonffi.function_copies(), copies)
        counts = {"requests a call": done.inference_count / done.execution_count}
        if model == "quick":
            inputs = copied.inputs + copied.lent_inputs
            counts[INPUT_COPIES] = copied.inputs / inputs
            counts[OUTPUT_COPIES] = copied.outputs / inputs
        return {**figures, **counts}

    return run


def _difference(
    now: tritonffi.FunctionCopies, before: tritonffi.FunctionCopies
) -> tritonffi.FunctionCopies:
    counts = zip(dataclasses.astuple(now), dataclasses.astuple(before), strict=True)
    return tritonffi.FunctionCopies(*(one - other for one, other in counts))


def _load_python_model(server: tritonffi.Server, place: Workplace) -> None:
    folder = place.repository / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(MODEL_PY, encoding="utf-8")
    (folder / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    server.load("slow")


def _pytriton_python() -> str | Path:
    try:
        return os.environ[PYTRITON_PYTHON]
    except KeyError:
        raise ContenderError(f"{PYTRITON_PYTHON} names no Python that has pytriton") from None
