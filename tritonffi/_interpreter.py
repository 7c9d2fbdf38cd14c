# SPDX-License-Identifier: Apache-2.0
"""Refuses subinterpreters: numpy, cffi and Triton are one for the process."""

from __future__ import annotations

import importlib


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
