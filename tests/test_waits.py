# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, and handlers of SIGTERM, while the main thread is in any call that waits.

Each call here would wait for ever. The time that is asked for is that of a slow machine; where it
has nothing else to do, all of them end within 0.2 s.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager

import _backend
import numpy as np
import pytest

from tritonffi import ClosedError, ModelControlMode, Server, Trace, TritonError, chrome_trace

LIMIT_S = 5
ONE = {"INPUT0": [1.0]}
HELD = {"parameters": {"hold": "start"}}
FP32 = {"INPUT0": ("FP32", [-1])}
TENSOR = ("FP32", [-1])
SLOW = {
    "backend": "tffitest",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "parameters": {"init_hold": {"string_value": "true"}},
}


@contextmanager
def signalled(number, when):
    """Send this process a signal as soon as `when` returns; say when that was."""
    sent = []

    def send():
        when()
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        thread.join()


def interrupted(call, when):
    """Call, and be interrupted; returns how long that took."""
    begun = threading.Event()

    def begin():
        begun.set()
        call()

    def wait():
        begun.wait(30)
        when()

    with signalled(signal.SIGINT, wait) as sent, pytest.raises(KeyboardInterrupt):
        begin()
    return time.monotonic() - sent[0]


def until(condition):
    """Wait for what nobody tells of."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def join_all(name):
    """Wait for the calls that go on, whose callers have left."""
    for thread in threading.enumerate():
        if f"model {name!r}" in thread.name or "server" in thread.name:
            thread.join(30)
            assert not thread.is_alive()


def infer(server):
    """One inference."""
    server.model("echo").infer(ONE, **HELD)


def function(server):
    """A Python function that calls a model."""
    server.model("calls").infer({"x": [1.0]})


def stream(server):
    """Responses one by one."""
    with server.model("stream").stream({"INPUT0": [1]}, **HELD) as responses:
        next(responses)


def in_order(server):
    """A map."""
    with server.model("echo").map([ONE] * 3, **HELD) as responses:
        next(responses)


def as_completed(server):
    """The other kind of a map."""
    with server.model("echo").map([ONE] * 3, ordered=False, **HELD) as responses:
        next(responses)


def sequence(server):
    """A request of a sequence."""
    server.model("sequence").sequence().infer({"INPUT0": [[1]]}, sequence_end=True, **HELD)


def sequence_stream(server):
    """The same, one by one."""
    last = {"sequence_end": True, **HELD}
    with server.model("sequence").sequence().stream({"INPUT0": [[1]]}, **last) as responses:
        next(responses)


def run_awake(coroutine):
    """Run it in an event loop that sleeps through no signal.

    One that goes to sleep as the signal comes does, until something else happens; but not where it
    handles any signal itself.
    """

    async def run():
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: None)
        await coroutine

    asyncio.run(run())


def async_infer(server):
    """In an event loop."""
    run_awake(server.model("echo").async_infer(ONE, **HELD))


def async_stream(server):
    """Responses one by one in an event loop."""

    async def run():
        async with server.model("stream").async_stream({"INPUT0": [1]}, **HELD) as responses:
            await anext(responses)

    run_awake(run())


def async_map(server):
    """A map in an event loop."""

    async def run():
        async with server.model("echo").async_map([ONE] * 3, **HELD) as responses:
            await anext(responses)

    run_awake(run())


def async_sequence(server):
    """A request of a sequence in an event loop."""
    started = server.model("sequence").sequence()
    run_awake(started.async_infer({"INPUT0": [[1]]}, sequence_end=True, **HELD))


REQUESTS = [
    infer,
    stream,
    in_order,
    as_completed,
    sequence,
    sequence_stream,
    async_infer,
    async_stream,
    async_map,
    async_sequence,
]


@pytest.mark.parametrize("call", REQUESTS, ids=lambda call: call.__name__)
def test_ctrl_c_ends_the_wait_for_a_request_and_cancels_it(server, echo, gate, call):
    """Nobody opens the gate, so what stood there has left because it was cancelled."""
    assert interrupted(lambda: call(server), gate.wait) < LIMIT_S
    until(lambda: gate.waiting() == 0)
    assert echo.infer(ONE)["OUTPUT0"].tolist() == [1.0]


class Interrupting:
    """An input in whose making Ctrl-C comes."""

    def __array__(self, *_, **__):
        """Be made an array."""
        raise KeyboardInterrupt


@pytest.mark.parametrize("first", [[1.0], np.ones(1, np.float32)], ids=["list", "array"])
@pytest.mark.parametrize("way", ["in order", "as completed", "async"])
def test_ctrl_c_between_the_items_of_a_map_cancels_those_before(echo, gate, way, first):
    """They are submitted, and nobody has got them yet."""
    items = [{"INPUT0": first}, {"INPUT0": first}, {"INPUT0": Interrupting()}]

    async def take():
        async with echo.async_map(items, **HELD) as responses:
            await anext(responses)

    def run():
        if way == "async":
            run_awake(take())
        else:
            next(echo.map(items, ordered=way == "in order", **HELD))

    with pytest.raises(KeyboardInterrupt):
        run()
    until(lambda: gate.waiting() == 0)
    assert echo.infer(ONE)["OUTPUT0"].tolist() == [1.0]


def test_ctrl_c_ends_the_wait_for_a_function_that_waits(server, echo, gate):
    """It calls another model; that call is its own, and goes on."""
    model = server.load_function(
        "calls", lambda x: echo.infer({"INPUT0": x}, **HELD)["OUTPUT0"], inputs={"x": TENSOR},
        outputs={"y": TENSOR},
    )  # fmt: skip
    assert interrupted(lambda: model.infer({"x": [1.0]}), gate.wait) < LIMIT_S
    gate.open()
    assert model.infer({"x": [2.0]})["y"].tolist() == [2.0]
    server.unload("calls")


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(lambda inference, _: inference.result(), id="result"),
        pytest.param(lambda inference, _: inference.result(timeout=600), id="result, timeout"),
        pytest.param(lambda inference, _: inference.wait(), id="wait"),
        pytest.param(lambda inference, _: inference.wait(600), id="wait, timeout"),
        pytest.param(lambda _, trace: trace.wait(), id="trace"),
        pytest.param(lambda _, trace: trace.record(timeout=600), id="record"),
        pytest.param(lambda _, trace: trace.spans, id="spans"),
        pytest.param(lambda _, trace: chrome_trace([trace]), id="chrome_trace"),
    ],
)
def test_ctrl_c_ends_the_wait_for_what_was_submitted(echo, gate, wait):
    """It goes on, and may be asked again."""
    trace = Trace()
    inference = echo.submit(ONE, trace=trace, **HELD)
    assert interrupted(lambda: wait(inference, trace), gate.wait) < LIMIT_S
    gate.open()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]
    assert trace.record().spans


@pytest.mark.parametrize("timeout", [None, 600])
def test_ctrl_c_ends_the_wait_for_a_load(server, gate, timeout):
    """Which goes on, and the model is there in the end."""
    assert interrupted(lambda: server.load("late", SLOW, timeout=timeout), gate.wait) < LIMIT_S
    gate.open()
    join_all("late")
    assert server.model("late").infer(ONE)["OUTPUT0"].tolist() == [1.0]
    server.unload("late")


@pytest.mark.parametrize("timeout", [None, 600])
def test_ctrl_c_ends_the_wait_for_an_unload(server, gate, timeout):
    """Which goes on, and the model is gone in the end."""
    config = {**SLOW, "parameters": {"finalize_hold": {"string_value": "true"}}}
    server.load("late", config)
    assert interrupted(lambda: server.unload("late", timeout=timeout), gate.wait) < LIMIT_S
    gate.open()
    join_all("late")
    states = [status.state for status in server.models() if status.name == "late"]
    assert states == ["UNAVAILABLE"]


@pytest.mark.parametrize("timeout", [None, 600])
def test_ctrl_c_ends_the_wait_for_the_making_of_an_object(server, timeout):
    """The object comes to nothing; the name is free."""
    entered, may_go = threading.Event(), threading.Event()

    class Slow:
        def __init__(self):
            entered.set()
            assert may_go.wait(30)

        def __call__(self, x):
            return x

    spec = {"inputs": {"x": TENSOR}, "outputs": {"y": TENSOR}}
    load = lambda: server.load_function("late", Slow, timeout=timeout, **spec)  # noqa: E731
    assert interrupted(load, entered.wait) < LIMIT_S
    may_go.set()
    join_all("late")
    until(lambda: not [t for t in threading.enumerate() if "late #" in t.name])
    model = server.load_function("late", lambda x: x, **spec)
    assert model.infer({"x": [1.0]})["y"].tolist() == [1.0]
    server.unload("late")


@pytest.fixture
def models(tmp_path):
    """A repository with a model that starts at once and one that does not."""
    _backend.write_model(tmp_path / "models", "one", FP32)
    _backend.write_model(tmp_path / "models", "slow", FP32, init_hold=True)
    return tmp_path / "models"


@pytest.mark.parametrize("timeout", [None, 600])
def test_ctrl_c_ends_the_wait_for_a_start(models, backend_directory, gate, timeout):
    """The server is undone; another one starts."""
    start = lambda: Server(models, backend_directory=backend_directory, start_timeout=timeout)  # noqa: E731
    assert interrupted(start, gate.wait) < LIMIT_S
    gate.open()
    join_all("slow")
    with start() as server:
        assert server.model("one").infer(ONE)["OUTPUT0"].tolist() == [1.0]


def test_ctrl_c_ends_the_wait_for_a_poll(models, backend_directory, gate):
    """What has changed is loaded in the end."""
    shutil.move(models / "slow", models.parent / "slow")
    options = {"backend_directory": backend_directory, "model_control_mode": ModelControlMode.POLL}
    with Server(models, **options) as server:
        shutil.move(models.parent / "slow", models / "slow")
        assert interrupted(server.poll, gate.wait) < LIMIT_S
        gate.open()
        until(server.model("slow").is_ready)


@pytest.mark.parametrize("leave", [Server.close, lambda s: s.__exit__(None, None, None)])
def test_ctrl_c_ends_the_wait_for_a_close(models, backend_directory, gate, leave):
    """It may be called again, and then it closes."""
    server = Server(models, backend_directory=backend_directory, startup_models=["one"])
    stubborn = {"hold": "start", "ignore_cancel": True}
    inference = server.model("one").submit(ONE, parameters=stubborn)
    gate.wait()
    assert interrupted(lambda: leave(server), lambda: until(lambda: server.closed)) < LIMIT_S
    gate.open()
    server.close()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


@pytest.fixture
def on_sigterm():
    """Installs handlers of SIGTERM."""
    previous = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, previous)


@pytest.fixture
def own(repository, backend_directory):
    """A server of the test's own over the models that all use."""
    with Server(repository, backend_directory=backend_directory) as running:
        yield running


