# SPDX-License-Identifier: Apache-2.0
"""
How C is called: errors, texts, out-parameters, messages, scoped handles, calls that take long.

Everything here is about the calling convention that the C functions share. Two small C types that
only travel between calls live here too: messages (JSON) and parameters.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Union, cast

from tritonffi._errors import InvalidArgumentError, TritonError, error_from_code
from tritonffi._native import ffi, lib
from tritonffi._numbers import plain, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# A value of cffi. Whatever takes one comes from `lib`, so nothing more needs to be known of it.
CData: TypeAlias = object
CFunction: TypeAlias = "Callable[..., CData]"

JSON: TypeAlias = Union["dict[str, JSON]", "list[JSON]", str, int, float, bool, None]

ParameterValue: TypeAlias = str | bytes | bool | int | float

T = TypeVar("T")

_SLICE_S = 0.1
# What is no number of seconds any more, but infinity is.
_LONGEST_S = sys.float_info.max
_FOREVER_S = float("inf")
# Where in Triton's source, on the machine that built it, some of its errors say that they began.
_SOURCE = r"^/\S+\.(?:h|cc) \d+: "


def take_error(error: CData, context: str = "") -> TritonError:
    """
    Turn an error object into an exception, and delete it.

    Args:
        error: An error object that this process owns; not NULL.
        context: What was being done; it goes in front of Triton's words, unless they begin so.
    """
    try:
        code: int = lib.TRITONSERVER_ErrorCode(error)
        message = re.sub(_SOURCE, "", string(lib.TRITONSERVER_ErrorMessage(error))).rstrip("\n")
    finally:
        lib.TRITONSERVER_ErrorDelete(error)
    exception = error_from_code(code, message)
    if context and not message.startswith(context):
        exception.args = (f"{context}: {exception}",)
    return exception


def check(error: CData, context: str = "") -> None:
    """
    Raise what a C function returned, unless that is NULL, which means success.

    Args:
        error: The function's result; it is deleted here.
        context: What was being done; it goes in front of Triton's words.

    Raises:
        TritonError: The class that belongs to the error's code.
    """
    if error:
        raise take_error(error, context)


def keep(results: list[T], function: Callable[..., T], *arguments: object) -> None:
    """
    Call a function of C, and put what it returns into a list in the same step of Python.

    A signal handler may raise as soon as a call has returned, before its result is anywhere: a lock
    that it took would be taken for ever, and what it made would be lost. The caller has the list
    outside of a ``try``, and looks in its ``finally`` what is in there.

    Args:
        results: Gets the result.
        function: One that is written in C, or it would have steps of its own.
        arguments: What it takes.
    """
    results.extend(map(function, *[(argument,) for argument in arguments]))


def string(pointer: CData) -> str:
    """Copy a C string; NULL is empty, and bytes that are not UTF-8 are shown as escapes."""
    text: bytes = ffi.string(pointer) if pointer else b""
    return text.decode("utf-8", "backslashreplace")


def plain_text(text: str, what: str) -> str:
    """
    Return a text as a str of no class of its own, such as that of an enum.

    Of another one Python makes paths, and texts in braces, with its own ``__str__``, while Triton
    is told what it holds.

    Raises:
        TypeError: It is not a str. The message names `what`.
    """
    if type(text) is str:
        return text
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    return str.__str__(text)


def plain_path(path: str | os.PathLike[str]) -> str:
    """Return a path as a str of no class of its own; see `plain_text`."""
    return str.__str__(os.fsdecode(path))


def encode(text: str, what: str, *, errors: str = "strict") -> bytes:
    """
    Make a C string of a str.

    C would read past neither: a NUL inside ends the text, and other types have no text.

    Raises:
        TypeError: It is not a str. The message names `what`.
        ValueError: It contains NUL, or cannot be UTF-8.
    """
    if type(text) is not str:
        text = plain_text(text, what)
    if "\0" in text:
        raise ValueError(f"{what} must not contain NUL: {text!r}")
    try:
        return text.encode(errors=errors)
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} cannot be written as UTF-8: {text!r}") from error


def check_duration(seconds: object, what: str) -> None:
    """
    Refuse what is no number of seconds; None is as long as it takes.

    Raises:
        TypeError: It is not a number.
        InvalidArgumentError: It is negative, or not a number by name.
    """
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= _LONGEST_S and seconds != _FOREVER_S:  # NaN neither
        raise InvalidArgumentError(f"{what} must be a number of seconds, not {seconds!r}")


def encode_name(name: str) -> bytes:
    """
    Make a C string of a model's name, also of one that Triton gave and that is not UTF-8.

    Raises:
        TypeError: It is not a str.
        ValueError: It contains NUL, or is no text that came of bytes.
    """
    return encode(name, "a model name", errors="surrogateescape")


def encode_path(path: str | os.PathLike[str], what: str) -> bytes:
    """
    Make a C string of a path, in the encoding of the file system.

    Raises:
        TypeError: It is neither a str nor a path. The message names `what`.
        ValueError: It contains NUL.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{what} must be a str or a path, not {type(path).__name__}")
    encoded = os.fsencode(plain_path(path))
    if b"\0" in encoded:
        raise ValueError(f"{what} must not contain NUL: {os.fspath(path)!r}")
    return encoded


