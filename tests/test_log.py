# SPDX-License-Identifier: Apache-2.0
"""Triton's log: the way to `logging`, the settings at run time, lines of one's own."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import _backend
import pytest
from _ensemble import ensemble
from _program import printed

from tritonffi import (
    InternalError,
    LogFormat,
    LogLevel,
    LogSettings,
    Server,
    is_log_enabled,
    log_message,
    log_settings,
)
from tritonffi import _log as log
from tritonffi._native import lib

LOGGER = logging.getLogger("tritonffi.server")


class Records(logging.Handler):
    """Keeps what it gets, and lets a test wait for a line."""

    def __init__(self):
        """Starts empty."""
        super().__init__()
        self.records = []
        self.arrived = threading.Condition()

    def emit(self, record):
        """Keeps a record."""
        with self.arrived:
            self.records.append(record)
            self.arrived.notify_all()

    def texts(self):
        """Return the texts so far."""
        with self.arrived:
            return [record.getMessage() for record in self.records]

    def wait(self, text, timeout=30):
        """Return the record with this text once it is there."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self._find(text), timeout), self.texts()
            return self._find(text)

    def _find(self, text):
        return next((r for r in self.records if r.getMessage() == text), None)


@pytest.fixture
def records(library):
    """A handler on the logger of Triton's lines, at every level."""
    handler = Records()
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


@pytest.fixture
def settings(library):
    """The settings before the test, whatever tests there were before, which are back after it."""
    log_settings(warn=True, error=True)
    before = log_settings()
    yield before
    log_settings(
        info=before.info,
        warn=before.warn,
        error=before.error,
        verbose=before.verbose,
        format=before.format,
        file=before.file,
    )


def raw(text, level=LogLevel.WARN, file=b"/src/engine.cc", line=7):
    """Write a line as Triton's threads do, past everything of ours."""
    assert not lib.TRITONSERVER_LogMessage(int(level), file, line, text.encode())


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (LogLevel.INFO, logging.INFO),
        (LogLevel.WARN, logging.WARNING),
        (LogLevel.ERROR, logging.ERROR),
        (LogLevel.VERBOSE, logging.INFO),
    ],
)
def test_a_message_comes_back_with_level_file_and_line(settings, records, level, expected):
    """File and line are the caller's; Triton's verbose lines are marked as INFO."""
    log_settings(info=True, verbose=1)
    text = f"one's own {level.name}"
    log_message(level, text)
    line = sys._getframe().f_lineno - 1
    record = records.wait(text)
    assert (record.levelno, record.filename, record.lineno) == (expected, "test_log.py", line)
    assert record.name == "tritonffi.server"


@pytest.mark.parametrize(
    "text", ["", "é\u2028x", "two\nlines", 'a "quoted" \\ one', "100 % of %s", "x" * 100_000]
)
def test_a_text_comes_back_as_it_was(settings, records, text):
    """Line breaks, quotes, percent signs, any length."""
    log_message(LogLevel.ERROR, text)
    assert records.texts()[-1] == text


def test_stacklevel_names_the_caller_s_caller(settings, records):
    """As in `logging`."""

    def helper():
        log_message(LogLevel.WARN, "from a helper", stacklevel=2)

    helper()
    line = sys._getframe().f_lineno - 1
    assert records.wait("from a helper").lineno == line


def test_wrong_messages_are_refused(library):
    """By type, and a NUL, at which C would stop."""
    with pytest.raises(TypeError, match="level must be a LogLevel, not int"):
        log_message(1, "x")
    with pytest.raises(TypeError, match="a log message must be a str"):
        log_message(LogLevel.WARN, b"x")
    with pytest.raises(ValueError, match="NUL"):
        log_message(LogLevel.WARN, "a\0b")
    with pytest.raises(TypeError, match="level must be a LogLevel, not str"):
        is_log_enabled("INFO")


