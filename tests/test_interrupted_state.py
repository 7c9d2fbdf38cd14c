# SPDX-License-Identifier: Apache-2.0
"""Signal handlers in the midst of what belongs to the process: its metrics, its log, its locks."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from _interrupted import InterruptionError, cut_short, interrupted

from tritonffi import (
    ClosedError,
    LogLevel,
    MetricFamily,
    MetricKind,
    TritonError,
    _call,
    _fetch,
    _lock_file,
    _log,
    log_message,
    log_settings,
)
from tritonffi._process import Process
from tritonffi._turns import turn


def open_family(kind, family=None):
    """Make a family with a metric, and count with it."""
    # As a constructor that was cut short leaves nothing to hold, it may be made before.
    family = family or MetricFamily.__new__(MetricFamily)
    is_histogram = kind is MetricKind.HISTOGRAM
    buckets = [1.0] if is_histogram else ()
    family.__init__(kind, f"interrupted_{kind.name.lower()}", "Some", buckets=buckets)
    metric = family.metric(a="b")
    (metric.observe if is_histogram else metric.increment)(0.5)
    return family


@pytest.mark.parametrize("kind", [MetricKind.COUNTER, MetricKind.HISTOGRAM])
def test_a_handler_may_raise_at_any_step_of_a_metric_s_life(server, kind):
    """What was made is closed, once; nothing of it is left in the text, nor in the way."""
    number = 0
    came = True
    while came:
        number += 1
        family = MetricFamily.__new__(MetricFamily)
        came = cut_short(number, lambda family=family: open_family(kind, family).close())
        if hasattr(family, "_closed"):
            family.close()
            assert family.closed
        family = open_family(kind)
        (sample, *_) = server.metrics_dict()[family.name].samples
        assert sample.value == (1 if kind is MetricKind.HISTOGRAM else 0.5)
        family.close()
        assert family.name not in server.metrics()
    assert number > 100


@pytest.mark.parametrize("what", ["family", "metric"])
@pytest.mark.parametrize(
    "call",
    [
        lambda family: family.metric(a="b").increment(),
        lambda family: family.metric(c="d").increment(),
        lambda family: family.metric(a="b").value(),
        lambda family: family.kind,
        lambda family: family.metric(a="b").close(),
        lambda family: family.close(),
    ],
    ids=["increment", "make", "value", "kind", "close", "close all"],
)
def test_a_handler_may_close_a_metric_at_any_step_of_a_call_of_it(server, call, what):
    """The call is through before that, or is refused."""
    number = 0
    came = True
    while came:
        number += 1
        family = open_family(MetricKind.COUNTER)

        def handler(family=family):
            if what == "family":
                family.close()
            elif not family.closed:
                for labels in ({"a": "b"}, {"c": "d"}):
                    family.metric(labels).close()

        came, result = interrupted(number, handler, lambda family=family: call(family))
        assert not isinstance(result, TritonError) or type(result) is ClosedError
        family.close()
        assert family.name not in server.metrics()
    assert number > 5


@pytest.fixture
def lines(library, monkeypatch):
    """What comes through the log, whose file is changed over all the time."""
    texts = []

    class Texts(logging.Handler):
        def emit(self, record):
            texts.append(record.getMessage())

    handler = Texts()
    _log.logger.addHandler(handler)
    before = log_settings()
    log_settings(warn=True)
    monkeypatch.setattr(_log, "_ROTATE_BYTES", 1)
    # What is raised in a handler of lines is taken for its own.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    yield texts
    log_settings(warn=before.warn)
    _log.logger.removeHandler(handler)


@pytest.mark.parametrize("call", ["message", "settings"])
def test_a_handler_may_raise_at_any_step_of_writing_a_line(lines, call):
    """No lock and no file is held on to, and what is written next comes."""
    capture = _log.capture

    def files():
        """List what is open: by us, and by Triton."""
        with capture._lock:  # the thread of another test's server may change the file over
            ours = 0
            for link in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # another thread's, closed by now
                    ours += "tritonffi-log" in os.readlink(link)  # noqa: PTH115
            return len(capture._files), ours

    before = files()
    number = 0
    came = True
    while came:
        number += 1
        lines.clear()
        text = f"line {number}"
        came = cut_short(
            number,
            (lambda text=text: log_message(LogLevel.WARN, text))
            if call == "message"
            else log_settings,
        )
        writing = threading.Thread(target=log_message, args=(LogLevel.WARN, "next"))
        began = time.monotonic()
        writing.start()
        writing.join(30)
        assert time.monotonic() - began < 0.5 * _log._PATIENCE_S
        assert lines in (["next"], [text, "next"])
        assert capture._holders == set()
        assert threading.get_ident() not in capture._deliverers
        assert files() == before
    assert number > 20


def test_a_handler_may_write_a_line_at_any_step_of_writing_one(lines):
    """Each comes once, and nothing is waited for."""
    number = 0
    came = True
    while came:
        number += 1
        lines.clear()
        took = []

        def handler(took=took):
            began = time.monotonic()
            log_message(LogLevel.WARN, "inner")
            took.append(time.monotonic() - began)

        came, _ = interrupted(number, handler, lambda: log_message(LogLevel.WARN, "outer"))
        _log.capture.forward()
        assert sorted(lines) == ["inner", "outer"][not came :]
        assert max(took, default=0) < 0.5 * _log._PATIENCE_S
    assert number > 20


def test_a_handler_may_raise_at_any_step_of_making_parameters(library, monkeypatch):
    """What was made of them is deleted, once."""
    alive = []

    def make(function):
        def new(*arguments):
            alive.append(function(*arguments))
            return alive[-1]

        return new

    lib = _call.lib
    fake = SimpleNamespace(**{name: getattr(lib, name) for name in dir(lib) if "PARAMETER" in name})
    fake.TRITONSERVER_ParameterNew = make(lib.TRITONSERVER_ParameterNew)
    fake.TRITONSERVER_ParameterBytesNew = make(lib.TRITONSERVER_ParameterBytesNew)
    fake.TRITONSERVER_ParameterDelete = alive.remove
    monkeypatch.setattr(_call, "lib", fake)

    def whole():
        values = {"s": "text", "i": 1, "b": True, "d": 0.5, "f": b"bytes"}
        with _call.parameters(values, "model 'x'") as (_, count):
            assert count == len(alive) == 5

    number = 0
    came = True
    while came:
        number += 1
        came = cut_short(number, whole)
        assert alive == []
    assert number > 30


def test_a_handler_may_raise_at_any_step_of_a_turn():
    """The model's next one is not held up."""
    lifecycle = SimpleNamespace(turns={})

    def whole():
        with turn(lifecycle, "x"):
            pass

    number = 0
    came = True
    while came:
        number += 1
        came = cut_short(number, whole)
        taken = []
        lock = lifecycle.turns.setdefault("x", threading.RLock())
        other = threading.Thread(target=_call.keep, args=(taken, lock.acquire, False))
        other.start()
        other.join()
        assert taken == [True]
        lifecycle.turns.clear()
    assert number > 3


