# SPDX-License-Identifier: Apache-2.0
"""Signal handlers and finalizers that use the server, in the midst of calls of the same thread.

They run between any two steps of Python; here at chosen ones (`_interrupted`).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress

import _backend
import numpy as np
import pytest
from _interrupted import InterruptionError, cut_short, interrupt, interrupted, later

import tritonffi
from tritonffi import InternalError, Server, TritonError, _async_map, _asyncio, _inference
from tritonffi._native import ffi, lib

FP32 = {"INPUT0": ("FP32", [-1])}
ONES = {"INPUT0": [1.0]}
HELD = {"hold": "start", "ignore_cancel": True}


@pytest.fixture
def start(tmp_path, backend_directory):
    """Starts servers over a repository with the model `one`; they are closed in the end."""
    _backend.write_model(tmp_path / "models", "one", FP32)
    servers = []

    def start():
        server = Server(tmp_path / "models", backend_directory=backend_directory)
        servers.append(server)
        server.model("one").infer(ONES)
        return server

    yield start
    for server in servers:
        server.close()


def infer(model):
    """Return the values of one inference."""
    return model.infer(ONES)["OUTPUT0"].tolist()


def submit(model):
    """Return the values of two inferences."""
    return [i.result()["OUTPUT0"].tolist() for i in [model.submit(ONES), model.submit(ONES)]]


def in_order(model):
    """Return the values of a map."""
    with model.map([ONES] * 3, in_flight=3) as responses:
        return [r["OUTPUT0"].tolist() for r in responses]


def as_completed(model):
    """Return the values of one that gives what is there."""
    with model.map([ONES] * 3, in_flight=3, ordered=False) as responses:
        return [r["OUTPUT0"].tolist() for r in responses]


def stream(model):
    """Return the values of a stream."""
    with model.stream(ONES) as responses:
        return [r["OUTPUT0"].tolist() for r in responses]


@pytest.mark.parametrize("call", [infer, submit, in_order, as_completed, stream])
def test_a_handler_may_close_at_any_step_of_a_call(start, call):
    """It closes at once, and the call ends with its result or a TritonError."""
    number = 1
    came = True
    while came:
        server = start()
        model = server.model("one")
        whole = call(model)
        took = []

        def handler(server=server, took=took):
            began = time.monotonic()
            server.close()
            took.append(time.monotonic() - began)

        came, result = interrupted(number, handler, lambda model=model: call(model))
        if came:
            assert took[0] < 10  # and not the 30 of exit_timeout
            assert isinstance(result, TritonError) or result == whole
            assert server._lifecycle._server is None
        server.close()
        number = later(number)
    assert number > 40


def test_a_handler_may_close_at_any_step_of_a_close(start):
    """The close that it has interrupted goes on, and is the one that counts."""
    number = 1
    came = True
    while came:
        server = start()
        made = server._lifecycle._server
        came, result = interrupted(number, server.close, server.close)
        assert result is None
        assert server._lifecycle._server is None
        assert made.is_stopped
        number = later(number)
    assert number > 40


def prepared(call):
    """Return the values of a map of a prepared call."""
    ones = {"INPUT0": np.ones(1, np.float32)}
    with call.map([ones] * 3, in_flight=3) as responses:
        return [r["OUTPUT0"].tolist() for r in responses]


@pytest.mark.parametrize("call", [infer, submit, stream, in_order, as_completed, prepared])
def test_what_a_handler_raises_comes_out(start, call):
    """Whatever class it has: a `TimeoutError` of an alarm, say, is no failure of an item."""
    model = start().model("one")
    # Made before: not in every Python does what is raised here behind the last call of a `with`
    # block get into it, as it would from a signal.
    subject = model.prepare(ONES) if call is prepared else model
    expected = call(subject)
    number = 0
    came = True
    while came:
        number = later(number)
        came = told = False
        try:
            came, result = interrupted(number, interrupt, lambda: call(subject))
        except InterruptionError:
            came = told = True
        assert told or not came, number
    assert result == expected
    assert number > 40


def test_a_handler_may_raise_at_any_step_of_a_close(start):
    """The next close goes on where that one was cut short."""
    watchers = tritonffi._log.capture._watchers
    number = 1
    came = True
    while came:
        server = start()
        lifecycle = server._lifecycle
        made = lifecycle._server
        came = cut_short(number, server.close)
        # By another thread, for which no lock is in the way.
        closing = threading.Thread(target=server.close)
        closing.start()
        closing.join(30)
        assert lifecycle._server is None
        assert made.is_stopped
        assert lifecycle not in watchers
        # It is deleted when no server runs any more, and its folder with it.
        assert made.folder.exists() == (made in tritonffi._process.process._servers)
        number = number + 1 if number < 25 else later(number)  # each, where locks are taken
    assert number > 40


def test_a_server_that_is_dropped_after_a_close_that_was_cut_short_closes():
    """Without a warning, where that was at work: somebody has called `close`."""
    number = 1
    came = True
    while came:
        server = Server()
        lifecycle = server._lifecycle
        made = lifecycle._server
        came = cut_short(number, server.close)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            is_open = not server.closed
            del server
            gc.collect()
            for thread in threading.enumerate():
                if thread.name.startswith("tritonffi: closing"):
                    thread.join(30)
        assert [warning.category for warning in told] == [ResourceWarning] * is_open
        assert lifecycle._server is None, number
        assert made.is_stopped
        number = later(number)
    assert number > 40


def test_a_start_is_taken_back_where_its_look_at_the_log_is_cut_short(tmp_path, monkeypatch):
    """Lines are handed on there, of which there may be none, or many."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tritonffi._log.capture, "mark", interrupt)
    watchers = set(tritonffi._log.capture._watchers)
    with pytest.raises(InterruptionError):
        Server()
    assert list(tmp_path.iterdir()) == []
    assert set(tritonffi._log.capture._watchers) == watchers