def test_settings_act_at_once(settings, records):
    """A level that is off is not written; one that is on is."""
    now = log_settings(info=False, warn=False, error=True, verbose=0)
    assert (now.info, now.warn, now.error, now.verbose) == (False, False, True, 0)
    assert now == log_settings()
    levels = (LogLevel.INFO, LogLevel.WARN, LogLevel.ERROR, LogLevel.VERBOSE)
    assert [is_log_enabled(level) for level in levels] == [False, False, True, False]
    for level in levels:
        log_message(level, f"off {level.name}")
    log_settings(info=True, warn=True, error=False, verbose=2)
    assert [is_log_enabled(level) for level in levels] == [True, True, False, True]
    for level in levels:
        log_message(level, f"on {level.name}")
    log_settings(error=True)
    log_message(LogLevel.ERROR, "end")
    records.wait("end")
    ours = [text for text in records.texts() if text.startswith(("off ", "on ", "end"))]
    assert ours == ["off ERROR", "on INFO", "on WARN", "on VERBOSE", "end"]


def test_a_file_of_the_user_s(settings, records, tmp_path):
    """Lines go there in the format that was asked for, and to `logging` again afterwards."""
    path = tmp_path / "triton.log"
    assert log_settings(file=path).file == str(path)
    log_message(LogLevel.WARN, "default")
    log_settings(format=LogFormat.ISO8601)
    log_message(LogLevel.WARN, "iso")
    log_settings(file=None)
    log_message(LogLevel.WARN, "iso in logging")
    log_settings(format=LogFormat.DEFAULT)
    log_message(LogLevel.WARN, "default in logging")
    first, second = path.read_text().splitlines()
    assert re.fullmatch(r'W\d{4} \S+ \d+ test_log.py:\d+\] "default"', first)
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\S+Z W \d+ test_log.py:\d+\] "iso"', second)
    assert records.texts() == ["iso in logging", "default in logging"]
    assert {record.levelno for record in records.records} == {logging.WARNING}


def test_a_file_that_cannot_be_written_changes_nothing(settings, records, tmp_path):
    """Triton refuses it, and goes on with the one before."""
    path = tmp_path / "nowhere" / "x.log"
    with pytest.raises(InternalError) as caught:
        log_settings(file=path, warn=False)
    why = "Failed to open log file: No such file or directory"
    assert str(caught.value) == f"log settings, file {str(path)!r}: {why}"
    assert log_settings() == settings
    log_message(LogLevel.WARN, "still here")
    records.wait("still here")


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("info", 1, TypeError),
        ("warn", "yes", TypeError),
        ("error", 0, TypeError),
        ("verbose", True, TypeError),
        ("verbose", -1, ValueError),
        ("verbose", 1 << 31, ValueError),
        ("format", 1, TypeError),
        ("file", 3, TypeError),
        ("file", "a\0b", ValueError),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, setting, value, error):
    """Before Triton is asked, and nothing changes."""
    with pytest.raises(error, match=setting):
        log_settings(**{setting: value})
    with pytest.raises(error, match=setting):
        LogSettings(**{setting: value})
    assert log_settings() == settings


def test_a_server_s_options_are_the_settings_then(settings):
    """The last one started wins."""
    with Server(log_info=True, log_verbose=2, log_format=LogFormat.ISO8601):
        now = log_settings()
        assert (now.info, now.verbose, now.format, now.file) == (True, 2, LogFormat.ISO8601, None)
    with Server():
        now = log_settings()
        assert (now.info, now.verbose, now.format) == (False, 0, LogFormat.DEFAULT)


def test_lines_are_handed_on_as_they_come(records):
    """While a server runs nobody has to call anything: a thread is told of new lines."""
    with Server():
        raw("by itself")
        record = records.wait("by itself")
        assert (record.levelno, record.filename, record.lineno) == (
            logging.WARNING,
            "engine.cc",
            7,
        )
        assert record.threadName == "tritonffi: log"


def test_lines_come_while_a_server_starts(records, tmp_path, backend_directory, gate):
    """Of a start that takes long, the lines are there before it is over."""
    spec = {"INPUT0": ("FP32", [-1])}
    _backend.write_model(tmp_path, "slow", spec, init_hold=True)
    started = []
    thread = threading.Thread(
        target=lambda: started.append(Server(tmp_path, backend_directory=backend_directory))
    )
    thread.start()
    try:
        gate.wait()
        raw("meanwhile")
        records.wait("meanwhile")
        assert started == []
    finally:
        gate.open()
        thread.join()
    started[0].close()


