# SPDX-License-Identifier: Apache-2.0
"""Long runs: what the process has at their end is what it had at their beginning."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import _backend
import pytest

# Last: the package that is tested is the installed one.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks.memory import MB, resident
from benchmarks.soak import growth, soak
from tritonffi import Server

COUNT = 100_000
RESTARTS = 200
PARTS = 10
FP32 = ("FP32", [-1])


@pytest.mark.timeout(600)  # on a machine that has other things to do
def test_a_long_run_of_each_kind_of_inference_leaves_nothing(library):
    """The resident set, what Python allocated, threads, descriptors, and the counters of C.

    A million of each kind is `python -m benchmarks soak`.
    """
    run_alone(library, "soak")


def test_servers_can_be_started_again_and_again(library, tmp_path, backend_directory):
    """Stopped servers are deleted where no other one runs."""
    run_alone(library, "restart", tmp_path, backend_directory)


def test_what_grows_once_is_not_a_leak_and_what_grows_each_time_is():
    """A heap takes a step now and then; the memory of inferences is looked at part by part."""
    assert growth([60.0, 60.0, 60.0, 62.0, 62.0, 62.0]) == 0.0
    assert growth([60.0, 60.5, 61.0, 61.5, 65.0, 65.5]) == 3.0


def run_alone(library, *arguments):
    """Run a part of this file in a process of its own, where nothing else comes and goes."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)],
        env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def soak_long() -> None:
    """Run so many of each kind, and look at what is held."""
    goals = [goal for goal in soak(COUNT).goals if not goal.text.endswith(" ms")]
    assert len(goals) == 20
    unmet = [goal for goal in goals if not goal.is_met]
    assert not unmet, unmet


def restart_often(folder: Path, backend_directory: str) -> None:
    """Start and close servers, with a model, an inference and a Python function each."""
    temporary = folder / "temporary"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    _backend.write_model(folder / "models", "one", {"INPUT0": FP32})

    def held():
        gc.collect()
        return {
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "python threads": threading.active_count(),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "folders": len(list(temporary.iterdir())),
        }

    def restart():
        with Server(folder / "models", backend_directory=backend_directory) as server:
            assert server.model("one").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]
            double = server.load_function(
                "double", lambda a: {"b": a * 2}, inputs={"a": FP32}, outputs={"b": FP32}
            )
            assert double.infer({"a": [1.0]})["b"].tolist() == [2.0]

    for _ in range(RESTARTS // 2):  # until the heap has its size
        restart()
    before, sizes = held(), [resident() / MB]
    for _ in range(PARTS):
        for _ in range(RESTARTS // PARTS):
            restart()
        sizes.append(resident() / MB)
    after = held()
    assert after == before, (before, after)
    assert growth(sizes) < 2, sizes  # 10 KB each


if __name__ == "__main__":
    if sys.argv[1] == "soak":
        soak_long()
    else:
        restart_often(Path(sys.argv[2]), sys.argv[3])
