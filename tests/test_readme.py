# SPDX-License-Identifier: Apache-2.0
"""What the README shows and says holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import tritonffi

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_first_example_runs(library):
    """As it stands there, in a process of its own."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
    )
    assert done.stdout == "[[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]\n"
    assert done.stderr == ""


def test_ci_runs_the_command_that_the_readme_gives():
    """Word for word, so that it cannot rot."""
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = next(line for line in README.splitlines() if line.startswith("pip install -e"))
    for command in commands.split("#")[0].strip().split(" && "):
        assert command in ci


def test_the_methods_that_the_readme_lists_are_there():
    """Every name in the table is an attribute of its class."""
    table = dict(re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", README, re.MULTILINE))
    for name in ("Server", "Model", "Inference"):
        methods = re.findall(r"`(\w+)`", table[name])
        assert methods
        for method in methods:
            assert hasattr(getattr(tritonffi, name), method), (name, method)