def test_a_handler_may_raise_at_any_step_of_a_start(tmp_path, monkeypatch):
    """Whatever there is by then is taken back: folder, thread, server."""
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    running = _backend.running_servers()
    watchers = set(tritonffi._log.capture._watchers)
    number = 1
    came = True
    while came:
        started = []
        came = cut_short(number, lambda started=started: started.append(Server()))
        for thread in threading.enumerate():
            if thread.name.startswith("tritonffi: starting"):
                thread.join(30)
        for server in started:
            server.close()
        gc.collect()  # a server that was made, and whose constructor was cut short right after
        for thread in threading.enumerate():
            if thread.name.startswith("tritonffi: closing"):
                thread.join(30)
        stopped = {s.folder for s in tritonffi._process.process._servers if s.is_stopped}
        assert set(folders.iterdir()) <= stopped  # and then it goes with its server
        assert _backend.running_servers() == running
        assert set(tritonffi._log.capture._watchers) == watchers
        number = later(number)
    assert number > 40


@pytest.mark.parametrize("ordered", [True, False])
def test_a_handler_may_raise_at_any_step_of_a_map(start, ordered):
    """Asked again, it gives what became of each item, once."""

    def press_ctrl_c():
        raise KeyboardInterrupt

    def outcome(response):
        """Return what came back; that one response may be lost while it is read is known."""
        if isinstance(response, InternalError):
            assert "the reading of a response was interrupted" in str(response)
            return None
        return response["OUTPUT0"].item()

    model = start().model("one")
    count = 5
    number = 1
    came = True
    while came:
        items = ({"INPUT0": [float(i)]} for i in range(count))
        got = []
        with model.map(items, in_flight=3, ordered=ordered, return_errors=True) as responses:

            def read(responses=responses, got=got):
                for response in responses:
                    got += [response]  # with no call behind the step of the map

            with suppress(KeyboardInterrupt):
                came, _ = interrupted(number, press_ctrl_c, read)
            got += responses
        left = [outcome(response) for response in got]
        expected = [float(i) for i in range(count)]
        if None in left:
            lost = (set(expected) - set(left)).pop()
            left[left.index(None)] = lost
        assert (left if ordered else sorted(left)) == expected, number
        number += 7
    assert number > 40


