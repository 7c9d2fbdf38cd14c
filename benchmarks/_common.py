# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the backend and its models, and the loop in C."""

from __future__ import annotations

import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._children import HERE, child
from benchmarks._load import MODEL
from tritonffi import _library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._children import Child

# The backend of the tests echoes as fast as an identity backend can, so it serves here too.
sys.path.insert(0, str(HERE.parent / "tests"))
import _backend


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
