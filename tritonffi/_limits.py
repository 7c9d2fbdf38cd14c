# SPDX-License-Identifier: Apache-2.0
"""Limits of the system that are reached: what is told of them, and what can be done."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tritonffi._errors import UnavailableError
from tritonffi._native import lib

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_DESCRIPTOR = (
    "This process may open no more files: raise its limit (ulimit -n), or close what it has open"
)
_NO_ROOM = "Make room there, or have TMPDIR name another place before the server starts"
_HINTS = {
    errno.EMFILE: _NO_DESCRIPTOR,
    errno.ENFILE: "The system has too many files open (fs.file-max)",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
}


@contextmanager
def named(what: str) -> Iterator[None]:
    """Raise what the system has no room for as an error that says for what, and what to do.

    Args:
        what: The model or server.

    Raises:
        UnavailableError: No file can be opened, or written.
    """
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0)
        if hint is None:
            raise
        place = "" if error.filename is None else f": {os.fsdecode(error.filename)!r}"
        raise UnavailableError(f"{what}: {error.strerror}{place}. {hint}") from error


def check_threads(count: int, beginning: str) -> None:
    """Raise where Triton could not start its threads, which would end the process.

    Args:
        count: How many it starts at least.
        beginning: Of the message: the model or server, and what cannot be done.

    Raises:
        UnavailableError: So many cannot be started.
    """
    if not lib.tffi_can_start_threads(count):
        raise UnavailableError(
            f"{beginning} this process can start no more threads, of which Triton needs {count}: "
            "it is at a limit for threads (ulimit -u), or for memory (ulimit -v)"
        )


def hint() -> str | None:
    """Say what to do where no file can be opened, which Triton does not tell of; None: one can."""
    try:
        os.listdir(os.sep)  # noqa: PTH208 (in one step, in which nothing can be left open)
    except OSError as error:
        return _HINTS.get(error.errno or 0)
    return None
