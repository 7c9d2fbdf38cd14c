# SPDX-License-Identifier: Apache-2.0
"""The peak of memory: what many inferences in flight need beyond their inputs and outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tritonffi
from benchmarks import _drive
from benchmarks._children import HERE
from benchmarks._common import workplace
from benchmarks._load import Load
from benchmarks._measure import Goal, Outcome, entries, interleave

if TYPE_CHECKING:
    from benchmarks._common import Options, Workplace
    from benchmarks._measure import Round

MB = 1 << 20
CASES = [
    Load(bytes=MB, in_flight=32, count=2_000),
    Load(bytes=64 << 10, in_flight=512, count=20_000),
]
DIMENSIONS = ("bytes", "in_flight")
OURS = "tritonffi submit"
ROOM_MB = 20.0


def main(options: Options) -> Outcome:
    """Measures in new processes, because a peak is one of a process."""
    with workplace() as place:
        everything = [
            entry
            for load in CASES
            for entry in entries({OURS: partial(_in_new_process, place)}, load, *DIMENSIONS)
        ]
        series = interleave(everything, 1 if options.quick else 3, 0)
    outcome = Outcome(
        "Peak of resident memory, above an idle server's, in MB", "", series, figure="peak_mb"
    )
    outcome.goals += [
        Goal(
            f"{one.case['in_flight']} x {one.case['bytes']} B in flight, MB beyond the tensors",
            one.median("peak_mb") - one.median("tensors_mb"),
            ROOM_MB,
        )
        for one in series
    ]
    return outcome


def _in_new_process(place: Workplace, load: Load) -> Round:
    code = "import sys; from benchmarks.memory import work; work(*sys.argv[1:])"
    arguments = [str(place.repository), str(place.backends), load.line()]
    done = subprocess.run(  # noqa: S603 - the code is below
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE.parent,
    )
    figures: Round = json.loads(done.stdout)
    return figures


def work(repository: str, backends: str, line: str) -> None:
    """Prints the peak of the load, and what is left of it at the end."""
    load = Load.parse(line)
    with tritonffi.Server(repository, backend_directory=backends, metrics=False) as server:
        _drive.submit(server, Load(bytes=4, in_flight=load.in_flight, count=2 * load.in_flight))
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak
        _drive.submit(server, load)
        figures = {
            "peak_mb": (resident("VmHWM") - before) / MB,
            "tensors_mb": 2 * load.in_flight * load.bytes / MB,
            "left_mb": (resident("VmRSS") - before) / MB,
        }
        tritonffi.memory_pool.limit = 0
        figures["left_without_pool_mb"] = (resident("VmRSS") - before) / MB
    print(json.dumps(figures))


def resident(which: str = "VmRSS") -> int:
    """Bytes of this process that are in RAM (VmRSS), or were at most (VmHWM)."""
    for text in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        key, _, value = text.partition(":")
        if key == which:
            return int(value.split()[0]) * 1024
    raise OSError(f"pid {os.getpid()} has no {which}")
