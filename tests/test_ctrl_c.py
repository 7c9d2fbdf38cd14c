# SPDX-License-Identifier: Apache-2.0
"""Signal handlers that raise at any moment: whatever was cut short, all is well afterwards."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from tritonffi import MetricFamily, MetricKind, Trace

# The timer of pytest-timeout's other method is the one that interrupts here.
pytestmark = pytest.mark.timeout(120, method="thread")

TIMES = 300
ONE = {"INPUT0": np.ones(3, np.float32)}
STREAM = {"INPUT0": np.ones(3, np.int32), "COUNT": [3]}


@pytest.fixture(autouse=True)
def _collector_without_callbacks():
    """Hypothesis has the garbage collector call it, and loses what is raised there."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)


def infer(server):
    """One after the other."""
    server.model("echo").infer(ONE)


def result(server):
    """Two at a time."""
    pair = [server.model("echo").submit(ONE) for _ in range(2)]
    for inference in pair:
        inference.wait()
        inference.result()


def dropped(server):
    """Nobody waits."""
    server.model("echo").submit(ONE)


def stream(server):
    """To the end, and half read."""
    list(server.model("stream").stream(STREAM))
    # Not dropped, but closed: what is raised where an object is dropped is ignored by Python.
    with server.model("stream").stream(STREAM) as responses:
        next(responses)


def in_order(server):
    """A map, whose items are submitted several at a time."""
    list(server.model("echo").map([ONE] * 12, in_flight=4))


def as_completed(server):
    """The other map, which has a queue of its own."""
    list(server.model("echo").map([ONE] * 12, in_flight=4, ordered=False))


def trace(server):
    """A trace, and a child of it."""
    with Trace() as parent:
        server.model("echo").infer(ONE, trace=parent.spawn_child())
    parent.record()


def metadata(server):
    """What holds the server's handle."""
    model = server.model("echo")
    model.metadata()
    model.config()
    model.statistics()
    server.models()
    server.metrics()


@pytest.fixture
def interrupt():
    """Makes a call again and again until it is interrupted, at some moment or other."""
    raised = []

    def handler(number, frame):
        raised.append(number)
        raise KeyboardInterrupt

    def repeat(call, span):
        # By itself, because of what is raised where a loop jumps back Python 3.13 does not look for
        # a handler around the loop in the same function.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, span))
        while not raised:  # Python ignores what is raised while it drops something
            call()

    def interrupt(call, span):
        raised.clear()
        with suppress(KeyboardInterrupt):
            repeat(call, span)

    previous = signal.signal(signal.SIGALRM, handler)
    yield interrupt
    signal.signal(signal.SIGALRM, previous)


def span_of(call):
    """How long it takes, twice."""
    call()
    began = time.monotonic()
    call()
    return max(2 * (time.monotonic() - began), 1e-4)


def check_usable(server):
    """Nothing is in flight, nobody holds the server, it goes on. The fixtures count the rest."""
    gc.collect()
    lifecycle = server._lifecycle
    for queue in (lifecycle.queue, *lifecycle.queues):
        assert queue.settle(time.monotonic() + 10)
    assert lifecycle._users.threads() == set()
    assert server.model("echo").infer(ONE, timeout=10)["OUTPUT0"].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "call",
    [infer, result, dropped, stream, in_order, as_completed, trace, metadata],
    ids=lambda call: call.__name__,
)
def test_ctrl_c_may_come_at_any_moment(server, interrupt, call):
    """Every request is over in the end, every buffer given back, no lock left taken."""
    span = span_of(lambda: call(server))
    for _ in range(TIMES):
        interrupt(lambda: call(server), span)
    check_usable(server)


def test_ctrl_c_may_come_while_a_metric_is_written(server, interrupt):
    """Its lock is free for other threads afterwards."""
    values = []
    with MetricFamily(MetricKind.COUNTER, "interrupted") as family:
        metric = family.metric(a="b")
        span = span_of(metric.increment)
        for _ in range(TIMES):
            interrupt(metric.increment, span)
        thread = threading.Thread(target=lambda: values.append(metric.value()), daemon=True)
        thread.start()
        thread.join(30)
    assert values


async def async_infer(model):
    """Several tasks at a time."""
    await asyncio.gather(*(model.async_infer(ONE) for _ in range(3)))


async def async_map(model):
    """A map."""
    async for _ in model.async_map([ONE] * 12, in_flight=4):
        pass


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there Ctrl-C breaks asyncio itself")
@pytest.mark.parametrize("call", [async_infer, async_map], ids=lambda call: call.__name__)
def test_ctrl_c_may_come_at_any_moment_in_an_event_loop(server, caplog, call):
    """There it cancels the task in ``asyncio.run``; no callback of ours trips over that."""
    model = server.model("echo")
    span = span_of(lambda: asyncio.run(call(model)))
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))

    async def run():
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, span))
        while True:
            await call(model)

    try:
        for _ in range(TIMES // 3):
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(run())
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert caplog.messages == []
    check_usable(server)