def test_one_thread_for_all_servers(server):
    """It is there as long as one server is."""

    def count():
        return [thread.name for thread in threading.enumerate()].count("tritonffi: log")

    assert count() == 1
    with Server(), Server():
        assert count() == 1
    assert count() == 1


def test_nothing_is_lost_or_mixed_up_when_the_file_is_changed_over(server, records, monkeypatch):
    """Several threads write past the limit of the file several times."""
    monkeypatch.setattr(log, "_ROTATE_BYTES", 20_000)
    first = log.capture._files[-1]
    inode = os.fstat(first).st_ino

    def write(name):
        for number in range(1000):
            raw(f"{name} {number}")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log_message(LogLevel.WARN, "end")
    records.wait("end")
    texts = records.texts()
    for name in "abc":
        got = [text for text in texts if text.startswith(f"{name} ")]
        assert got == [f"{name} {number}" for number in range(1000)]
    assert os.fstat(log.capture._files[-1]).st_ino != inode
    assert os.fstat(log.capture._files[-1]).st_size < 200_000


def test_slow_handlers_cost_lines_and_not_memory(server, records, monkeypatch):
    """What is dropped is counted, and the count is logged."""
    monkeypatch.setattr(log, "_PENDING", 10)
    monkeypatch.setattr(log, "_PATIENCE_S", 0.01)
    inside, go_on = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record):
            inside.set()
            go_on.wait(30)

    slow = Slow()
    LOGGER.addHandler(slow)
    try:
        raw("first")
        assert inside.wait(30)
        for number in range(100):
            raw(f"line {number}")
        log.capture.forward()  # returns in spite of the handler
        assert records.texts() == ["first"]
        go_on.set()
        records.wait("line 99")
    finally:
        go_on.set()
        LOGGER.removeHandler(slow)
    lines = [f"line {number}" for number in range(90, 100)]
    text = "90 lines of Triton's log were dropped: handlers are too slow for them"
    assert records.texts() == ["first", text, *lines]


def test_a_line_that_another_thread_hands_on_is_waited_for(server, records):
    """So what a call made Triton log has been handled when the call is over."""
    inside, handled = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record):
            inside.set()
            handled.wait(0.1)  # nobody sets it before: the time that a handler takes
            handled.set()

    slow = Slow()
    LOGGER.addHandler(slow)
    try:
        raw("by the thread")
        assert inside.wait(30)
        log.capture.forward()
        assert handled.is_set()
    finally:
        LOGGER.removeHandler(slow)


def test_ensembles_are_quiet_where_there_is_no_gpu(server, records):
    """Triton calls it an error that it has no stream of CUDA's, and goes on well without."""
    model = ensemble(server, "quiet", ["batched", "batched"])
    model.infer({"X": [[1.0]]})
    server.unload("quiet")
    assert [r.getMessage() for r in records.records if r.levelno > logging.INFO] == []


def test_a_handler_may_use_the_server(server, records):
    """Also one that makes Triton log; and a filter that fails stops nothing."""

    class Busy(logging.Handler):
        def emit(self, record):
            if record.getMessage() == "question":
                server.models()
                log_message(LogLevel.WARN, "answer")

    busy = Busy()
    LOGGER.addHandler(busy)
    try:
        raw("question")
        records.wait("answer")
    finally:
        LOGGER.removeHandler(busy)


def test_a_failing_filter_stops_nothing(server, records, monkeypatch):
    """It is somebody's mistake, but not one that load or infer should raise."""
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def fail(record):
        if record.getMessage() == "bad":
            raise ZeroDivisionError
        return True

    LOGGER.addFilter(fail)
    try:
        log_message(LogLevel.WARN, "bad")
        log_message(LogLevel.WARN, "good")
        records.wait("good")
    finally:
        LOGGER.removeFilter(fail)


