# SPDX-License-Identifier: Apache-2.0
"""
Whether this process is a fork of the one in which something began.

A child has one thread alone, that which forked. Where that is one of ours, it may be in the midst
of work that is the parent's to end: it leaves as soon as it sees that.
"""

from __future__ import annotations

import os


class Origin:
    """The process in which it is made."""

    __slots__ = ("_forks",)

    #: That lie between the first process, as of the import, and this one.
    _count = 0

    def __init__(self) -> None:
        self._forks = Origin._count

    def is_left(self) -> bool:
        """Return whether this is a forked child of that process."""
        return Origin._count != self._forks

    @classmethod
    def add_fork(cls) -> None:
        """Count one more; in the child."""
        cls._count += 1


os.register_at_fork(after_in_child=Origin.add_fork)
