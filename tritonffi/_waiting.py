# SPDX-License-Identifier: Apache-2.0
"""How Python threads wait in C, where they do not hold the GIL."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# Python runs signal handlers on the main thread, between two of its own steps. So that Ctrl-C works
# there, the main thread waits in C in slices of this length; other threads sleep until woken.
_SLICE_NS = 100_000_000
_FOREVER_NS = -1
# A wait longer than this (292 years) does not fit into 64 bits of nanoseconds.
_LONGEST_S = 9e9

#: For what is about to come.
GLANCE_NS = 1_000_000
#: For who has taken a completion: delivering it needs nothing but the GIL. Where that takes longer,
#: a signal handler or a finalizer has interrupted it, and may be the very one that waits.
PATIENCE_S = 0.1
#: After which that is looked into.
LONG_S = 1.0


def slice_ns(deadline: float | None) -> int:
    """How long to wait in C now, in nanoseconds; 0 where the deadline has passed."""
    if deadline is None:
        if threading.get_ident() == threading.main_thread().ident:
            return _SLICE_NS
        return _FOREVER_NS
    left = deadline - time.monotonic()
    if left <= 0:
        return 0
    nanoseconds = int(min(left, _LONGEST_S) * 1e9) + 1
    if threading.get_ident() == threading.main_thread().ident:
        return min(nanoseconds, _SLICE_NS)
    return nanoseconds


def seconds_left(deadline: float | None) -> float | None:
    """How long until a deadline, in seconds; 0 where it has passed, None where there is none."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def is_within(method: Callable[..., object], owner: object) -> bool:
    """Say whether this thread is in a method of `owner`, and the caller has interrupted it there.

    Signal handlers, and finalizers that the garbage collector runs, come between any two steps.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (there is no other way to see it)
    code = method.__code__
    while frame is not None:
        if frame.f_code is code and frame.f_locals["self"] is owner:
            return True
        frame = frame.f_back
    return False
