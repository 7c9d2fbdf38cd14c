# SPDX-License-Identifier: Apache-2.0
"""What was measured on: machine and versions, printed and stored with the results."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import tritonffi
from tritonffi import _library

PACKAGES = ("numpy", "cffi", "tritonclient", "grpcio", "geventhttpclient", "uvloop", "tritonserver")


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
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "tritonffi": f"{tritonffi.__version__} {_commit()}".strip(),
        "library": library.name,
        **{name: _version(name) for name in PACKAGES},
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


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip()
