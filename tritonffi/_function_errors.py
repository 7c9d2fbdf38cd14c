# SPDX-License-Identifier: Apache-2.0
"""
What a function model tells of an exception, and what is left of one.

The exception is anything that somebody else's code raises: no part of it is taken on trust.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import gc
import inspect
import sys
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING

from tritonffi._errors import InternalError, TritonError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_MAX_INT32 = 2**31 - 1
_GROUPS = tuple(vars(builtins)[n] for n in ("BaseExceptionGroup",) if n in vars(builtins))
_SUSPENDABLES = (GeneratorType, CoroutineType, AsyncGeneratorType)
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def persist(work: Callable[[], bool]) -> None:
    """
    Do a thread's work until there is no more, whatever is raised.

    Another thread may throw something into this one anywhere, also where what has just been raised
    is dealt with. So `work` must be able to go on from wherever it was left, and is tried twice
    over: who has just caught something is no longer inside his own `try`.

    Args:
        work: Returns whether there is nothing more to do.
    """
    while True:
        try:
            while not _is_done(work):
                pass
            return  # noqa: TRY300 -- after it one would be outside
        except BaseException:  # noqa: BLE001, PERF203, S110
            pass


def _is_done(work: Callable[[], bool]) -> bool:
    try:
        return work()
    except BaseException:  # noqa: BLE001
        return False


def error_text(error: BaseException, model_name: str) -> str:
    """Return the class and the words of an exception, without the model that is named already."""
    try:
        words = str(error).removeprefix(f"model {model_name!r}: ")
        return f"{type(error).__name__}: {words}".removesuffix(": ")
    except BaseException:  # noqa: BLE001 -- an exception that has no text is one all the same
        return type(error).__name__


def error_code(error: BaseException) -> int:
    """Return the C code that an exception is answered with."""
    if not issubclass(type(error), TritonError):
        return InternalError.code
    try:
        code = error.code  # type: ignore[attr-defined]
        return int(code) if 0 <= code <= _MAX_INT32 else InternalError.code
    except BaseException:  # noqa: BLE001 -- a class of somebody's may say anything, or fail
        return InternalError.code


def forget_arrays(error: BaseException) -> None:
    """
    Clear the frames of tracebacks, so that who keeps the exception keeps no batch with it.

    Generators and coroutines that may go on keep theirs: to clear the frame would close them, and
    they need not belong to the call that has failed.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        at = one.__traceback__
        while at is not None:
            _clear(at.tb_frame)
            at = at.tb_next
        left += [one.__cause__, one.__context__]
        if issubclass(type(one), _GROUPS):
            left += one.exceptions  # type: ignore[attr-defined]


def _clear(frame: FrameType) -> None:
    if frame.f_code.co_flags & _SUSPENDABLE and _may_go_on(frame):
        return
    with contextlib.suppress(RuntimeError):  # it is running
        frame.clear()


def _may_go_on(frame: FrameType) -> bool:
    """Return whether a frame is of a generator or coroutine that is not at its end."""
    if sys.version_info < (3, 11):  # who has it is found by looking at everything, which takes long
        return any(type(one) in _SUSPENDABLES for one in gc.get_referrers(frame))
    generator_of, let_go = _c_functions()
    generator = generator_of(frame)
    if generator is None:  # at its end it has let go of the frame
        return False
    let_go(generator)
    return True


@functools.cache
def _c_functions() -> tuple[Callable[[object], int | None], Callable[[int], None]]:
    """Return the function that gives who has a frame, which only C tells, and that to drop it."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)
    drop = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
    return get(("PyFrame_GetGenerator", ctypes.pythonapi)), drop(("Py_DecRef", ctypes.pythonapi))
