# SPDX-License-Identifier: Apache-2.0
"""Triton's log, handed to the ``logging`` module.

C API 1.34 has no log callback, only a log file. That file is memory of ours (a memfd): writing to
it never blocks a Triton thread, as a pipe would, and the lines of a failed call are there when the
call has returned. Lines are read after each call that makes Triton log something of interest.

Triton's log belongs to the process, and so does the capture.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import deque
from dataclasses import dataclass

from tritonffi._call import check, owned
from tritonffi._native import lib

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
# Level and date, time, process, file and line; the text is quoted unless escaping is turned off.
_LINE = re.compile(r"^([IWEFV])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ([^\s:]+):(\d+)\] (.*)$")
# What every start on a machine without a GPU says, every start of a second server, and every load
# from a config alone, at levels that do not fit: it works all the same.
_NOISE = (
    "CudaDriverHelper has not been initialized",
    "Unable to allocate pinned system memory",
    "CUDA memory pool disabled",
    "Failed to initialize NVML",
    "Failed to load libcuda",
    "New pinned memory pool of size",
    "New CUDA memory pools could not be created",
    "Failed to set config modification time: model_config_content_name_ is empty",
)
_RECENT = 2000
_ROTATE_BYTES = 4 << 20
_SHOWN_LINES = 20


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
    """The process's captured log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1
        self._consumed = 0
        self._rest = b""
        self._count = 0
        self._recent: deque[LogLine] = deque(maxlen=_RECENT)

    def path(self) -> str:
        """Return the path to give Triton as its log file; makes the file at the first call."""
        with self._lock:
            if self._fd < 0:
                self._open()
            return self._path()

    def _open(self) -> None:
        self._fd = os.memfd_create("tritonffi-log", os.MFD_CLOEXEC)
        self._consumed = 0

    def _path(self) -> str:
        # By number of the process: "self" would be another one's in a forked child.
        return f"/proc/{os.getpid()}/fd/{self._fd}"

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
            if self._fd < 0:
                return
            lines = self._read()
            if self._consumed >= _ROTATE_BYTES:
                old, consumed = self._fd, self._consumed
                self._open()
                set_log_file(self._path())
                # Triton has changed over, so nothing is added to the old file any more.
                lines += self._parse(os.pread(old, os.fstat(old).st_size - consumed, consumed))
                os.close(old)
        for line in lines:
            level = logging.DEBUG if line.is_noise else line.level
            if logger.isEnabledFor(level):
                logger.handle(
                    logger.makeRecord(logger.name, level, line.file, line.line, line.text, (), None)
                )

    def _read(self) -> list[LogLine]:
        chunks = []
        while chunk := os.pread(self._fd, 1 << 20, self._consumed):
            chunks.append(chunk)
            self._consumed += len(chunk)
        return self._parse(b"".join(chunks))

    def _parse(self, text: bytes) -> list[LogLine]:
        *whole, self._rest = (self._rest + text).split(b"\n")
        lines: list[LogLine] = []
        for raw in whole:
            line = _parse_line(raw.decode("utf-8", "backslashreplace"))
            lines.append(line)
            self._recent.append(line)
            self._count += 1
        return lines


def _parse_line(text: str) -> LogLine:
    match = _LINE.match(text)
    if match is None:
        # A part of a table or of a text over several lines.
        return LogLine(logging.INFO, "triton", 0, text)
    level, file, line, message = match.groups()
    if message.startswith('"'):
        try:
            message = json.loads(message)
        except ValueError:
            message = message.strip('"')
    return LogLine(_LEVELS[level], file, int(line), message)


def set_log_file(path: str) -> None:
    """Point Triton's log at a file, at once and for the whole process.

    C: ``TRITONSERVER_ServerOptionsSetLogFile``
    """
    with owned(
        "struct TRITONSERVER_ServerOptions *",
        lib.TRITONSERVER_ServerOptionsNew,
        lib.TRITONSERVER_ServerOptionsDelete,
    ) as options:
        check(lib.TRITONSERVER_ServerOptionsSetLogFile(options, path.encode()), "log file")


#: The one capture of the process.
capture = LogCapture()


def add_log(error: Exception, lines: list[LogLine], about: str = "") -> None:
    """Add to an exception what Triton logged about its cause.

    Args:
        error: Its message is extended in place.
        lines: What was logged meanwhile.
        about: A model's name: only lines that have it are added, if there are any.
    """
    texts = [line.text for line in lines if line.level >= logging.WARNING]
    named = [text for text in texts if about and about in text]
    shown = [text for text in (named or texts) if text.strip() not in str(error)]
    if shown:
        message = "\n  ".join([f"{error}\nTriton logged:", *shown[-_SHOWN_LINES:]])
        error.args = (message,)
