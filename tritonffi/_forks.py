# SPDX-License-Identifier: Apache-2.0
"""
How often this process is a fork of one that had the package.

A child has one thread alone, that which forked. Where that is one of ours, it may be in the midst
of work that is the parent's to end: it keeps the number from its beginning, and leaves as soon as
that is another one.
"""

from __future__ import annotations

import os


class Forks:
    """
    The number of forks that lie between the first process and this one.

    Attributes:
        count: That number, of those since the import.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Count one more; in the child."""
        self.count += 1


forks = Forks()
os.register_at_fork(after_in_child=forks.add)
