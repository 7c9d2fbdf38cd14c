# SPDX-License-Identifier: Apache-2.0
"""
Refuses where nothing would work: a subinterpreter, and a folder of source without the extension.

numpy, cffi and Triton are one for the process.
"""

from __future__ import annotations

import importlib
from pathlib import Path


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13; before
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return bool(module.get_current() == module.get_main())
    return True


if not _is_main():
    raise ImportError(
        "tritonffi does not work in a subinterpreter: import it in the main one (with mod_wsgi: "
        "WSGIApplicationGroup %{GLOBAL})"
    )

try:
    importlib.import_module("tritonffi._native")
except ModuleNotFoundError as error:
    if error.name != "tritonffi._native":
        raise
    raise ImportError(
        f"{Path(__file__).parent} is source without the extension that is built from it, and "
        "Python looks there first: start it in another folder, or install with 'pip install -e .'"
    ) from None
