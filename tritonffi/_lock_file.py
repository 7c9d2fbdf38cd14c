# SPDX-License-Identifier: Apache-2.0
"""Files by which processes lock each other out. A signal handler may raise at any step."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from tritonffi._call import keep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def take(opened: list[int], lock: Path, tell: Callable[[], None]) -> None:
    """
    Take the lock in the file `lock`, which is made as are the folders above it.

    Args:
        opened: Gets the descriptors, whatever is raised; they are for `release`. The last one has
            the lock.
        lock: The file.
        tell: Called before a wait for another process.
    """
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            keep(opened, os.open, lock, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            if lock.parent.is_dir():  # which takes no files, as /proc
                raise
            continue  # another, that failed, has removed the folders that it had made
        try:
            fcntl.flock(opened[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell()
            fcntl.flock(opened[-1], fcntl.LOCK_EX)
        if _is_at(opened[-1], lock):
            return


def _is_at(descriptor: int, path: Path) -> bool:
    """Say whether it is this open file that is at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def release(opened: list[int], lock: Path) -> None:
    """Remove the lock's file, if the lock is ours, and drop it."""
    # In this order: who waits for it sees that its file is gone, and begins anew.
    with contextlib.suppress(OSError):
        if opened and _is_at(opened[-1], lock):
            fcntl.flock(opened[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)  # no error: it is ours
            lock.unlink()
    while opened:
        descriptor = opened[-1]
        # No call between this and the next, after which a signal handler could raise.
        del opened[-1]
        os.close(descriptor)
