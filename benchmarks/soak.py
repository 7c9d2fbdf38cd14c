# SPDX-License-Identifier: Apache-2.0
"""
Many inferences of mixed kinds: does the process stay as large as it was, and how long is a close.

FP32 and BYTES, submitted and dropped, refused by Triton, failed in the model, cancelled, and a
Python function behind the dynamic batcher.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import _backend
import numpy as np

import tritonffi
from benchmarks._common import Options, print_table, workplace

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 100_000
WARM_UP = 10_000
IN_FLIGHT = 32
MEGABYTE = 1 << 20


def main(options: Options) -> dict[str, object]:
    """Runs, prints and returns the resident set over the run."""
    count = COUNT // 10 if options.quick else COUNT
    warm_up = WARM_UP // 5 if options.quick else WARM_UP
    with workplace() as place:
        _backend.write_model(place.repository, "text", {"INPUT0": ("BYTES", [-1])})
        server = tritonffi.Server(place.repository, backend_directory=place.backends)
        kinds = _kinds(server)
        resident = []
        begin = perf_counter()
        for i in range(count):
            kinds[i % len(kinds)](i)
            if i >= warm_up and i % (count // 10) == 0:
                gc.collect()
                resident.append(_resident())
        took = perf_counter() - begin
        gc.collect()
        resident.append(_resident())
        held = server.model("identity").infer({"INPUT0": np.ones(4, np.float32)})
        begin = perf_counter()
        server.close()
        close = perf_counter() - begin
        del held
    growth = (resident[-1] - resident[0]) / MEGABYTE
    print_table(
        f"{count} inferences in {took:.1f} s",
        ("resident MB after warm-up", "at the end", "growth", "close, ms"),
        [(resident[0] / MEGABYTE, resident[-1] / MEGABYTE, growth, close * 1e3)],
    )
    return {"count": count, "seconds": took, "resident": resident, "close_s": close}


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


def _resident() -> int:
    """Bytes of this process that are in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