def test_a_close_that_did_not_begin_is_made_up_for(start):
    """A handler closes in the midst of a close, which counts for nothing, and raises."""
    number = 1
    is_open = True
    while is_open:
        server = start()

        def handler(server=server):
            server.close()
            interrupt()

        with suppress(InterruptionError):
            interrupted(number, handler, server.close)
        is_open = not server.closed
        assert server._finalizer.alive or not is_open, number
        number += 1


def alive_functions():
    """How many callables C holds."""
    counters = ffi.new("tffi_counters *")
    lib.tffi_counters_read(counters)
    return counters.functions


@pytest.mark.parametrize("is_reload", [False, True])
def test_a_handler_may_raise_at_any_step_of_a_callable_s_load(start, is_reload):
    """It is loaded or it is not; the one before it serves as long as it is not."""
    before = alive_functions()
    server = start()
    tensor = ("FP32", [-1])

    def load(value):
        server.load_function("f", lambda x: x + value, inputs={"x": tensor}, outputs={"y": tensor})

    number = 1
    came = True
    while came:
        if is_reload:
            load(1)
        came = cut_short(number, lambda: load(2))
        for thread in threading.enumerate():
            if thread.name.startswith("tritonffi: loading"):
                thread.join(30)
        if is_reload or not came:
            assert server.model("f").infer({"x": [0.0]})["y"].item() in ((1, 2) if came else (2,))
        number += 4  # a few may be the end of the model
    assert number > 40
    assert server._lifecycle.failed_reloads == set()
    server.close()
    gc.collect()
    assert alive_functions() == before


@pytest.mark.parametrize("how", ["infer", "map"])
def test_a_handler_that_raises_in_a_close_loses_no_task(start, gate, how):
    """The next close wakes those who wait in the event loop of another thread."""
    server = start()
    model = server.model("one")
    outcomes = []

    async def infer():
        await model.async_infer(ONES, parameters=HELD)

    async def infer_each():
        async for _ in model.async_map([ONES], parameters=HELD):
            pass

    async def run():
        tasks = [{"infer": infer, "map": infer_each}[how]() for _ in range(3)]
        outcomes.extend(await asyncio.gather(*tasks, return_exceptions=True))

    loop = threading.Thread(target=lambda: asyncio.run(run()))
    loop.start()
    gate.wait()
    wakes = {
        "infer": _asyncio.AwaitedInference.wake.__code__,
        "map": _async_map.AwaitedResults.wake.__code__,
    }
    came = []

    def trace(frame, event, _):
        if event == "call" and frame.f_code is wakes[how] and not came:
            came.append(frame)
            raise InterruptionError

    opening = threading.Timer(0.1, gate.open)
    opening.start()
    sys.settrace(trace)
    try:
        with suppress(InterruptionError):
            server.close()
    finally:
        sys.settrace(None)
        came.clear()
    opening.join()
    server.close()
    loop.join(30)
    assert not loop.is_alive()
    assert len(outcomes) == 3
    assert all(outcome is None or isinstance(outcome, TritonError) for outcome in outcomes)


def test_a_close_waits_for_another_thread_no_longer_than_told(start, gate):
    """The other one goes on."""
    server = start()
    inference = server.model("one").submit(
        ONES, parameters={"hold": "start", "ignore_cancel": True}
    )
    gate.wait()
    closing = threading.Thread(target=server.close)
    closing.start()
    while not server.closed:
        time.sleep(0.001)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="another thread still closes it"):
        server.close(timeout=0.1)
    assert time.monotonic() - began < 5
    gate.open()
    closing.join(30)
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_a_handler_that_wants_what_it_has_interrupted_is_told(start, monkeypatch):
    """Waiting would be for ever: the result is on its way, in the very thread that waits."""
    inference = start().model("one").submit(ONES)
    told = []
    read = _inference.read

    def interrupting(*arguments):
        if not told:
            with pytest.raises(
                InternalError, match="a signal handler or a finalizer waits"
            ) as error:
                inference.result()
            told.append(error)
        return read(*arguments)

    monkeypatch.setattr(_inference, "read", interrupting)
    assert inference.result()["OUTPUT0"].tolist() == [1.0]
    assert told