def test_a_handler_may_raise_at_any_step_of_a_start_that_is_counted():
    """Servers are deleted all the same."""
    process = Process()

    def whole():
        with process.starting():
            pass

    number = 0
    came = True
    while came:
        number += 1
        came = cut_short(number, whole)
        assert process._starting == set()
    assert number > 3


def test_a_handler_may_raise_at_any_step_of_a_lock_of_a_folder(tmp_path):
    """It is free again, and neither its file nor a descriptor is left."""
    target = tmp_path / "made" / "server"

    def whole():
        with _fetch._locked(target, quiet=True):
            assert target.parent.is_dir()

    def opened():  # and not what other threads open meanwhile
        found = []
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                found.append(link.readlink())
        return [path for path in found if path.is_relative_to(tmp_path)]

    number = 0
    came = True
    while came:
        number += 1
        came = cut_short(number, whole)
        assert opened() == [], number
        assert not list(tmp_path.rglob("*.lock"))
        shutil.rmtree(tmp_path / "made", ignore_errors=True)  # the next one would leave it alone
        whole()
        assert list(tmp_path.iterdir()) == []
    assert number > 10


def test_who_stops_waiting_for_a_lock_takes_none_away(tmp_path):
    """Its file is that of who has it."""
    target = tmp_path / "server"
    wait = _lock_file.fcntl.flock

    def give_up(descriptor, how):
        if not how & fcntl.LOCK_NB:
            raise InterruptionError
        wait(descriptor, how)

    with _fetch._locked(target, quiet=True):
        (lock,) = tmp_path.iterdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_lock_file.fcntl, "flock", give_up)
            with pytest.raises(InterruptionError), _fetch._locked(target, quiet=True):
                pass
        assert lock.exists()
    assert not lock.exists()
