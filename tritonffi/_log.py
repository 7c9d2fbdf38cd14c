# SPDX-License-Identifier: Apache-2.0
"""Triton's log: handed to the ``logging`` module, set at run time, written to.

C API 1.34 has no log callback, only a log file. That file is memory of ours (a memfd): writing to
it never blocks a Triton thread, as a pipe would, and the lines of a failed call are there when the
call has returned. While there are servers, a thread is told of new lines by the kernel (inotify)
and hands them on as they come; calls whose lines are of interest do so themselves. Once a second
that thread also calls each server, for what is to be done although nobody asks for anything.

Triton's log belongs to the process, and so does all of this.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import threading
import time
import traceback
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonffi._call import check, encode_path, keep, owned
from tritonffi._native import lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tritonffi._call import CData

#: The logger that Triton's lines go to. File and line are those of Triton's source.
logger = logging.getLogger("tritonffi.server")
logging.getLogger("tritonffi").addHandler(logging.NullHandler())

_LEVELS = {
    "I": logging.INFO,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
    "V": logging.DEBUG,
}
# Level and date, time (or ISO 8601 and level), process, file and line; the text is quoted unless
# escaping is turned off. Like all patterns here it is compiled when it is first used: an import
# that compiled them would take a tenth longer.
_LINE = (
    r"^(?:(?P<level>[IWEFV])\d{4} \d\d:\d\d:\d\d\.\d+"
    r"|\d+-\d\d-\d\dT\d\d:\d\d:\d\dZ (?P<iso_level>[IWEFV]))"
    r" \d+ (?P<file>[^\s:]+):(?P<line>\d+)\] (?P<text>.*)$"
)
# What every start and every ensemble on a machine without a GPU says, every start of a second
# server, and every load from a config alone, at levels that do not fit: it works all the same.
_NOISE = (
    "CudaDriverHelper has not been initialized",
    "Unable to allocate pinned system memory",
    "CUDA memory pool disabled",
    "Failed to initialize NVML",
    "Failed to load libcuda",
    "New pinned memory pool of size",
    "New CUDA memory pools could not be created",
    "CUDA driver version is insufficient for CUDA runtime version",
    "failed to allocate pinned system memory: no pinned memory pool",
    "Failed to set config modification time: model_config_content_name_ is empty",
)
_RECENT = 2000
# Lines that wait for slow handlers; of more, the oldest are dropped and counted.
_PENDING = 50_000
# How long a call waits for another thread that hands lines on.
_PATIENCE_S = 1.0
_ROTATE_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 20
_SHOWN_LINES = 20
# Where the system gives no watch: how often the thread looks.
_LOOK_MS = 200
# How often it calls those who watch.
_CALL_S = 1.0


@dataclass(frozen=True)
class LogLine:
    """One line of Triton's log."""

    level: int
    file: str
    line: int
    text: str

    @property
    def is_noise(self) -> bool:
        """Whether it tells of nothing that went wrong."""
        return any(noise in self.text for noise in _NOISE)