@pytest.mark.parametrize("call", REQUESTS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("raises", [False, True])
def test_a_handler_may_close_while_a_call_waits(own, gate, on_sigterm, call, raises):
    """The server is closed when it returns, and the call ends: with what it raises, or an error."""
    took = []

    def handler(number, frame):
        began = time.monotonic()
        own.close()
        took.append(time.monotonic() - began)
        if raises:
            raise SystemExit

    on_sigterm(handler)
    expected = SystemExit if raises else TritonError
    with signalled(signal.SIGTERM, gate.wait), pytest.raises(expected):
        call(own)
    assert took[0] < LIMIT_S
    with pytest.raises(ClosedError):
        own.is_ready()


def exit_by_handler(call, when, on_sigterm):
    """Call, and be ended by a handler that does as `sys.exit`; returns how long that took."""

    def handler(number, frame):
        raise SystemExit(7)

    on_sigterm(handler)
    with signalled(signal.SIGTERM, when) as sent, pytest.raises(SystemExit, match="7"):
        call()
    return time.monotonic() - sent[0]


def test_a_handler_may_exit_during_a_start(models, backend_directory, gate, on_sigterm):
    """The server is undone."""
    start = lambda: Server(models, backend_directory=backend_directory)  # noqa: E731
    assert exit_by_handler(start, gate.wait, on_sigterm) < LIMIT_S
    gate.open()
    join_all("slow")


def test_a_handler_may_exit_during_a_load(server, gate, on_sigterm):
    """The load goes on."""
    assert exit_by_handler(lambda: server.load("late", SLOW), gate.wait, on_sigterm) < LIMIT_S
    gate.open()
    join_all("late")
    server.unload("late")
