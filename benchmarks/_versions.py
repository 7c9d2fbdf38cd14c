# SPDX-License-Identifier: Apache-2.0
"""Which versions a Python has. A peer in another environment needs no more than this for it."""

from __future__ import annotations

import importlib.metadata
import platform

MISSING = "not installed"


def version(package: str) -> str:
    """Of an installed package, or that it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def python() -> str:
    """This Python: its implementation and version."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def described(*packages: str, **more: str) -> str:
    """This Python, these packages if they are installed, and more that has a version, in a line."""
    named = {**more, **{package: version(package) for package in packages}}
    return ", ".join(
        [python(), *(f"{name} {number}" for name, number in named.items() if number != MISSING)]
    )
