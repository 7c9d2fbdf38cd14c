# SPDX-License-Identifier: Apache-2.0
"""The garbage collector: it may come at any step of any thread, whatever that thread holds.

What it finds may have finalizers, of ours and of the user's, which run right there.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from contextlib import ExitStack, suppress
from functools import partial

import _backend
import pytest
from conftest import counters

import tritonffi
from tritonffi import (
    LogLevel,
    MetricFamily,
    MetricKind,
    Server,
    Trace,
    TritonError,
    _library,
    _log,
    _log_settings,
    _metrics,
    _process,
    _server,
)

FP32 = {"INPUT0": ("FP32", [-1])}
ONES = {"INPUT0": [1.0]}
HELD = {"hold": "start", "ignore_cancel": True}
SPEC = {"inputs": {"a": ("FP32", [-1])}, "outputs": {"b": ("FP32", [-1])}}


@pytest.fixture(autouse=True)
def _as_before():
    """The collector's thresholds, and no warning of servers that are dropped on purpose."""
    before = gc.get_threshold()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.set_threshold(*before)
        gc.enable()
        gc.collect()


@pytest.fixture
def start(tmp_path, backend_directory):
    """Starts servers over the models `one` and `stream`, which nobody closes."""
    _backend.write_model(tmp_path, "one", FP32)
    _backend.write_model(tmp_path, "stream", FP32, decoupled=True, count=3)
    return lambda: Server(tmp_path, backend_directory=backend_directory)


class Cycle:
    """Something that only the garbage collector frees."""

    def __init__(self, *things, finalize=None):
        """Hold things, and itself; `finalize` is what `__del__` calls."""
        self.things = things
        self.itself = self
        self.finalize = finalize

    def __del__(self):
        """Do what was given."""
        if self.finalize is not None:
            self.finalize()


def everything(server):
    """One of each kind of object, half used."""
    one, stream = server.model("one"), server.model("stream")
    family = MetricFamily(MetricKind.COUNTER, "collected_total")
    traced = Trace()
    one.infer(ONES, trace=traced)
    half_read = stream.stream(ONES)
    next(half_read)
    half_mapped = one.map([ONES] * 6, in_flight=4)
    next(half_mapped)
    half_completed = one.map([ONES] * 6, in_flight=4, ordered=False)
    next(half_completed)
    yield from (server, one, family, family.metric(a="b"), Trace(), traced, half_read)
    yield from (half_mapped, half_completed, one.submit(ONES), one.infer(ONES), one.sequence(7))
    yield server.load_function("f", lambda a: {"b": a}, **SPEC)
    yield from asyncio.run(awaited(one, stream))
    family.close()


async def awaited(one, stream):
    """Those of an event loop."""
    half_read = stream.async_stream(ONES)
    await anext(half_read)
    half_mapped = one.async_map([ONES] * 6, in_flight=4)
    await anext(half_mapped)
    return half_read, half_mapped


def is_gone(lifecycle):
    """Wait until a server that was dropped is closed."""
    deadline = time.monotonic() + 30
    while lifecycle._server is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    return lifecycle._server is None


def join_closing():
    """Wait for the threads that close what was dropped."""
    for thread in threading.enumerate():
        if thread.name.startswith("tritonffi: closing"):
            thread.join(30)


def in_another_thread(collect):
    """Collect while this one waits."""
    thread = threading.Thread(target=collect)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def in_a_signal_handler(collect):
    """Collect in the midst of nothing."""
    before = signal.signal(signal.SIGUSR1, lambda *_: collect())
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def in_a_finalizer(collect):
    """Collect in a `__del__` that another collection calls."""
    Cycle(finalize=collect)
    gc.collect()


def in_an_event_loop(collect):
    """Collect in a task."""

    async def main():
        collect()

    asyncio.run(main())


def in_a_log_handler(collect):
    """Collect while a handler has its lock."""

    class Collecting(logging.Handler):
        def emit(self, record):
            collect()

    handler = Collecting()
    logger = logging.getLogger("tritonffi.server")
    logger.addHandler(handler)
    try:
        with Server():  # it logs
            tritonffi.log_message(LogLevel.ERROR, "a line")
    finally:
        logger.removeHandler(handler)


def with_all_locks(collect):
    """Collect with every lock that there is, as in the midst of whatever holds it."""
    locks = [
        _process.process._lock,
        _log.capture._lock,
        _log.capture._watching,
        _log_settings._state.lock,
        _metrics._lock,
        _library._lock,
        threading._active_limbo_lock,
        logging._lock,
    ]
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        collect()


@pytest.mark.parametrize(
    "where",
    [
        in_another_thread,
        in_a_signal_handler,
        in_a_finalizer,
        in_an_event_loop,
        in_a_log_handler,
        with_all_locks,
    ],
)
def test_all_kinds_of_objects_may_be_collected_anywhere(start, where):
    """Each in a cycle of its own, and with all others: it is gone, and so is the server."""
    before = counters()
    server = start()
    lifecycle = server._lifecycle
    gc.disable()
    things = list(everything(server))
    for thing in things:
        Cycle(thing)
    Cycle(*things)
    del server, things, thing
    where(gc.collect)
    assert is_gone(lifecycle)
    join_closing()
    gc.collect()
    assert counters() == before


