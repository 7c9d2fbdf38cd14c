# SPDX-License-Identifier: Apache-2.0
"""What Triton logs and where to, at run time; and lines of one's own in its log.

In C these are server options, but they act at once and on the process.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tritonffi import _library
from tritonffi._call import check, encode, encode_path
from tritonffi._enums import LogFormat, LogLevel
from tritonffi._errors import TritonError, UnavailableError
from tritonffi._log import capture, options_of_nobody, set_log_file
from tritonffi._native import lib
from tritonffi._numbers import shown, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import EllipsisType

# How long a start waits for who changes the settings, which takes a few calls of C: where it takes
# longer, a signal handler has interrupted that, and may be the very one that starts a server.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class LogSettings:
    """What Triton logs, and where to. It belongs to the process, not to a server.

    Attributes:
        info: Whether INFO lines are logged.
        warn: Whether WARNING lines are logged.
        error: Whether ERROR lines are logged. Without them, errors of `Server.load` lack the cause.
        verbose: Level of verbosity; 0 is none. Triton marks verbose lines as INFO.
        format: How the lines of a file look.
        file: A file that Triton appends to; None: the ``logging`` module, logger
            ``tritonffi.server``.

    Raises:
        TypeError, ValueError: A setting is of the wrong type or value.
    """

    info: bool = True
    warn: bool = True
    error: bool = True
    verbose: int = 0
    format: LogFormat = LogFormat.DEFAULT
    file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Refuses wrong types and values."""
        for name in ("info", "warn", "error"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be a bool, not {type(getattr(self, name)).__name__}")
        verbose = whole(self.verbose, "verbose")
        if not 0 <= verbose < 1 << 31:
            raise ValueError(f"verbose must be between 0 and {(1 << 31) - 1}, not {shown(verbose)}")
        if not isinstance(self.format, LogFormat):
            raise TypeError(f"format must be a LogFormat, not {type(self.format).__name__}")
        if self.file is not None:
            encode_path(self.file, "file")


class _State:
    """What Triton's log is set to: the C API tells only half of it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.settings = LogSettings()
        self.is_set = False


_state = _State()


def log_settings(
    *,
    info: bool | None = None,
    warn: bool | None = None,
    error: bool | None = None,
    verbose: int | None = None,
    format: LogFormat | None = None,  # noqa: A002 (as Triton calls it)
    file: str | os.PathLike[str] | EllipsisType | None = ...,
) -> LogSettings:
    """Change what Triton logs, at once and for the whole process, and return what holds now.

    A server that is started later sets all of this anew, from its options.

    Args:
        info: Whether INFO lines are logged; here and below, None changes nothing.
        warn: Whether WARNING lines are logged.
        error: Whether ERROR lines are logged.
        verbose: Level of verbosity; 0 is none.
        format: How the lines of a file look.
        file: A file that Triton appends to; None: back to the ``logging`` module; left out: no
            change.

    Raises:
        LibraryNotFoundError: There is no library to load.
        TypeError, ValueError: A setting is of the wrong type or value.
        TritonError: The file cannot be written; nothing has changed.

    C: ``TRITONSERVER_ServerOptionsSetLogInfo``, ``...SetLogWarn``, ``...SetLogError``,
    ``...SetLogVerbose``, ``...SetLogFormat``, ``...SetLogFile``
    """
    given = {"info": info, "warn": warn, "error": error, "verbose": verbose, "format": format}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if file is not ...:
        changes["file"] = file
    wanted = replace(LogSettings(), **changes)  # type: ignore[arg-type]  # refuses what is wrong
    if wanted.file is not None:
        changes["file"] = os.path.abspath(os.fsdecode(wanted.file))  # noqa: PTH100
    _library.load()
    with _state.lock:
        if wanted.file is None:  # one that is given now is set below, and needs no /proc
            _ensure_captured()
        if changes:
            wanted = replace(_state.settings, **changes)  # type: ignore[arg-type]
            _apply(wanted)
            _state.settings = wanted
            _state.is_set = True
        holds = _state.settings
    capture.forward()
    return holds


@contextmanager
def starting_with(settings: LogSettings, what: str) -> Iterator[str]:
    """Note what a server's options set in a `with` block; where that fails, put back what was.

    Args:
        settings: What the options say.
        what: Whose they are, for messages.

    Yields:
        The path of the captured log, which is Triton's log file where the settings have none.

    Raises:
        UnavailableError: The log cannot be captured, as it has to be.
    """
    has_lock = _state.lock.acquire(timeout=_PATIENCE_S)
    try:
        with capture.steady() as path:
            if settings.file is None:
                _check_captured(path, what)
            try:
                yield path
            except BaseException:
                with suppress(TritonError):
                    _apply(_state.settings)
                    _state.is_set = True
                raise
            _state.settings = settings
            _state.is_set = True
            capture.in_use = settings.file is None
    finally:
        if has_lock:
            _state.lock.release()


def log_message(level: LogLevel, message: str, *, stacklevel: int = 1) -> None:
    """Write a line to Triton's log, with the caller's file and line.

    It goes where Triton's own lines go, if the level is enabled; so by default it comes back
    through the logger ``tritonffi.server``.

    Args:
        level: The level. VERBOSE lines are written from verbosity 1 on, and come back as INFO.
        message: The text, of any number of lines.
        stacklevel: 1: file and line of the caller; 2: of its caller; and so on.

    Raises:
        LibraryNotFoundError: There is no library to load.
        TypeError, ValueError: The level is none, or the text contains NUL.

    C: ``TRITONSERVER_LogMessage``
    """
    number = _level(level)
    text = encode(message, "a log message")
    frame = sys._getframe(stacklevel)  # noqa: SLF001 (as logging does)
    file = os.fsencode(frame.f_code.co_filename)
    _library.load()
    with _state.lock:
        _ensure_captured()
    check(lib.TRITONSERVER_LogMessage(number, file, frame.f_lineno, text), "log")
    capture.forward()


def is_log_enabled(level: LogLevel) -> bool:
    """Return whether Triton writes lines of a level; of VERBOSE, from verbosity 1 on.

    Raises:
        LibraryNotFoundError: There is no library to load.
        TypeError: It is no level.

    C: ``TRITONSERVER_LogIsEnabled``
    """
    number = _level(level)
    _library.load()
    return bool(lib.TRITONSERVER_LogIsEnabled(number))


def _level(level: LogLevel) -> int:
    if not isinstance(level, LogLevel):
        raise TypeError(f"level must be a LogLevel, not {type(level).__name__}")
    return int(level)


def _ensure_captured() -> None:
    """Without a server so far, Triton's log goes to the terminal: take it from there."""
    if not _state.is_set:
        with capture.steady() as path:
            _check_captured(path, "log")
            set_log_file(path)
        _state.is_set = True


def _check_captured(path: str, what: str) -> None:
    """Refuse what Triton could not open: it would say so of a file that nobody has named."""
    if not os.path.exists(path):  # noqa: PTH110
        raise UnavailableError(
            f"{what}: Triton's log comes by way of /proc, which is not there: mount it, or have "
            "the log in a file"
        )


def _apply(settings: LogSettings) -> None:
    what = "log settings" if settings.file is None else f"log settings, file {settings.file!r}"
    with options_of_nobody() as options, capture.steady() as captured:
        if settings.file is None:
            _check_captured(captured, what)
        # The file first: it is the one thing that can be refused.
        path = encode_path(captured if settings.file is None else settings.file, "log file")
        for setter, value in (
            (lib.TRITONSERVER_ServerOptionsSetLogFile, path),
            (lib.TRITONSERVER_ServerOptionsSetLogInfo, settings.info),
            (lib.TRITONSERVER_ServerOptionsSetLogWarn, settings.warn),
            (lib.TRITONSERVER_ServerOptionsSetLogError, settings.error),
            (lib.TRITONSERVER_ServerOptionsSetLogVerbose, settings.verbose),
            (lib.TRITONSERVER_ServerOptionsSetLogFormat, int(settings.format)),
        ):
            check(setter(options, value), what)
        capture.in_use = settings.file is None
