# SPDX-License-Identifier: Apache-2.0
"""The examples without a model file print just what they should, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tritonffi._library import Library

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(library: Library, name: str, *arguments: str) -> str:
    """Runs an example as a user does; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


MODEL = """\
The server is live: True, ready: True
The model is ready: True
  INPUT0 INT32 [-1, 4]
  INPUT1 INT32 [-1, 4]
  OUTPUT0 INT32 [-1, 4]
  OUTPUT1 INT32 [-1, 4]
"""


def test_the_raw_api_makes_one_request_and_uses_it_five_times(library: Library) -> None:
    """With changed values, memory, inputs, outputs and batch size."""
    first, _, rest = run(library, "simple_capi.py").partition("\n")
    assert re.fullmatch(r"Triton's API is 1\.\d+", first)
    assert rest == MODEL + (
        "Request 'my request': flags 1, correlation id 5, priority 0, timeout 5000000 us\n"
        "First:\n"
        "  OUTPUT0 = [[1, 2, 3, 4]]\n"
        "  OUTPUT1 = [[-1, 0, 1, 2]]\n"
        "Other values in the same memory:\n"
        "  OUTPUT0 = [[28, 2, 3, 4]]\n"
        "  OUTPUT1 = [[26, 0, 1, 2]]\n"
        "Other memory for INPUT0:\n"
        "  OUTPUT0 = [[2, 2, 2, 2]]\n"
        "  OUTPUT1 = [[0, 0, 0, 0]]\n"
        "Another INPUT1, one output:\n"
        "  OUTPUT1 = [[-26, 0, -1, -2]]\n"
        "A batch of three, all outputs:\n"
        "  OUTPUT0 = [[54, 2, 4, 6], [108, 4, 8, 12], [162, 6, 12, 18]]\n"
        "  OUTPUT1 = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]\n"
    )


def test_the_high_level_api_does_the_same(library: Library) -> None:
    """In half the lines."""
    assert run(library, "simple.py") == MODEL + (
        "First:\n"
        "  OUTPUT0 = [[1, 2, 3, 4]]\n"
        "  OUTPUT1 = [[-1, 0, 1, 2]]\n"
        "Response to 'my request':\n"
        "  OUTPUT0 = [[28, 2, 3, 4]]\n"
        "  OUTPUT1 = [[26, 0, 1, 2]]\n"
        "Other inputs, one output:\n"
        "  OUTPUT1 = [[-26, 0, -1, -2]]\n"
        "A batch of 1:\n"
        "  OUTPUT0 = [[54, 2, 4, 6]]\n"
        "  OUTPUT1 = [[0, 0, 0, 0]]\n"
        "A batch of 2:\n"
        "  OUTPUT0 = [[54, 2, 4, 6], [54, 2, 4, 6]]\n"
        "  OUTPUT1 = [[0, 0, 0, 0], [0, 0, 0, 0]]\n"
        "A batch of 3:\n"
        "  OUTPUT0 = [[54, 2, 4, 6], [54, 2, 4, 6], [54, 2, 4, 6]]\n"
        "  OUTPUT1 = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]\n"
    )


@pytest.mark.parametrize(("servers", "rounds"), [(1, 1), (3, 2)])
def test_threads_start_use_and_close_servers_of_their_own(
    library: Library, servers: int, rounds: int
) -> None:
    """Each gets its own numbers, in every round."""
    text = run(library, "multi_server.py", f"--servers={servers}", f"--rounds={rounds}")
    assert text.splitlines() == [
        f"server {number}, round {turn}: 50 results, the last is "
        f"{[number * value for value in range(49, 54)]}; ready after the unload: False"
        for number in range(1, servers + 1)
        for turn in range(1, rounds + 1)
    ]


def test_text_comes_word_by_word(library: Library) -> None:
    """One continuation whole, the beginning of an endless one, and five at the same time."""
    assert run(library, "text_stream.py") == (
        'the Work includes a "NOTICE" text file as part of its distribution, then any Derivative '
        "Works of, publicly display, publicly perform, sublicense, and distribute the Work and "
        "reproducing the content of the\n\n"
        'the Work includes a "NOTICE" text file ...\n\n'
        "the Work by You to the terms and conditions of\n"
        "the Work and reproducing the content of the Work and\n"
        "the Work and for which the editorial revisions, annotations, elaborations,\n"
        "the Work constitutes direct or contributory patent infringement, then any\n"
        "the Work constitutes direct or contributory patent infringement, then any\n"
    )


def test_a_text_that_ends_early_is_a_short_stream(library: Library, tmp_path: Path) -> None:
    """Where no word follows, the generator returns, and so does the stream."""
    path = tmp_path / "words"
    path.write_text("one two three four")
    assert run(library, "text_stream.py", str(path), "--prompt=two") == (
        "two three four\n\ntwo three four ...\n\n" + "two three four\n" * 5
    )
