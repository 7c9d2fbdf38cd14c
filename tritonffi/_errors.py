# SPDX-License-Identifier: Apache-2.0
"""
The exceptions, one for each error code of the C API.

::

    Exception
      TritonError                  what Triton or tritonffi refuses; `code` is the C code
        UnknownError
        InternalError              also a RuntimeError
        NotFoundError              also a LookupError
        InvalidArgumentError       also a ValueError
        UnavailableError
          QueueFullError           the model's queue takes no more, or a reader is too slow
        UnsupportedError           also a NotImplementedError
        AlreadyExistsError
        CancelledError
        ClosedError                ours: used after close, or in a forked child
        LibraryNotFoundError       ours, also an ImportError: no libtritonserver to load

A new code of the C API is one class here, with its code in the decorator.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, TypeVar

import tritonffi._interpreter  # noqa: F401  refuses where nothing of this would work
from tritonffi._native import lib

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class TritonError(Exception):
    """What Triton or tritonffi refuses; the base of all exceptions here.

    C: ``TRITONSERVER_Error``
    """

    code: int = lib.TRITONSERVER_ERROR_UNKNOWN


# How Triton says that a queue is at the ``max_queue_size`` of its policy.
_QUEUE_IS_FULL = "Exceeds maximum queue size"
# How csrc/function.c says it to those who wait for a callable that does not end. Where a callable
# has raised the like, about another server perhaps, the name of its exception comes before it.
_WAS_CLOSED = re.compile(
    r"(\[request id: [^]]*\] )?(in ensemble '[^']*', )*model '[^']*': "
    "the server was closed before its function answered"
)

_by_code: dict[int, type[TritonError]] = {}
AnyError = TypeVar("AnyError", bound=TritonError)
_Class = TypeVar("_Class", bound=type[TritonError])


def _for_code(code: int) -> Callable[[_Class], _Class]:
    """Make a class the one that is raised for a C code."""

    def register(cls: _Class) -> _Class:
        if code in _by_code:
            msg = f"{cls.__name__} and {_by_code[code].__name__} both claim error code {code}"
            raise AssertionError(msg)
        cls.code = code
        _by_code[code] = cls
        return cls

    return register


@_for_code(lib.TRITONSERVER_ERROR_UNKNOWN)
class UnknownError(TritonError):
    """An error of no particular kind.

    C: ``TRITONSERVER_ERROR_UNKNOWN``
    """


@_for_code(lib.TRITONSERVER_ERROR_INTERNAL)
class InternalError(TritonError, RuntimeError):
    """Something went wrong inside Triton, a backend or a model.

    C: ``TRITONSERVER_ERROR_INTERNAL``
    """


@_for_code(lib.TRITONSERVER_ERROR_NOT_FOUND)
class NotFoundError(TritonError, LookupError):
    """There is no model, version, repository or parameter of that name.

    C: ``TRITONSERVER_ERROR_NOT_FOUND``
    """


@_for_code(lib.TRITONSERVER_ERROR_INVALID_ARG)
class InvalidArgumentError(TritonError, ValueError):
    """An argument, an input or a configuration does not fit.

    C: ``TRITONSERVER_ERROR_INVALID_ARG``
    """


@_for_code(lib.TRITONSERVER_ERROR_UNAVAILABLE)
class UnavailableError(TritonError):
    """The server or model cannot do this now: it is loading, stopping, or its queue is full.

    C: ``TRITONSERVER_ERROR_UNAVAILABLE``
    """


class QueueFullError(UnavailableError):
    """The model's queue is at its ``max_queue_size``, or a stream at its ``max_pending``.

    Try again later, with fewer in flight. Triton has no code for it: its text tells it apart.
    """


@_for_code(lib.TRITONSERVER_ERROR_UNSUPPORTED)
class UnsupportedError(TritonError, NotImplementedError):
    """This library, model or mode has no such function.

    C: ``TRITONSERVER_ERROR_UNSUPPORTED``
    """


@_for_code(lib.TRITONSERVER_ERROR_ALREADY_EXISTS)
class AlreadyExistsError(TritonError):
    """What should be made is there already.

    C: ``TRITONSERVER_ERROR_ALREADY_EXISTS``
    """


@_for_code(lib.TRITONSERVER_ERROR_CANCELLED)
class CancelledError(TritonError):
    """The inference was cancelled.

    C: ``TRITONSERVER_ERROR_CANCELLED``
    """


class ClosedError(TritonError):
    """The server, model or inference was closed, or belongs to the parent of this process."""

    code = lib.TRITONSERVER_ERROR_UNAVAILABLE


class LibraryNotFoundError(TritonError, ImportError):
    """No libtritonserver could be loaded; the message lists every place looked at."""

    code = lib.TRITONSERVER_ERROR_NOT_FOUND


def error_from_code(code: int, message: str) -> TritonError:
    """Make the exception for a C code; a code of a newer library becomes an UnknownError."""
    cls = _by_code.get(code, UnknownError)
    if cls is UnavailableError and _QUEUE_IS_FULL in message:
        cls = QueueFullError
    elif cls is UnavailableError and _WAS_CLOSED.fullmatch(message):
        cls = ClosedError
    # Queues cancel without a word, and an exception without one helps nobody.
    error = cls(message or (cls.__doc__ or "").partition("\n")[0].rstrip("."))
    error.code = code
    return error


def anew(error: AnyError) -> AnyError:
    """Make an exception like one that is kept, to be raised in its place.

    By its traceback an exception holds the frames that it has passed, with all that they hold, such
    as the inputs. Where those hold the exception, too, nothing but the garbage collector ends that.
    So what is kept is never raised itself.
    """
    made = copy.copy(error)
    made.__cause__ = error.__cause__
    made.__suppress_context__ = error.__suppress_context__
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        made.__notes__ = list(notes)
    return made


def note(error: BaseException, words: str) -> None:
    """Add to an exception of somebody else's where it came, as far as Python can."""
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(words)


def counted(number: int, thing: str) -> str:
    """Write a number of things: ``1 part``, ``2 parts``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def check_keywords(given: Iterable[str], known: Collection[str], what: str) -> None:
    """
    Refuse keywords that there are not, in words of the call that was made.

    Args:
        given: Those of the call.
        known: Those that there are.
        what: What was called, for the message.

    Raises:
        TypeError: One is unknown; the message has the known one that is most like it.
    """
    for name in given:
        if name not in known:
            import difflib  # noqa: PLC0415  for this alone

            alike = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {alike[0]!r}?" if alike else ""
            raise TypeError(f"{what}: there is no keyword {name!r}{hint}")