class LogCapture:
    """The process's captured log.

    A signal handler may raise, or call this again, after any call: what is looked at and what is
    changed accordingly have none between them.

    Args:
        set_file: Points Triton's log at a path.
    """

    def __init__(self, set_file: Callable[[str], None]) -> None:
        self._set_file = set_file
        self._recent: deque[LogLine] = deque(maxlen=_RECENT)
        self._pending: deque[LogLine] = deque()
        self._reset()

    def _reset(self) -> None:
        # Reentrant, as other locks here: a signal handler, or a finalizer of the user's that the
        # garbage collector runs, may run `Server.close` in the midst of it.
        self._lock = threading.RLock()  # over the file and what was read of it
        # The one that Triton writes to is the last; before it may be one that was not read up to
        # its end, as a signal handler has raised while it was changed.
        self._files: list[int] = []
        self._holders: set[object] = set()  # who gives Triton the path of the file just now
        self.in_use = True  # False: Triton writes to a file of the user's
        self._consumed = 0
        self._rest = b""  # of what was read: the beginning of a line
        self._unparsed: deque[bytes] = deque()
        self._last = LogLine(logging.INFO, "triton", 0, "")
        self._recent.clear()
        self._count = 0
        self._delivering = threading.RLock()  # keeps the lines in their order
        self._deliverers: set[int] = set()  # the threads that have it, or wait for it
        self._pending.clear()
        self._dropped = 0
        self._watching = threading.RLock()  # over the thread and its descriptors
        self._watchers: dict[object, Callable[[], None] | None] = {}
        self._thread: threading.Thread | None = None
        self._end = -1
        self._inotify = -1

    @contextmanager
    def steady(self) -> Iterator[str]:
        """Give the path to set as Triton's log file, and do not change over meanwhile."""
        holder = object()
        try:
            with self._lock:
                self._holders.add(holder)
                if not self._files:
                    self._open()
                path = self._path()
            yield path
        finally:
            self._holders.discard(holder)

    def _open(self) -> None:
        keep(self._files, os.memfd_create, "tritonffi-log", os.MFD_CLOEXEC)

    def _path(self) -> str:
        # By number of the process: "self" would be another one's in a forked child.
        return f"/proc/{os.getpid()}/fd/{self._files[-1]}"

    def mark(self) -> int:
        """Return a mark for `since`: what is logged from now on."""
        self.forward()
        return self._count

    def since(self, mark: int) -> list[LogLine]:
        """Return what was logged after the mark, without the noise."""
        self.forward()
        with self._lock:
            fresh = min(self._count - mark, len(self._recent))
            lines = list(self._recent)[len(self._recent) - fresh :] if fresh > 0 else []
        return [line for line in lines if not line.is_noise]

    def forward(self) -> None:
        """Read what is new and hand it to ``logging``."""
        with self._lock:
            # Where a signal handler has raised in the one or the other.
            self._parse()
            if len(self._files) > 1 and self.in_use and not self._holders:
                self._rotate()
            # Not more than is there now: Triton may be faster than the handlers.
            left = os.fstat(self._files[0]).st_size - self._consumed if self._files else 0
        while left > 0:
            with self._lock:
                read = self._read()
                left -= read or left
                full = left <= 0 and self._consumed >= _ROTATE_BYTES
                if full and self.in_use and not self._holders:
                    self._rotate()
            self._deliver()
        self._deliver()

    def _read(self) -> int:
        """Read on in the file, and return how many bytes came."""
        file, consumed = self._files[0], self._consumed
        chunk = os.pread(file, _CHUNK_BYTES, consumed)
        read = len(chunk)
        *whole, rest = (self._rest + chunk).split(b"\n")
        # Otherwise what a signal handler called has read it meanwhile.
        if self._files[0] == file and self._consumed == consumed:
            self._consumed = consumed + read
            self._rest = rest
            self._unparsed += whole
        self._parse()
        return read

    def _rotate(self) -> None:
        """Change over to a new file, which keeps the log from growing, and lose nothing.

        Where a signal handler raises in it, the next one goes on with the same new file.
        """
        if len(self._files) == 1:
            self._open()
        path = self._path()
        if self._inotify >= 0:
            lib.tffi_log_watch(self._inotify, encode_path(path, "log file"))
        self._set_file(path)
        # Triton has changed over, so nothing is added to the old file any more.
        while self._read():
            pass
        if len(self._files) > 1:  # or what a signal handler called has done so
            old = self._files[0]
            self._consumed = 0
            del self._files[0]
            os.close(old)

    def _parse(self) -> None:
        while True:
            raw = self._unparsed[0] if self._unparsed else None
            if raw is None:
                break
            line = _parse_line(raw.decode("utf-8", "backslashreplace"), self._last)
            lines = [line]
            if self._unparsed and self._unparsed[0] is raw:  # as above
                del self._unparsed[0]
                self._last = line
                self._count += 1
                self._recent += lines
                self._pending += lines
        while len(self._pending) > _PENDING:
            self._pending.popleft()
            self._dropped += 1

    def _deliver(self) -> None:
        me = threading.get_ident()
        if me in self._deliverers:  # called by a handler, of lines or of signals
            return
        taken: list[bool] = []
        try:
            self._deliverers.add(me)
            keep(taken, self._delivering.acquire, True, _PATIENCE_S)
            # Otherwise a handler hangs: not for us to hang too, and its thread goes on with these.
            while taken[0] and self._pending:
                if self._dropped:
                    _hand_on(self._account())
                with suppress(IndexError):  # the oldest are dropped meanwhile
                    _hand_on(self._pending.popleft())
        finally:
            try:
                self._deliverers.discard(me)
            finally:
                if True in taken:
                    self._delivering.release()

    def _account(self) -> LogLine:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        text = f"{dropped} lines of Triton's log were dropped: handlers are too slow for them"
        return LogLine(logging.WARNING, "tritonffi", 0, text)

    def watch(self, watcher: object, call: Callable[[], None] | None = None) -> None:
        """Hand lines on as they come, until `unwatch`.

        A signal handler may raise at any step: `unwatch` takes back what was done until then.

        Args:
            watcher: Who asks for it, once.
            call: Is called once a second, on the thread that hands lines on.
        """
        with self._watching:
            self._watchers[watcher] = call
            if self._thread is not None:
                return
            thread: threading.Thread | None = None
            descriptors: list[int] = []
            # Whoever takes them closes them: the thread, or this one where it did not come to that.
            owned = [descriptors]
            try:
                keep(descriptors, os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                with self.steady() as path, self._lock:
                    keep(descriptors, lib.tffi_log_watch, -1, encode_path(path, "log file"))
                    self._end, self._inotify = descriptors
                self._thread = thread = threading.Thread(
                    target=self._run, args=(owned,), name="tritonffi: log", daemon=True
                )
                thread.start()
            except BaseException as error:
                with suppress(IndexError):
                    self._close(*owned.pop())
                    self._thread = None
                if thread is None or not isinstance(error, RuntimeError):
                    raise
                # Otherwise the interpreter is going down, and starts no threads any more.

    def unwatch(self, watcher: object) -> None:
        """Take a `watch` back. After the last the thread is gone, unless a handler hangs.

        Args:
            watcher: Who asked for it; nothing is done for one who did not.
        """
        with self._watching:
            if watcher not in self._watchers:
                return
            if len(self._watchers) > 1 or self._thread is None:
                self._watchers.pop(watcher, None)
                return
            thread, self._thread = self._thread, None
            os.eventfd_write(self._end, 1)
            self._watchers.pop(watcher, None)
        if thread is not threading.current_thread():
            thread.join(_PATIENCE_S)
        self.forward()

    def _run(self, owned: list[list[int]]) -> None:
        """The thread: forward what comes until the end is called for."""
        try:
            end, inotify = owned.pop()
        except IndexError:
            return  # who has started it was interrupted
        try:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            if inotify >= 0:
                poll.register(inotify, select.POLLIN)
            limit = _LOOK_MS if inotify < 0 else 1e3 * _CALL_S
            due = time.monotonic() + _CALL_S
            ready: list[int] = []
            while end not in ready:
                _go_on_after(self.forward)
                if time.monotonic() >= due:
                    for call in list(self._watchers.values()):
                        if call is not None:
                            _go_on_after(call)
                    due = time.monotonic() + _CALL_S
                ready = [descriptor for descriptor, _ in poll.poll(limit)]
                if inotify in ready:
                    os.read(inotify, 1 << 16)
        finally:
            self._close(end, inotify)

    def _close(self, *descriptors: int) -> None:
        with self._lock:
            if self._inotify in descriptors:
                self._inotify = -1
            for descriptor in descriptors:
                if descriptor >= 0:
                    os.close(descriptor)

    def forked(self) -> None:
        """In a forked child: the file is the parent's, and the thread is not there."""
        descriptors = [*self._files, self._inotify, self._end if self._thread is not None else -1]
        self._reset()
        self._close(*descriptors)


def _parse_line(text: str, before: LogLine) -> LogLine:
    match = re.match(_LINE, text)
    if match is None:
        # Part of a table or of a text over several lines: it belongs to the line before.
        return LogLine(before.level, before.file, before.line, _unquoted(text))
    level = match["level"] or match["iso_level"]
    return LogLine(_LEVELS[level], match["file"], int(match["line"]), _unquoted(match["text"]))


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')


def _go_on_after(call: Callable[[], None]) -> None:
    """Call it; a handler that exits does not take this thread along."""
    try:
        call()
    except BaseException:  # noqa: BLE001 (SystemExit, above all)
        if logging.raiseExceptions:
            traceback.print_exc()


def _hand_on(line: LogLine) -> None:
    level = logging.DEBUG if line.is_noise else line.level
    if not logger.isEnabledFor(level):
        return
    try:
        logger.handle(
            logger.makeRecord(logger.name, level, line.file, line.line, line.text, (), None)
        )
    except Exception:  # noqa: BLE001 (of a filter; handlers catch theirs, and deal with it so)
        if logging.raiseExceptions:
            traceback.print_exc()


def _says(error: str, text: str) -> bool:
    """Whether an error has a text already; Triton logs some with the kind of error in front."""
    kind, _, rest = text.partition(": ")
    return text.strip() in error or (
        kind.capitalize() == kind and rest.strip() != "" and rest in error
    )


def add_log(error: Exception, lines: list[LogLine], about: str = "") -> None:
    """Add to an exception what Triton logged about its cause.

    Args:
        error: Its message is extended in place.
        lines: What was logged meanwhile.
        about: A model's name: only lines that have it are added, if there are any.
    """
    # Once each: a load may have been tried several times.
    texts = list(dict.fromkeys(line.text for line in lines if line.level >= logging.WARNING))
    named = [text for text in texts if about and about in text]
    shown = [text for text in (named or texts) if not _says(str(error), text)]
    if shown:
        message = "\n  ".join([f"{error}\nTriton logged:", *shown[-_SHOWN_LINES:]])
        error.args = (message,)


def options_of_nobody() -> AbstractContextManager[CData]:
    """Make an options object to call log setters on: they act at once, and on the process."""
    return owned(
        "struct TRITONSERVER_ServerOptions *",
        lib.TRITONSERVER_ServerOptionsNew,
        lib.TRITONSERVER_ServerOptionsDelete,
    )


def set_log_file(path: str) -> None:
    """Point Triton's log at a file, at once and for the whole process.

    C: ``TRITONSERVER_ServerOptionsSetLogFile``
    """
    with options_of_nobody() as options:
        check(
            lib.TRITONSERVER_ServerOptionsSetLogFile(options, encode_path(path, "log file")),
            "log file",
        )


#: The one capture of the process.
capture = LogCapture(set_log_file)
