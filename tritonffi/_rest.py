# SPDX-License-Identifier: Apache-2.0
"""Models are let go only when Triton's threads are at rest.

Triton destroys a model on another thread as soon as the last reference to it is dropped, often that
of its last request. Destroying an instance reads a list of the instance's own thread, which that
thread still writes to for some microseconds after it has answered, without a lock
(``TritonBackendThread`` in core's ``backend_model_instance.cc``). On a busy machine an unload, a
reload or a close right after an inference, a load or a warm-up is a crash.

So whoever makes Triton let a model go holds one reference more: a request that is never submitted
pins its model. It is deleted when what was in flight is over and the threads have gone to sleep.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tritonffi._call import encode_name, keep, take_error
from tritonffi._limits import check_threads
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from tritonffi._functions import FunctionModel
    from tritonffi._inference import Inference
    from tritonffi._native import CData

# What inferences of other models may have asked of this one: those of ensembles, above all.
_OTHERS_S = 1.0
# What a thread may run for before it counts as one that never rests, of a library for linear
# algebra say, in the system's ticks of 10 ms; and how long one is waited for that gets no turn.
_TICKS = 1
_TASKS = "/proc/self/task"
_LONGEST = 4096  # bytes of what it tells of a thread, of which one line has some hundreds
_REST_S = 0.5
_POLL_S = 0.0005
# How long is waited instead where nobody tells what runs: a hundred times what a thread needs.
_BLIND_S = 0.005


@contextmanager
def held(
    handle: CData,
    versions: Iterable[tuple[str, int]],
    inferences: Callable[[], list[Inference]],
    functions: Collection[FunctionModel],
    patience: float,
) -> Iterator[None]:
    """Hold models while Triton is told to let them go, and until that is safe.

    Args:
        handle: The open ``TRITONSERVER_Server *``.
        versions: Names and versions; those that are not loaded are passed over.
        inferences: Returns what is in flight.
        functions: Callables behind these models.
        patience: Seconds after Triton was told, after which they are let go in any case.

    Raises:
        UnavailableError: The process can start no more threads, of which Triton needs one for each
            model that it lets go: it would end the process.

    C: ``TRITONSERVER_InferenceRequestNew``, ``TRITONSERVER_InferenceRequestDelete``
    """
    versions = list(versions)
    pins: list[CData] = []
    if versions:
        names = ", ".join(sorted({repr(name) for name, _ in versions}))
        check_threads(1 + len(versions), f"model {names}: it cannot be let go, as")
    try:
        for name, version in versions:
            pin = ffi.new("struct TRITONSERVER_InferenceRequest **")
            pins.append(pin)  # before it is made: a signal handler may raise right after
            error = lib.TRITONSERVER_InferenceRequestNew(pin, handle, encode_name(name), version)
            if error:
                take_error(error)
        yield
        if any(pin[0] for pin in pins):
            deadline = time.monotonic() + patience
            _wait_over({name for name, _ in versions}, inferences(), functions, deadline)
            _wait_rest()
    finally:
        try:
            _delete(pins)
        except BaseException:  # a signal handler has raised
            _delete(pins)
            raise


def _delete(pins: list[CData]) -> None:
    while pins:
        pin = pins[-1][0]
        # No call between this and the next, after which a signal handler could raise.
        del pins[-1]
        error = lib.TRITONSERVER_InferenceRequestDelete(pin) if pin else None
        if error:
            take_error(error)


def _wait_over(
    names: set[str],
    inferences: list[Inference],
    functions: Iterable[FunctionModel],
    deadline: float,
) -> None:
    """Wait until Triton is through with inferences.

    Not for long with those of other models, nor with those that it may keep for ever, which their
    answers tell. So these are taken here: it may be that nobody waits for them.
    """
    others = min(deadline, time.monotonic() + _OTHERS_S)
    for inference in inferences:
        while not inference.is_through():
            inference.queue.drain_beside()
            is_ours = inference.model_name in names and not inference.is_answered
            if time.monotonic() >= (deadline if is_ours else others):
                break
            time.sleep(_POLL_S)
    while any(function.is_executing() for function in functions) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _wait_rest() -> None:
    """Wait until Triton's threads are at rest, also where the system does not tell what they do.

    No descriptor may be left, or there is no /proc. Triton was told by then, so this must not fail.
    """
    try:
        _wait_asleep()
    except OSError as error:
        if error.errno is None:  # not the system's: what a signal handler raises, as a TimeoutError
            raise
        time.sleep(_BLIND_S)


def _wait_asleep() -> None:
    """Wait until all threads that run now, but Python's, have slept, or run for long enough.

    On a busy machine one may be about to run for longer than it then does.

    Raises:
        OSError: The system does not tell.
    """
    until = time.monotonic() + _REST_S
    begun = _running(_threads())
    while begun and time.monotonic() < until:
        time.sleep(_POLL_S)
        # Of the others none counts, and there may be hundreds.
        running = _running(begun)
        begun = {
            thread: ticks
            for thread, ticks in begun.items()
            if thread in running and running[thread] - ticks <= _TICKS
        }


def _threads() -> set[int]:
    """Return all threads but Python's."""
    pythons = {thread.native_id for thread in threading.enumerate()}
    # Not by scandir, which warns where a signal handler raises before its end.
    return set(map(int, os.listdir(_TASKS))) - pythons  # noqa: PTH208


def _running(threads: Iterable[int]) -> dict[int, int]:
    """Return which threads run or could, and for how long they have in ticks."""
    found = {}
    for number in threads:
        # Each model has several threads: a Path would take longer than the rest.
        opened: list[int] = []
        try:
            keep(opened, os.open, f"{_TASKS}/{number}/stat", os.O_RDONLY)
            text = os.read(opened[0], _LONGEST)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        finally:
            for descriptor in opened:
                os.close(descriptor)
        state, ticks = _read(text)
        if state == b"R":
            found[number] = ticks
    return found


def _read(text: bytes) -> tuple[bytes, int]:
    """Read a thread's state and ticks, behind its name in parentheses, which may hold any."""
    state, *numbers = text[text.rindex(b")") + 2 :].split()
    return state, int(numbers[10]) + int(numbers[11])