def test_a_handler_that_exits_does_not_end_the_thread(server, records, monkeypatch):
    """It is the thread of others' lines too."""
    monkeypatch.setattr(logging, "raiseExceptions", False)

    class Exits(logging.Handler):
        def emit(self, record):
            if record.getMessage() == "last words":
                raise SystemExit

    exits = Exits()
    LOGGER.addHandler(exits)
    try:
        raw("last words")
        records.wait("last words")
        raw("and yet more")
        records.wait("and yet more")
    finally:
        LOGGER.removeHandler(exits)


def test_a_table_keeps_to_the_line_before(settings, records):
    """Triton's tables have several lines, of which only the first has a level."""
    text = (
        b'E1129 23:00:00.000001 9 server.cc:33] "a heading"\n'
        b'"\\n+--+\\n"\n'
        b"bare | row\n"
        b'I1129 23:00:00.000001 9 other.cc:2] unquoted "text"\n'
        b'2026-11-29T23:00:00Z W 9 iso.cc:3] "iso"\n'
    )
    with log.capture._lock:
        log.capture._unparsed += text.splitlines()
    log.capture.forward()
    got = [(r.levelno, r.filename, r.lineno, r.getMessage()) for r in records.records]
    assert got == [
        (logging.ERROR, "server.cc", 33, "a heading"),
        (logging.ERROR, "server.cc", 33, "\n+--+\n"),
        (logging.ERROR, "server.cc", 33, "bare | row"),
        (logging.INFO, "other.cc", 2, 'unquoted "text"'),
        (logging.WARNING, "iso.cc", 3, "iso"),
    ]


def test_without_a_watch_of_the_system_s_it_looks_now_and_then(records, monkeypatch):
    """Descriptors for inotify are few; lines come later then."""
    capture = log.LogCapture(lambda path: None)
    monkeypatch.setattr(log, "lib", SimpleNamespace(tffi_log_watch=lambda *_: -1))
    capture.watch(records)
    try:
        with capture.steady() as path:
            Path(path).write_text('W1129 23:00:00.000001 9 a.cc:1] "seen all the same"\n')
        records.wait("seen all the same")
    finally:
        capture.unwatch(records)
        os.close(capture._files[-1])


SCRIPT = """
import logging, os, sys, threading
import tritonffi
from tritonffi import LogLevel, Server, log_message

class Print(logging.Handler):
    def emit(self, record):
        # Not print(): a fork may come while the log's thread holds the lock of stdout.
        os.write(1, (str(os.getpid() == parent) + " " + record.getMessage() + "\\n").encode())

parent = os.getpid()
logging.getLogger("tritonffi.server").addHandler(Print())
{}
"""


def run(body):
    """Run a script with a handler that prints, and return what it said."""
    return printed(SCRIPT.format(body), options=["-W", "ignore"])


def test_messages_need_no_server(library):
    """The first one takes Triton's log from the terminal; there is no thread."""
    body = """
log_message(LogLevel.WARN, "early")
tritonffi.log_settings(info=False)
log_message(LogLevel.INFO, "not this")
assert threading.active_count() == 1
with Server():
    pass
log_message(LogLevel.WARN, "late")
assert threading.active_count() == 1
"""
    assert run(body) == ["True early", "True late"]


def test_exit_with_an_open_server_and_busy_log(library):
    """The thread does not hold the process up, and says nothing."""
    body = """
server = Server()
def write():
    while True:
        log_message(LogLevel.VERBOSE, "x")
threading.Thread(target=write, daemon=True).start()
log_message(LogLevel.WARN, "last")
"""
    assert run(body) == ["True last"]


def test_a_forked_child_has_a_log_of_its_own(library):
    """What it writes comes to its own handlers, once, and the parent's goes on."""
    body = """
server = Server()
log_message(LogLevel.WARN, "parent")
pid = os.fork()
if pid == 0:
    tritonffi.log_settings(file=None)
    log_message(LogLevel.WARN, "child")
    os._exit(threading.active_count() - 1)
assert os.waitpid(pid, 0)[1] == 0
log_message(LogLevel.WARN, "parent again")
server.close()
"""
    assert run(body) == ["True parent", "False child", "True parent again"]