def expanded(path: str | os.PathLike[str], error: type[Exception], what: str = "") -> Path:
    """
    Return a path with the home folder in the place of a ``~`` at its beginning.

    Args:
        path: Whatever the user gave.
        error: What is raised where there is no such home: Python's own words do not say whose.
        what: Which argument it was, in front of the message.
    """
    try:
        return Path(plain_path(path)).expanduser()
    except RuntimeError:
        first = Path(plain_path(path)).parts[0]
        raise error(f"{what}{path}: no home folder is known for {first}") from None


def out_int(ctype: str, function: CFunction, *arguments: CData, context: str = "") -> int:
    """Call a function whose last parameter points at an integer to fill in."""
    slot = ffi.new(f"{ctype} *")
    check(function(*arguments, slot), context)
    return int(slot[0])


def out_bool(function: CFunction, *arguments: CData, context: str = "") -> bool:
    """Call a function whose last parameter points at a bool to fill in."""
    return bool(out_int("bool", function, *arguments, context=context))


def json_of(function: CFunction, *arguments: CData, context: str = "") -> JSON:
    """Call a function whose last parameter points at a message to fill in, and read its JSON."""
    message = ffi.new("struct TRITONSERVER_Message **")
    try:  # before it is made: a signal handler may raise right after
        check(function(*arguments, message), context)
        base = ffi.new("const char **")
        size = ffi.new("size_t *")
        check(lib.TRITONSERVER_MessageSerializeToJson(message[0], base, size), context)
        # The names of models are those of folders, which may be any bytes.
        text = ffi.buffer(base[0], size[0])[:].decode("utf-8", "surrogateescape")
        value: JSON = json.loads(text)
        return value
    finally:
        if message[0]:
            check(lib.TRITONSERVER_MessageDelete(message[0]), context)


def json_object(function: CFunction, *arguments: CData, context: str = "") -> dict[str, JSON]:
    """Do as `json_of`, where the JSON is an object."""
    value = json_of(function, *arguments, context=context)
    if not isinstance(value, dict):
        raise TypeError(f"{context or 'Triton'}: expected a JSON object, got {value!r}")
    return value


def json_list(function: CFunction, *arguments: CData, context: str = "") -> list[JSON]:
    """Do as `json_of`, where the JSON is an array."""
    value = json_of(function, *arguments, context=context)
    if not isinstance(value, list):
        raise TypeError(f"{context or 'Triton'}: expected a JSON array, got {value!r}")
    return value


@contextmanager
def owned(
    ctype: str, new: CFunction, delete: CFunction, *arguments: CData, context: str = ""
) -> Iterator[CData]:
    """
    Make a handle for the length of a `with` block.

    Args:
        ctype: The handle's type, such as ``struct TRITONSERVER_ServerOptions *``.
        new: Makes it; its first parameter points at the handle.
        delete: Takes it back.
        arguments: What `new` takes after the handle.
        context: What is being done, for errors.
    """
    slot = ffi.new(f"{ctype} *")
    try:  # before it is made: a signal handler may raise right after
        check(new(slot, *arguments), context)
        yield slot[0]
    finally:
        if slot[0]:
            check(delete(slot[0]), context)


@contextmanager
def parameters(values: Mapping[str, ParameterValue], what: str) -> Iterator[tuple[CData, int]]:
    """
    Make an array of parameters for the length of a `with` block.

    Args:
        values: By name. A bool stays a bool, integers have 64 bits, bytes are not copied.
        what: What the parameters are for, such as "model 'x'".

    Yields:
        The array and how many there are, as two arguments for a C function.
    """
    made: list[CData] = []
    try:
        for name, value in values.items():
            _add_parameter(made, name, value, what)
        yield ffi.new("const struct TRITONSERVER_Parameter *[]", made), len(made)
    finally:
        try:
            _delete_parameters(made)
        finally:  # where a signal handler has raised in the midst of it
            _delete_parameters(made)


def _delete_parameters(made: list[CData]) -> None:
    while made:
        last = made[-1]
        # No call between this and the next, after which a signal handler could raise.
        del made[-1]
        if last:
            lib.TRITONSERVER_ParameterDelete(last)


