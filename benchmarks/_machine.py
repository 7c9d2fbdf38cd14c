# SPDX-License-Identifier: Apache-2.0
"""What was measured on: machine and versions, printed and stored with the results."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import tritonffi
from benchmarks._versions import python, version
from tritonffi import _library

PACKAGES = ("numpy", "cffi", "tritonclient", "grpcio", "geventhttpclient", "uvloop")

TRITON = """
import tempfile, tritonffi
with tempfile.TemporaryDirectory() as empty, tritonffi.Server(empty, metrics=False) as server:
    print(server.metadata()["version"])
"""


def machine() -> dict[str, str]:
    """What to know of the machine before a figure means something."""
    library = _library.find().library
    return {
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GB",
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": python(),
        "tritonffi": f"{tritonffi.__version__} {_commit()}".strip(),
        "triton": _triton(),
        "library": library.name,
        **{name: version(name) for name in PACKAGES},
    }


def _cpu() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


def _triton() -> str:
    # In a process of its own: this one measures.
    command = [sys.executable, "-c", TRITON]
    try:
        done = subprocess.run(  # noqa: S603 - the code is above
            command, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip()
