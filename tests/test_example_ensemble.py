# SPDX-License-Identifier: Apache-2.0
"""The ensemble of functions and a model of Triton's python backend, or what it says without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tritonffi import _fetch
from tritonffi import _python_backend as backend

if TYPE_CHECKING:
    from tritonffi._library import Library

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_three_models_answer_as_one(library: Library, tmp_path: Path) -> None:
    """Where the python backend cannot run, the error says what mends that."""
    environment = os.environ | {"TRITONFFI_LIBRARY": str(library.path)}
    problem = None
    if library.stubs is not None:
        problem = backend.examine(library.path, library.stubs).problem
    if problem is not None and "numpy" in problem and _fetch.packages_problem() is None:
        # As `tritonffi get-server --with-python-backend` does it.
        server = tmp_path / "tritonffi" / "server" / _fetch.default_directory().name
        _fetch.get_packages(server, quiet=True)
        environment["XDG_DATA_HOME"] = str(tmp_path)
        problem = None
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "ensemble.py"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    if problem is None:
        assert done.stderr == ""
        assert done.stdout == (
            "1 5 3 7 5 9: 4 values, rising, 7.0 at most\n"
            "9 8 9 5 4 1: 4 values, falling, 8.7 at most\n"
            "steps: parse, smooth, report\n"
            "model 'summary': in ensemble 'summary', model 'parse': ValueError: could not convert "
            "string to float: b'two'\n"
        )
        assert done.returncode == 0
    else:
        assert problem in done.stderr
        assert done.returncode == 1
