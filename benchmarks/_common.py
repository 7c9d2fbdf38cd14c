# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the backend and its models, child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._load import MODEL
from benchmarks._measure import ContenderError
from tritonffi import _library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks._load import Load
    from benchmarks._measure import Round

HERE = Path(__file__).resolve().parent

# The backend of the tests echoes as fast as an identity backend can, so it serves here too.
sys.path.insert(0, str(HERE.parent / "tests"))
import _backend  # noqa: E402


@dataclass(frozen=True)
class Options:
    """
    What the command line says to every benchmark.

    Attributes:
        quick: Fewer sizes, fewer and shorter rounds: to see that all works, not for figures.
        peers: Whether to run servers and packages of others too.
    """

    quick: bool = False
    peers: bool = True

    @property
    def rounds(self) -> int:
        """How many rounds count."""
        return 3 if self.quick else 15

    @property
    def seconds(self) -> float:
        """How long a round of one contender takes, about."""
        return 0.02 if self.quick else 0.15


@dataclass(frozen=True)
class Workplace:
    """A folder with the models and the backend that all contenders use."""

    library: Path
    repository: Path
    backends: Path
    folder: Path


@contextmanager
def workplace() -> Iterator[Workplace]:
    """Builds the backend for the library that tritonffi finds, and one model; gone at the end."""
    library = _library.find().library
    with tempfile.TemporaryDirectory(prefix="tritonffi-benchmark-") as name:
        folder = Path(name)
        place = Workplace(library, folder / "models", folder / "backends", folder)
        _backend.build(place.backends, library)
        _backend.write_model(place.repository, MODEL, {"INPUT0": ("FP32", [-1])})
        yield place


LONGEST_S = 180.0
"""How long a process may take to start, or for a round."""


class Child:
    """A process at work that does a round when it is told to: a line in, a line of JSON out."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Waits until it says that it is ready, and keeps what it says."""
        self._process = process
        self.ready = self._answer()

    def run(self, load: Load) -> Round:
        """Does one round."""
        assert self._process.stdin is not None
        print(load.line(), file=self._process.stdin, flush=True)
        return self._answer()

    def stop(self) -> Round:
        """Ends the process and returns its last words."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        # A pipe has no timeout: whoever takes too long is ended, which ends its line.
        watchdog = threading.Timer(LONGEST_S, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if not line:
            code = self._process.wait()
            raise ContenderError(f"{self._process.args!r} ended with exit code {code}")
        answer = json.loads(line)
        if "skip" in answer:
            raise ContenderError(answer["skip"])
        figures: dict[str, float] = answer
        return figures


@contextmanager
def child(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> Iterator[Child]:
    """
    Starts a process of the benchmarks; it ends with its stdin.

    Raises:
        ContenderError: It says that it cannot take part, or ended.
    """
    with subprocess.Popen(  # noqa: S603 - the programs are ours
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=HERE.parent,
    ) as process:
        try:
            yield Child(process)
        finally:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
            if process.stdout is not None:
                process.stdout.read()


def neighbours(place: Workplace) -> dict[str, str]:
    """The neighbours of the wheel's library do not find each other by themselves."""
    return {"LD_LIBRARY_PATH": str(place.library.parent)}


def build_c_loop(place: Workplace) -> Path:
    """Compiles c_loop.c."""
    program = place.folder / "c_loop"
    if not program.exists():
        rpath = f"-Wl,-rpath,{place.library.parent}"
        _backend.compile_c(program, [HERE / "c_loop.c"], place.library, rpath)
    return program


@contextmanager
def c_loop(place: Workplace, *, keep: bool = False) -> Iterator[Child]:
    """Compiles and starts the C loop; c_loop.c says what it keeps."""
    command: list[str | Path] = [build_c_loop(place), place.repository, place.backends]
    if keep:
        command.append("keep")
    with child(command, neighbours(place)) as loop:
        yield loop
