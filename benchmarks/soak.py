# SPDX-License-Identifier: Apache-2.0
"""
Many inferences of mixed kinds: do cost and memory stay as they were, and how long is a close.

FP32 and BYTES, submitted and dropped, refused by Triton, failed in the model, cancelled, and a
Python function behind the dynamic batcher.
"""

from __future__ import annotations

import gc
import uuid
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

import _backend
import numpy as np

import tritonffi
from benchmarks._common import workplace
from benchmarks._measure import Goal, Outcome, Plot, Series
from benchmarks.memory import resident

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._common import Options

COUNT = 1_000_000
PARTS = 10
IN_FLIGHT = 32
MEGABYTE = 1 << 20
OURS = "tritonffi"


def main(options: Options) -> Outcome:
    """Measures each tenth of the run; the one before the first warms up."""
    count = COUNT // 50 if options.quick else COUNT
    session = uuid.uuid4().hex
    series = []
    with workplace() as place:
        _backend.write_model(place.repository, "text", {"INPUT0": ("BYTES", [-1])})
        server = tritonffi.Server(place.repository, backend_directory=place.backends)
        kinds = _kinds(server)
        for part in range(PARTS + 1):
            begin = perf_counter()
            for i in range(count // PARTS):
                kinds[i % len(kinds)](i)
            us = (perf_counter() - begin) * 1e6 / (count // PARTS)
            gc.collect()
            figures = {"us": us, "resident_mb": resident() / MEGABYTE}
            if part > 0:
                case = {"inferences": part * (count // PARTS)}
                series.append(Series(session, case, OURS, [figures]))
        held = server.model("identity").infer({"INPUT0": np.ones(4, np.float32)})
        begin = perf_counter()
        server.close()
        close_ms = (perf_counter() - begin) * 1e3
        del held
    outcome = Outcome("A long run of mixed inferences: does it stay as it was", "", series)
    grown = series[-1].median("resident_mb") - series[0].median("resident_mb")
    outcome.goals += [
        Goal("growth of resident memory over the run, MB", grown, 5.0),
        Goal("close after it, with an array held, ms", close_ms, 100.0),
    ]
    outcome.plots.append(Plot("soak", outcome.title, "inferences", "us"))
    return outcome


def _kinds(server: tritonffi.Server) -> list[Callable[[int], object]]:
    plain, text = server.model("identity"), server.model("text")
    double = server.load_function(
        "double",
        lambda a: {"b": a * 2},
        inputs={"a": ("FP32", [-1])},
        outputs={"b": ("FP32", [-1])},
        max_batch_size=8,
        config={"dynamic_batching": {}},
    )
    array = np.arange(1024, dtype=np.float32)
    pending: list[tritonffi.Inference] = []

    def submit(i: int) -> None:
        pending.append(plain.submit({"INPUT0": array}, request_id=str(i)))
        if len(pending) == IN_FLIGHT:
            for inference in pending:
                inference.result()
            pending.clear()

    def fail(_: int) -> None:
        with suppress(tritonffi.InternalError):
            plain.infer({"INPUT0": array}, parameters={"mode": "error"})

    def refuse(_: int) -> None:
        with suppress(tritonffi.NotFoundError, tritonffi.UnavailableError):
            server.model("identity", 7).infer({"INPUT0": array})

    def mistake(_: int) -> None:
        with suppress(tritonffi.InvalidArgumentError):
            plain.infer({"INPUT0": array.astype(np.float64)})

    return [
        lambda _: plain.infer({"INPUT0": array}),
        lambda i: text.infer({"INPUT0": ["some", "text", "é" * (i % 50)]}),
        submit,
        lambda _: plain.submit({"INPUT0": array}),
        lambda _: plain.submit({"INPUT0": array}).cancel(),
        fail,
        refuse,
        mistake,
        lambda _: double.infer({"a": array[None]}),
        lambda _: plain.infer({"INPUT0": array[::-2]}, parameters={"x": 1, "y": "z"}),
    ]
