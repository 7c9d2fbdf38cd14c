# SPDX-License-Identifier: Apache-2.0
"""
A million inferences of each kind: do memory, threads and descriptors stay as they were.

FP32, BYTES, failed in the model, cancelled, the responses of a stream, awaited, and of a Python
function behind the dynamic batcher. The first of eleven parts warms up; the kinds take turns, part
by part. What Python allocates is traced in a short run of each kind afterwards, for it costs time.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
import uuid
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import _backend
import numpy as np

import tritonffi
from benchmarks._common import workplace
from benchmarks._measure import Goal, Outcome, Plot, Series
from benchmarks.memory import MB, resident
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks._common import Options

COUNT = 1_000_000
QUICK_COUNT = 10_000
PARTS = 10
IN_FLIGHT = 32
RESPONSES = 2
TRACED = 2_000
TRACED_RUNS = 4
SETTLE_SECONDS = 10.0
LOOKS = 20
FP32 = ("FP32", [-1])


def main(options: Options) -> Outcome:
    """Measures each tenth of the run; the one before the first warms up."""
    return soak(QUICK_COUNT if options.quick else COUNT)


def soak(count: int) -> Outcome:
    """Does so many inferences of each kind, and as many more as a tenth of them before."""
    with workplace() as place:
        _backend.write_model(place.repository, "text", {"INPUT0": ("BYTES", [-1])})
        _backend.write_model(
            place.repository, "stream", {"INPUT0": FP32}, decoupled=True, count=RESPONSES
        )
        server = tritonffi.Server(place.repository, backend_directory=place.backends)
        with closing(Kinds(server)) as kinds:
            series = _measure(kinds.all(), count // PARTS)
            traced = {name: _traced(work) for name, work in kinds.all().items()}
        held = server.model("identity").infer({"INPUT0": np.ones(4, np.float32)})
        begin = perf_counter()
        server.close()
        close_ms = (perf_counter() - begin) * 1e3
        del held
    title = "A long run of each kind of inference: does it stay as it was"
    outcome = Outcome(title, "", series, figure="us")
    outcome.goals += _goals(series, count, traced, close_ms)
    outcome.plots.append(
        Plot("soak", title, "inferences", "resident_mb", unit="MB resident", is_linear=True)
    )
    return outcome


def growth(values: Sequence[float]) -> float:
    """By how much a figure grew over a run of so many parts, without what grew in a few of them.

    What leaks grows in most parts; a heap or a table takes a step now and then.
    """
    return float(np.median(np.diff(values))) * len(values)


def _measure(kinds: Mapping[str, Callable[[int], None]], count: int) -> list[Series]:
    session = uuid.uuid4().hex
    series = []
    for part in range(PARTS + 1):
        for name, work in kinds.items():
            begin = perf_counter()
            work(count)
            us = (perf_counter() - begin) * 1e6 / count
            if part > 0:
                case = {"inferences": part * count}
                series.append(Series(session, case, name, [{"us": us, **_held()}]))
    return series


def _held() -> dict[str, float]:
    """What this process has: the figures that are to stay."""
    gc.collect()
    return {
        **_settled(),
        "resident_mb": resident() / MB,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "python_threads": threading.active_count(),
        # The least of some looks: Triton's metrics thread opens a file for a moment now and then.
        "descriptors": min(len(list(Path("/proc/self/fd").iterdir())) for _ in range(LOOKS)),
    }


def _settled() -> dict[str, float]:
    """What C counts once Triton has let go of all that is answered, or when it had time enough.

    What a cancelled inference or a function's batch was made of goes after its answer has come.
    """
    counters = ffi.new("tffi_counters *")
    end = perf_counter() + SETTLE_SECONDS
    while True:
        lib.tffi_counters_read(counters)
        in_flight = counters.inferences + counters.completions + counters.batches
        if in_flight + counters.buffers == 0 or perf_counter() > end:
            break
        sleep(0.001)
    return {"buffers": counters.buffers, "in_flight": in_flight, "queues": counters.queues}


def _traced(work: Callable[[int], None]) -> float:
    """By how many KB what Python has allocated grows in each further run, at the least.

    A table takes a step now and then, and what leaks grows every time.
    """
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(TRACED_RUNS):
            work(TRACED)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return float(np.diff(sizes).min()) / 1024


def _goals(
    series: list[Series], count: int, traced: Mapping[str, float], close_ms: float
) -> list[Goal]:
    goals = []
    for name in traced:
        own = [one for one in series if one.contender == name]
        grown = growth([one.median("resident_mb") for one in own])
        goals.append(Goal(f"{name}: growth over {count:,} inferences, MB", grown, 1.0))
        goals.append(Goal(f"{name}: growth of what Python allocated, KB", traced[name], 16.0))
    for figure in ("threads", "python_threads", "descriptors", "buffers", "in_flight", "queues"):
        values = [one.median(figure) for one in series]
        text = f"{figure.replace('_', ' ')}: the most, above the first"
        goals.append(Goal(text, max(values) - values[0], 0.0))
    return [*goals, Goal("close after it, with an array held, ms", close_ms, 100.0)]


class Kinds:
    """Does inferences of each kind."""

    def __init__(self, server: tritonffi.Server) -> None:
        """Takes the models of a server, and gives it one more."""
        self._plain = server.model("identity")
        self._text = server.model("text")
        self._stream = server.model("stream")
        self._double = server.load_function(
            "double",
            lambda a: {"b": a * 2},
            inputs={"a": FP32},
            outputs={"b": FP32},
            max_batch_size=8,
            config={"dynamic_batching": {}},
        )
        self._array = np.arange(64, dtype=np.float32)
        self._inputs = {"INPUT0": self._array}
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        """Closes the event loop."""
        self._loop.close()

    def all(self) -> dict[str, Callable[[int], None]]:
        """Returns for each kind what does so many of them."""
        return {
            "FP32": self._do_plain,
            "BYTES": self._do_text,
            "error": self._do_error,
            "cancelled": self._do_cancelled,
            "stream": self._do_stream,
            "async": self._do_async,
            "function": self._do_function,
        }

    def _do_plain(self, count: int) -> None:
        for response in self._plain.map((self._inputs for _ in range(count)), in_flight=IN_FLIGHT):
            assert response["OUTPUT0"][-1] == self._array[-1]

    def _do_text(self, count: int) -> None:
        items = ({"INPUT0": ["some", "text", "\u00e9" * (i % 50)]} for i in range(count))
        for response in self._text.map(items, in_flight=IN_FLIGHT):
            assert response["OUTPUT0"][1] == b"text"

    def _do_error(self, count: int) -> None:
        items = (self._inputs for _ in range(count))
        outcomes = self._plain.map(
            items, in_flight=IN_FLIGHT, return_errors=True, parameters={"mode": "error"}
        )
        for error in outcomes:
            assert isinstance(error, tritonffi.InternalError)

    def _do_cancelled(self, count: int) -> None:
        for _ in range(count // IN_FLIGHT):
            pending = [self._plain.submit(self._inputs) for _ in range(IN_FLIGHT)]
            for inference in pending:
                inference.cancel()
            for inference in pending:
                with suppress(tritonffi.CancelledError):
                    inference.result()

    def _do_stream(self, count: int) -> None:
        for _ in range(count):
            assert sum(1 for _ in self._stream.stream(self._inputs)) == RESPONSES

    def _do_async(self, count: int) -> None:
        async def task() -> None:
            for _ in range(count // IN_FLIGHT):
                await self._plain.async_infer(self._inputs)

        async def tasks() -> None:
            await asyncio.gather(*(task() for _ in range(IN_FLIGHT)))

        self._loop.run_until_complete(tasks())

    def _do_function(self, count: int) -> None:
        items = ({"a": self._array[None]} for _ in range(count))
        for response in self._double.map(items, in_flight=IN_FLIGHT):
            assert response["b"][0, -1] == 2 * self._array[-1]