def _add_parameter(made: list[CData], name: str, value: ParameterValue, what: str) -> None:
    c_name = encode(name, f"{what}: the name of a parameter")
    what = f"{what}: parameter {name!r}"
    value = cast("ParameterValue", plain(value))
    if isinstance(value, bytes):
        # from_buffer and not a copy: `values` keeps the bytes alive for as long as this is used.
        new = lib.TRITONSERVER_ParameterBytesNew
        keep(made, new, c_name, ffi.from_buffer(value), len(value))
    elif isinstance(value, str):
        _keep_parameter(made, c_name, "STRING", ffi.new("char[]", encode(value, what)))
    elif isinstance(value, bool):
        _keep_parameter(made, c_name, "BOOL", ffi.new("bool *", value))
    elif isinstance(value, int):
        try:
            number = ffi.new("int64_t *", value)
        except OverflowError:
            raise InvalidArgumentError(
                f"{what} does not fit into 64 bits: {shown(value)}"
            ) from None
        _keep_parameter(made, c_name, "INT", number)
    elif isinstance(value, float):
        _keep_parameter(made, c_name, "DOUBLE", ffi.new("double *", value))
    else:
        kind = type(value).__name__
        raise TypeError(f"{what} must be a str, bytes, bool, int or float, not {kind}")
    if not made[-1]:
        raise InvalidArgumentError(f"{what} is refused by Triton: {value!r}")


def _keep_parameter(made: list[CData], name: bytes, kind: str, value: CData) -> None:
    ctype = getattr(lib, f"TRITONSERVER_PARAMETER_{kind}")
    keep(made, lib.TRITONSERVER_ParameterNew, name, ctype, value)


def interruptible(
    call: Callable[[], T],
    what: str,
    *,
    timeout: float | None = None,
    abandoned: Callable[[T], None] | None = None,
    watch: Callable[[], None] | None = None,
) -> T:
    """
    Make a call that blocks in C for long, so that Ctrl-C and `timeout` can end the waiting.

    A signal is only looked at between two steps of Python, and C takes one step. So the call runs
    on a thread of its own and the caller waits for that, which Python can interrupt. Without a
    timeout that matters only on the main thread; others make the call themselves.

    Args:
        call: Makes the call. It goes on to its end when the caller has left.
        what: What it does, such as "loading model 'x'".
        timeout: Seconds.
        abandoned: Gets the result if the caller has left before, on whichever thread is last.
        watch: Called now and then meanwhile; when it raises, the caller leaves with that.

    Raises:
        TimeoutError: The call was not over after `timeout` seconds.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if timeout is None and watch is None and not is_main:
        return call()
    errand = _Errand(call, abandoned)
    thread = threading.Thread(
        target=copy_context().run, args=(errand.run,), name=f"tritonffi: {what}", daemon=True
    )
    try:
        try:
            thread.start()
        except RuntimeError as error:
            if error.__context__ is not None:
                # A signal came while start() waited, and broke the bookkeeping of its Event.
                raise error.__context__ from None
            return call()  # the interpreter is going down and starts no threads any more
        if errand.wait(timeout, watch):
            thread.join()  # it has nothing left to do, and should not be seen any more
    except BaseException:
        errand.leave()
        raise
    if timeout is not None and not errand.is_over:
        errand.leave()
        raise TimeoutError(f"{what} is not over after {timeout:g} s")
    return errand.result()


class _Errand(Generic[T]):
    """A call on another thread. Either its caller gets the outcome, or `abandoned` does."""

    def __init__(self, call: Callable[[], T], abandoned: Callable[[T], None] | None) -> None:
        self.is_over = False
        # Released when the call is over. A bare lock, because a wait for an Event that a signal
        # interrupts may end with a RuntimeError in place of what the handler raised.
        self._running = threading.Lock()
        self._running.acquire()
        self._call = call
        self._abandoned = abandoned
        self._lock = threading.Lock()
        self._left = False
        self._results: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, on its thread."""
        try:
            self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001 (it is raised where the caller waits)
            self._error = error
        with self._lock:
            self.is_over = True
            left = self._left
        self._running.release()
        if left:
            self._abandon()

    def wait(self, timeout: float | None, watch: Callable[[], None] | None) -> bool:
        """Wait until the call is over; False when the time was up before.

        In slices: a signal that comes right before a wait does not end it.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_S if until is None else min(until - time.monotonic(), _SLICE_S)
            if self._running.acquire(timeout=max(left, 0.0)):
                return True
            if until is not None and time.monotonic() >= until:
                return False
            if watch is not None:
                watch()

    def leave(self) -> None:
        """Have the caller wait no longer: the outcome, there already or to come, is not his."""
        with self._lock:
            self._left = True
            over = self.is_over
        if over:
            self._abandon()

    def result(self) -> T:
        """Give the caller the outcome."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it and this frame would hold each other, and all that the call has
        return self._results.pop()

    def _abandon(self) -> None:
        self._error = None  # its frames have this object: nobody else would let go of it
        if self._results and self._abandoned is not None:
            self._abandoned(self._results.pop())
