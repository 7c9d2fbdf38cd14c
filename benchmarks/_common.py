# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the backend and its model, the C loop, the machine, tables."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import tritonffi
from tritonffi import _library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).resolve().parent

# The backend of the tests echoes as fast as an identity backend can, so it serves here too.
sys.path.insert(0, str(HERE.parent / "tests"))
import _backend  # noqa: E402

MODEL = "identity"


@dataclass(frozen=True)
class Options:
    """What the command line says to every benchmark."""

    quick: bool = False


@dataclass(frozen=True)
class Round:
    """
    One measurement: microseconds per inference.

    Attributes:
        us: The whole time over the number of inferences.
        p50: Of the time from the submission of an inference to having its result; so are the rest.
        p90: See p50.
        p99: See p50.
    """

    us: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, total_us: float, times_us: Sequence[float]) -> Round:
        """Sums up the times of one round."""
        times = sorted(times_us)
        count = len(times)
        return cls(
            total_us / count, times[count // 2], times[count * 9 // 10], times[count * 99 // 100]
        )


@dataclass(frozen=True)
class Workplace:
    """A folder with the one model and the one backend that all contenders use."""

    library: Path
    repository: Path
    backends: Path
    folder: Path


@contextmanager
def workplace() -> Iterator[Workplace]:
    """Builds the backend for the library that tritonffi finds; gone at the end."""
    library = _library.find().library
    with tempfile.TemporaryDirectory(prefix="tritonffi-benchmark-") as name:
        folder = Path(name)
        place = Workplace(library, folder / "models", folder / "backends", folder)
        _backend.build(place.backends, library)
        _backend.write_model(place.repository, MODEL, {"INPUT0": ("FP32", [-1])})
        yield place


class CLoop:
    """The program c_loop.c at work: it does a round when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Waits until its server has started."""
        self._process = process
        self._answer()

    def run(self, byte_size: int, in_flight: int, count: int) -> Round:
        """Does one round."""
        assert self._process.stdin is not None
        print(byte_size, in_flight, count, file=self._process.stdin, flush=True)
        return Round(**self._answer())

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"c_loop ended with exit code {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def c_loop(place: Workplace) -> Iterator[CLoop]:
    """Compiles and starts the program; it ends with its stdin."""
    program = place.folder / "c_loop"
    rpath = f"-Wl,-rpath,{place.library.parent}"
    _backend.compile_c(program, [HERE / "c_loop.c"], place.library, rpath)
    with subprocess.Popen(  # noqa: S603 - the program is ours
        [program, place.repository, place.backends, MODEL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # The neighbours of the wheel's library do not find each other by themselves.
        env={**os.environ, "LD_LIBRARY_PATH": str(place.library.parent)},
    ) as process:
        yield CLoop(process)


def machine() -> dict[str, str]:
    """What was measured, and on what."""
    return {
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tritonffi": tritonffi.__version__,
        "library": str(_library.find().library),
    }


def print_machine() -> None:
    """Prints `machine()`."""
    for key, value in machine().items():
        print(f"{key:>9}  {value}")


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table, numbers right-aligned with the digits that they were measured to."""
    cells = [list(heads), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
