# SPDX-License-Identifier: Apache-2.0
"""Who is in the middle of a call of a server, which must not be deleted meanwhile.

A call holds a lock in a ``with`` block. It is a plain lock, for nothing comes between the taking
and the block, nor between the block and the release. A context manager written in Python would have
steps of its own there, and what a signal handler raised in them would leave the call counted.
"""

from __future__ import annotations

import threading


class Users:
    """The threads that are in the middle of a call."""

    def __init__(self) -> None:
        # By thread, since a handler of signals must tell the calls that it interrupts from others;
        # several, since a call may be made inside another one.
        self._locks: dict[int, list[threading.Lock]] = {}

    def lock(self) -> threading.Lock:
        """Return what a call of this thread holds, in a ``with`` block."""
        locks = self._locks.setdefault(threading.get_ident(), [])
        for lock in locks:
            if not lock.locked():
                return lock
        locks.append(threading.Lock())
        return locks[-1]

    def threads(self) -> set[int]:
        """Return the threads that hold one."""
        return {
            thread
            for thread, locks in list(self._locks.items())
            if any(lock.locked() for lock in list(locks))
        }
