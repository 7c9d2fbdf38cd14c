# SPDX-License-Identifier: Apache-2.0
"""Import, start and close, each in a new process: beside numpy's import and a server in C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks._children import child
from benchmarks._common import build_c_loop, neighbours, workplace
from benchmarks._measure import Entry, Goal, Outcome, difference, interleave

if TYPE_CHECKING:
    from benchmarks._common import Options, Workplace
    from benchmarks._measure import Round

BASE, OURS = "C", "tritonffi"
NUMPY = "numpy alone"
ROUNDS = 9

# Files are read and compiled beforehand, as an installer does it: it is neither the disk nor the
# compiler that is measured.
IMPORT = """
import time; begin = time.perf_counter(); import {name}
print('{{"import_ms": %.3f}}' % ((time.perf_counter() - begin) * 1e3))
"""
START = """
import json, sys, time
import tritonffi
from tritonffi import _library
marks = [time.perf_counter()]
_library.load(); marks.append(time.perf_counter())
server = tritonffi.Server(sys.argv[1], backend_directory=sys.argv[2], metrics=False)
marks.append(time.perf_counter())
server.close(); marks.append(time.perf_counter())
names = ("load_library_ms", "start_ms", "stop_ms")
print(json.dumps({n: (b - a) * 1e3 for n, a, b in zip(names, marks, marks[1:])}))
"""


def main(options: Options) -> Outcome:
    """Measures in new processes by turns."""
    with workplace() as place:
        build_c_loop(place)
        entries = [
            Entry({"what": "import"}, NUMPY, lambda _: _python(place, IMPORT.format(name="numpy"))),
            Entry(
                {"what": "import"}, OURS, lambda _: _python(place, IMPORT.format(name="tritonffi"))
            ),
            Entry({"what": "server"}, BASE, lambda _: _start_in_c(place)),
            Entry(
                {"what": "server"},
                OURS,
                lambda _: _python(place, START, str(place.repository), str(place.backends)),
            ),
        ]
        rounds = 3 if options.quick else ROUNDS
        series = interleave(entries, rounds, 0)
    outcome = Outcome("Import, start and close, in milliseconds", BASE, series, figure="start_ms")
    outcome.goals += [
        Goal(
            "import tritonffi, ms beyond numpy",
            difference(
                outcome.find(OURS, what="import"), outcome.find(NUMPY, what="import"), "import_ms"
            ),
            60.0,
        ),
        Goal(
            "Server(), ms beyond the server in C",
            difference(
                outcome.find(OURS, what="server"), outcome.find(BASE, what="server"), "start_ms"
            ),
            20.0,
        ),
    ]
    return outcome


def _python(place: Workplace, code: str, *arguments: str) -> Round:
    # The round of warm-up fills the cache, also where an editable installation or the environment
    # has left none beside the source.
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(place.folder / "bytecode")}
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **cache},
    )
    figures: Round = json.loads(done.stdout)
    return figures


def _start_in_c(place: Workplace) -> Round:
    command = [build_c_loop(place), place.repository, place.backends]
    with child(command, neighbours(place)) as loop:
        return {**loop.ready, **loop.stop()}