def test_a_thread_that_collects_does_not_wait_for_what_it_holds_up(start):
    """The close goes on when it lets go of its locks."""
    server = start()
    lifecycle = server._lifecycle
    inference = server.model("one").submit(ONES)
    Cycle(server, inference)
    del server, inference
    began = time.monotonic()
    with threading._active_limbo_lock:  # which a new thread needs to begin, as one of the close's
        gc.collect()
        assert time.monotonic() - began < 10 * _server._PATIENCE_S
    assert is_gone(lifecycle)
    join_closing()


def steps(server, family):
    """Calls of all kinds, any of which may come in the midst of any other."""
    one, stream = server.model("one"), server.model("stream")
    sequence = one.sequence(7)
    shared = Trace()
    one.infer(ONES, trace=shared)

    def a_metric():
        with MetricFamily(MetricKind.COUNTER, f"nested_{threading.get_ident()}") as other:
            other.metric(a="b").increment()
        family.metric(a="b").increment()

    def a_sequence():
        with suppress(tritonffi.InvalidArgumentError):
            sequence.infer(ONES)

    yield from (a_metric, a_sequence, shared.record, server.models, one.statistics)
    yield lambda: one.infer(ONES)
    yield lambda: one.submit(ONES)
    yield lambda: list(one.map([ONES] * 4, in_flight=2))
    yield lambda: list(one.map([ONES] * 4, in_flight=2, ordered=False))
    yield lambda: list(stream.stream(ONES))
    yield lambda: next(stream.stream(ONES))
    yield lambda: asyncio.run(awaited(one, stream))
    yield lambda: one.infer(ONES, trace=Trace())
    yield lambda: tritonffi.log_message(LogLevel.INFO, "a line")
    yield tritonffi.log_settings
    yield lambda: server.load_function("g", lambda a: {"b": a}, **SPEC)


def test_the_collector_may_come_at_every_allocation(start):
    """With finalizers that do what the interrupted code does, in every pair, from two threads."""
    failures = []

    def attempt(step):
        try:
            step()
        except Exception as error:  # noqa: BLE001 (shown by the assertion)
            # A loop in a loop, and a result in the midst of its reading, are refused.
            if "event loop" not in str(error) and "a signal handler or a final" not in str(error):
                failures.append(error)

    def finalize(step):
        gc.disable()  # not again in the midst of this
        attempt(step)
        gc.enable()

    def work(pairs):
        for outer, inner in pairs:
            Cycle(finalize=partial(finalize, inner))
            gc.set_threshold(1)
            attempt(outer)
            gc.set_threshold(700, 10, 10)

    with start() as server, MetricFamily(MetricKind.COUNTER, "nested_total") as family:
        some = list(steps(server, family))
        pairs = list(itertools.product(some, some))
        threads = [threading.Thread(target=work, args=(pairs[i::2],)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
            assert not thread.is_alive()
        gc.collect()
    assert failures == []


SCRIPT = """
import asyncio, gc, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore", ResourceWarning)
gc.disable()
import test_collected
from tritonffi import Server
server = Server(sys.argv[2], backend_directory=sys.argv[3])
things = list(test_collected.everything(server))
test_collected.Cycle(*things)
for thing in things:
    test_collected.Cycle(thing)
if {is_kept}:
    test_collected.kept = things
del server, things, thing
"""


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_is_collected_at_the_exit_is_no_trouble(start, tmp_path, backend_directory, is_kept):
    """Exit code 0, and not a word."""
    script = textwrap.dedent(SCRIPT).format(is_kept=is_kept)
    with start():
        pass  # the models are written
    done = subprocess.run(
        [sys.executable, "-c", script, str(_backend._HERE), str(tmp_path), str(backend_directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_server_that_did_not_close_in_time_does_so_when_it_is_dropped(start, gate):
    """What has held it up has ended meanwhile."""
    server = start()
    lifecycle = server._lifecycle
    inference = server.model("one").submit(ONES, parameters=HELD)
    gate.wait()
    with pytest.raises(TimeoutError, match=r"did not stop within 0\.05 s"):
        server.close(timeout=0.05)
    gate.open()
    del server, inference
    gc.collect()
    join_closing()
    assert lifecycle._server is None


def test_a_dropped_server_that_does_not_close_is_told_of(start, gate, caplog):
    """In the log: nobody is there to raise to."""
    server = start()
    server.options.__dict__["exit_timeout"] = 0.2
    lifecycle = server._lifecycle
    inference = server.model("one").submit(
        ONES, parameters={"hold": "start", "ignore_cancel": True}
    )
    gate.wait()
    dropped = weakref.ref(server)
    del server
    gc.collect()
    assert dropped() is None
    join_closing()
    assert "a server was dropped, and does not close: server 'triton' did not stop" in caplog.text
    gate.open()
    lifecycle.close()
    with suppress(TritonError):
        inference.result()
