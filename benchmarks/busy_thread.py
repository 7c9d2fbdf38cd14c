# SPDX-License-Identifier: Apache-2.0
"""
A Python thread that computes beside a loop: does it hold Triton's threads up?

It slows the loop down, which needs the GIL too. But Triton's threads must not wait for it: a
backend (probe.c) times what the client's callbacks cost it, idle, beside such a thread, and beside
a process that computes, which takes a core away as the thread does, but no GIL. Where the system
took the core away meanwhile, nothing is counted.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import _backend

import tritonffi
from benchmarks import _drive
from benchmarks._children import HERE, TIE
from benchmarks._common import workplace
from benchmarks._load import Load
from benchmarks._measure import Entry, Goal, Outcome, difference, interleave
from tritonffi import _library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from benchmarks._common import Options, Workplace
    from benchmarks._measure import Round, Series

BASE, THREAD, PROCESS = "idle", "a busy Python thread", "a busy process"
FEW_S = 0.004
IN_FLIGHT = 32
LONGEST_US = 100.0
CONFIG = """
name: "probe"
backend: "probe"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }
"""
SPIN = TIE + "while True: pass"


def main(options: Options) -> Outcome:
    """Measures idle, beside the thread, and beside the process, by turns."""
    beside: dict[str, Callable[[], AbstractContextManager[None]]] = {
        BASE: _nothing,
        THREAD: _busy_thread,
        PROCESS: _busy_process,
    }
    with workplace() as place:
        library = _build(place)
        with tritonffi.Server(
            place.repository, backend_directory=place.backends, metrics=False
        ) as server:
            everything = [
                Entry(
                    {"in_flight": IN_FLIGHT},
                    name,
                    partial(_round, server, library, around),
                    Load("probe", in_flight=IN_FLIGHT),
                )
                for name, around in beside.items()
            ]
            # Few: beside the busy thread each of them may take as long as that holds the GIL.
            series = interleave(everything, options.rounds, FEW_S)
    outcome = Outcome(
        "Microseconds of Triton's threads in the client's callbacks, per inference",
        BASE,
        series,
        figure="p50",
    )
    thread, process, idle = (outcome.find(name) for name in (THREAD, PROCESS, BASE))
    outcome.goals += [
        Goal("longest push beside a busy thread, us above idle", _above(thread, idle), LONGEST_US),
        Goal(
            "longest push beside a busy thread, us above that beside a busy process",
            _above(thread, process),
            LONGEST_US,
        ),
    ]
    return outcome


def _build(place: Workplace) -> ctypes.CDLL:
    target: Path = place.backends / "probe" / "libtriton_probe.so"
    target.parent.mkdir(parents=True)
    flags = ("-shared", "-fPIC", "-fvisibility=hidden")
    _backend.compile_c(target, [HERE / "probe.c"], place.library, *flags)
    folder = place.repository / "probe"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    _library.load()  # or the loader does not find what the backend is linked to
    library = ctypes.CDLL(str(target))
    library.probe_read.restype = ctypes.c_double
    library.probe_read.argtypes = [ctypes.c_double]
    return library


def _above(series: Series, base: Series) -> float:
    return difference(series, base, "longest")


def _round(
    server: tritonffi.Server,
    library: ctypes.CDLL,
    around: Callable[[], AbstractContextManager[None]],
    load: Load,
) -> Round:
    with around():
        library.probe_reset()
        us = _drive.submit(server, load)["us"]
        shares = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999, "longest": 1.0}
        return {"us": us, **{name: library.probe_read(at) for name, at in shares.items()}}


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _busy_thread() -> Iterator[None]:
    stop = False

    def spin() -> None:
        while not stop:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()


@contextmanager
def _busy_process() -> Iterator[None]:
    command = [sys.executable, "-c", SPIN, str(os.getpid())]
    with subprocess.Popen(command, start_new_session=True) as process:  # noqa: S603 - it is above
        try:
            yield
        finally:
            process.kill()
