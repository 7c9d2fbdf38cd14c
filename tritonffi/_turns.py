# SPDX-License-Identifier: Apache-2.0
"""Loads and unloads of one model, one after the other."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tritonffi._call import keep
from tritonffi._errors import InternalError, UnavailableError
from tritonffi._functions import is_own_call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tritonffi._lifecycle import Lifecycle
    from tritonffi._python_backend import StubWatch

_SLICE_S = 0.1
NEVER = float("inf")


@contextmanager
def turn(lifecycle: Lifecycle, name: str, deadline: float = NEVER) -> Iterator[None]:
    """Have loads and unloads of one model one after the other.

    Each holds what it makes Triton let go (`_rest` says why), and can hold only what it knows of.
    Whoever waits here is no user of the server, so that its close does not wait for them.

    Args:
        lifecycle: The server's.
        name: The model's name.
        deadline: On the clock of ``time.monotonic``.

    Raises:
        TimeoutError: The deadline has passed.
        ClosedError: The server was closed meanwhile.
        InternalError: A load of the model will never be over.
        UnavailableError: The waiting would be for the very callable that waits.
    """
    lock = lifecycle.turns.setdefault(name, threading.RLock())
    taken: list[bool] = []
    try:
        while True not in taken:
            keep(taken, lock.acquire, True, _SLICE_S)
            if not taken[-1]:
                _check_wait(lifecycle, name, deadline)
        yield
    finally:
        if True in taken:
            lock.release()


def check_lost(lifecycle: Lifecycle, name: str, besides: StubWatch | None = None) -> None:
    """Raise where Triton loads a model for ever, by itself or as a part of one.

    Args:
        lifecycle: The server's.
        name: The model's.
        besides: As of `LoadedModels.lost_models`.
    """
    if name in lifecycle.lost_models(besides):
        raise InternalError(
            f"model {name!r}: its python process has died in a load, which Triton never ends; "
            "only another server can load it"
        )


def _check_wait(lifecycle: Lifecycle, name: str, deadline: float) -> None:
    """Raise where a turn of the model is not to be waited for any longer."""
    if lifecycle.is_closed:
        raise lifecycle.refusal()
    if is_own_call(name):
        raise UnavailableError(
            f"model {name!r}: it is being loaded or unloaded, which may wait for this very call"
        )
    check_lost(lifecycle, name)
    if time.monotonic() >= deadline:
        raise TimeoutError(f"model {name!r}: other loads and unloads of it are not over")
