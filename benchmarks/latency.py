# SPDX-License-Identifier: Apache-2.0
"""
What an inference costs in Python over what it costs in C: one at a time, and 32 in flight.

The C loop and tritonffi serve the same model by the same backend, each in a process of its own,
and take turns round by round, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

import tritonffi
from benchmarks._common import MODEL, Options, Round, c_loop, print_table, workplace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

IN_FLIGHT = 32
PAGE = 4096


@dataclass(frozen=True)
class Case:
    """A call, a size, and the rounds of both sides."""

    call: str
    bytes: int
    in_flight: int
    c_loop: list[Round]
    tritonffi: list[Round]


def infer(model: tritonffi.Model, byte_size: int, count: int) -> Round:
    """One after the other, each awaited."""
    inputs = {"INPUT0": _array(byte_size)}
    times = []
    begin = perf_counter_ns()
    for _ in range(count):
        start = perf_counter_ns()
        model.infer(inputs)
        times.append((perf_counter_ns() - start) / 1e3)
    return Round.of((perf_counter_ns() - begin) / 1e3, times)


def submit(model: tritonffi.Model, byte_size: int, count: int) -> Round:
    """Several in flight, the oldest awaited first."""
    inputs = [{"INPUT0": _array(byte_size)} for _ in range(IN_FLIGHT)]
    times = []
    pending: deque[tuple[int, tritonffi.Inference]] = deque()
    begin = perf_counter_ns()
    for i in range(count + IN_FLIGHT):
        if i >= IN_FLIGHT:
            start, inference = pending.popleft()
            inference.result()
            times.append((perf_counter_ns() - start) / 1e3)
        if i < count:
            pending.append((perf_counter_ns(), model.submit(inputs[i % IN_FLIGHT])))
    return Round.of((perf_counter_ns() - begin) / 1e3, times)


WAYS: list[tuple[str, Callable[[tritonffi.Model, int, int], Round], int]] = [
    ("infer", infer, 1),
    ("submit", submit, IN_FLIGHT),
]


def main(options: Options) -> dict[str, object]:
    """Measures, prints, and returns every round of every case."""
    sizes = [4 << 10] if options.quick else [4 << 10, 256 << 10]
    rounds = 5 if options.quick else 15
    cases = [(way, byte_size) for byte_size in sizes for way in WAYS]
    in_c: list[list[Round]] = [[] for _ in cases]
    in_python: list[list[Round]] = [[] for _ in cases]
    with (
        workplace() as place,
        c_loop(place) as loop,
        tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server,
    ):
        triton = str(server.metadata()["version"])
        model = server.model(MODEL)
        for number in range(rounds + 1):
            for i, ((_, run, in_flight), byte_size) in enumerate(cases):
                count = max(10 * IN_FLIGHT, min(4000, (256 << 20) // byte_size))
                one_in_c = loop.run(byte_size, in_flight, count)
                one_in_python = run(model, byte_size, count)
                if number > 0:  # the first round warms up
                    in_c[i].append(one_in_c)
                    in_python[i].append(one_in_python)

    results = [
        Case(name, byte_size, in_flight, in_c[i], in_python[i])
        for i, ((name, _, in_flight), byte_size) in enumerate(cases)
    ]
    _print(results, triton)
    return {"triton": triton, "cases": [asdict(case) for case in results]}


def _print(results: list[Case], triton: str) -> None:
    print_table(
        f"Triton {triton}: microseconds per inference, median of {len(results[0].c_loop)} rounds",
        ("bytes", "call", "in flight", "C loop", "tritonffi", "ratio"),
        [
            (case.bytes, case.call, case.in_flight, c_us, python_us, python_us / c_us)
            for case in results
            for c_us, python_us in [(_median(case.c_loop, "us"), _median(case.tritonffi, "us"))]
        ],
    )
    print_table(
        "microseconds of one inference at a time, medians of the rounds",
        ("bytes", "by", "p50", "p90", "p99"),
        [
            (case.bytes, label, *(_median(rounds, key) for key in ("p50", "p90", "p99")))
            for case in results
            if case.in_flight == 1
            for label, rounds in (("C loop", case.c_loop), ("tritonffi", case.tritonffi))
        ],
    )


def _median(rounds: list[Round], key: str) -> float:
    values: list[float] = [getattr(one, key) for one in rounds]
    return median(values)


def _array(byte_size: int) -> NDArray[np.float32]:
    """On a page boundary, like the C loop's: a copy from a badly placed array is far slower."""
    memory = np.ones(byte_size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + byte_size].view(np.float32)
