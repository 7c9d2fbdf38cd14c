# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own."""

from __future__ import annotations

import subprocess
import sys


def printed(script, *arguments, options=()):
    """Run a script in a new Python, which ends in time, silently and with 0; return its lines."""
    done = subprocess.run(
        [sys.executable, *options, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
