# SPDX-License-Identifier: Apache-2.0
"""Calls that take long and whose caller leaves: by a timeout, by Ctrl-C, by closing meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time

import _backend
import numpy as np
import pytest

from tritonffi import InvalidArgumentError, Server, Trace, TritonError

FP32 = {"INPUT0": ("FP32", [-1])}


def config(datatype="FP32", **parameters):
    """A config for the test backend."""
    return {
        "backend": "tffitest",
        "input": [{"name": "INPUT0", "data_type": f"TYPE_{datatype}", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": f"TYPE_{datatype}", "dims": [-1]}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


SLOW = {"init_hold": "true"}


@pytest.fixture
def small(tmp_path, backend_directory):
    """A server of the test's own over one model, `one`."""
    _backend.write_model(tmp_path / "models", "one", FP32)
    with Server(tmp_path / "models", backend_directory=backend_directory) as running:
        yield running


def settle(condition):
    """Wait until something is so that nobody tells of."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def errands():
    """The threads on which calls go on whose callers have left."""
    return [
        t
        for t in threading.enumerate()
        if t.name.startswith("tritonffi: ") and t.name != "tritonffi: log" and "#" not in t.name
    ]


def join_errands():
    """Wait for them."""
    for thread in errands():
        thread.join(30)
        assert not thread.is_alive()


def interrupt_at(gate):
    """Send SIGINT to the main thread when something stands at the gate."""

    def run():
        gate.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_load_goes_on_when_its_caller_is_tired_of_waiting(small, gate):
    """The old model serves until the new one is there, and then handles know the new one."""
    model = small.model("one")
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"loading model 'one' is not over after 0\.1 s"):
        small.load("one", config("INT32", **SLOW), timeout=0.1)
    assert time.monotonic() - start < 5
    gate.wait()
    assert model.infer({"INPUT0": [1.5]})["OUTPUT0"].dtype == np.float32
    gate.open()
    join_errands()
    assert model.infer({"INPUT0": [1]})["OUTPUT0"].dtype == np.int32


def test_ctrl_c_leaves_a_load(small, gate):
    """At once, though C is not through."""
    thread = interrupt_at(gate)
    with pytest.raises(KeyboardInterrupt):
        small.load("new", config(**SLOW))
    thread.join()
    assert errands()
    gate.open()
    join_errands()
    assert small.model("new").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


@pytest.mark.parametrize("before", ["callable", "backend", "nothing"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_callable_s_load_that_was_left_goes_on(small, before, fails):
    """Where there was a model of the name, the new one serves in its place; or there is none."""
    begun, go = threading.Event(), threading.Event()

    def new(x):
        begun.set()
        go.wait(30)
        return 1 / 0 if fails else x + 100

    tensor = {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}
    warm_up = [{"name": "w", "batch_size": 1, "inputs": {"x": tensor}}]
    kinds = {"inputs": {"x": ("FP32", [1])}, "outputs": {"y": ("FP32", [1])}}
    if before == "callable":
        small.load_function("f", lambda x: x, **kinds)
    elif before == "backend":
        _ = small.load("f", {**config(), "max_batch_size": 0})
    with pytest.raises(TimeoutError, match="loading model 'f' is not over after"):
        small.load_function("f", new, **kinds, config={"model_warmup": warm_up}, timeout=0.5)
    assert begun.wait(30)
    go.set()
    join_errands()
    assert small._lifecycle.failed_reloads == set()
    model = small.model("f")
    if before == "nothing" or fails:
        settle(lambda: not model.is_ready())
    else:
        assert model.infer({"x": [1.0]})["y"].tolist() == [101]


def test_a_start_that_was_left_is_undone(tmp_path, backend_directory, gate):
    """By a timeout; nothing of the server stays."""
    _backend.write_model(tmp_path, "slow", FP32, init_hold=True)
    running = _backend.running_servers()
    with pytest.raises(TimeoutError, match="starting server 'triton' is not over"):
        Server(tmp_path, backend_directory=backend_directory, start_timeout=0.1)
    gate.wait()
    gate.open()
    join_errands()
    assert _backend.running_servers() == running


def test_ctrl_c_leaves_a_start(tmp_path, backend_directory, gate):
    """The same by Ctrl-C."""
    _backend.write_model(tmp_path, "slow", FP32, init_hold=True)
    running = _backend.running_servers()
    thread = interrupt_at(gate)
    with pytest.raises(KeyboardInterrupt):
        Server(tmp_path, backend_directory=backend_directory)
    thread.join()
    gate.open()
    join_errands()
    assert _backend.running_servers() == running


def test_close_waits_no_longer_than_it_was_told(tmp_path, backend_directory, gate):
    """For a load that goes on: it says so, deletes nothing, and can be called again."""
    _backend.write_model(tmp_path, "one", FP32)
    server = Server(tmp_path, backend_directory=backend_directory)
    with pytest.raises(TimeoutError):
        server.load("slow", config(**SLOW), timeout=0.1)
    gate.wait()
    start = time.monotonic()
    with pytest.raises((TritonError, TimeoutError)):
        server.close(timeout=1)
    assert time.monotonic() - start < 8
    gate.open()
    join_errands()
    server.close()


def test_a_function_whose_load_was_left_is_not_served(small, gate):
    """It is taken back as soon as Triton is through; the name is free."""
    started, go_on = threading.Event(), threading.Event()

    def slow(x):
        started.set()
        go_on.wait(30)
        return {"y": x}

    spec = {"inputs": {"x": ("FP32", [1])}, "outputs": {"y": ("FP32", [1])}}
    warmup = {
        "name": "w",
        "batch_size": 1,
        "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}},
    }
    with pytest.raises(TimeoutError):
        small.load_function("slow", slow, config={"model_warmup": [warmup]}, timeout=0.2, **spec)
    started.wait(30)
    go_on.set()
    join_errands()
    settle(lambda: {s.name: s.state for s in small.models()}["slow"] == "UNAVAILABLE")
    model = small.load_function("slow", lambda x: {"y": x + 1}, **spec)
    assert model.infer({"x": [1.0]})["y"].tolist() == [2.0]


WRONG_TIMES = [
    ("1", TypeError),
    (True, TypeError),
    (np.float32(1), TypeError),
    (-1, InvalidArgumentError),
    (float("nan"), InvalidArgumentError),
]


@pytest.mark.parametrize(("seconds", "error"), WRONG_TIMES)
def test_what_is_no_time_is_refused_everywhere(small, seconds, error):
    """Before anything was begun, in the same words."""
    model = small.model("one")
    inference = model.submit({"INPUT0": [1.0]})
    with Trace() as trace:
        for call in (
            lambda: model.infer({"INPUT0": [1.0]}, timeout=seconds),
            lambda: model.infer({"INPUT0": [1.0]}, queue_timeout=seconds),
            lambda: inference.wait(seconds),
            lambda: trace.wait(seconds),
            lambda: small.load("one", timeout=seconds),
            lambda: small.unload("one", timeout=seconds),
            lambda: small.load_function("f", abs, inputs={}, outputs={}, timeout=seconds),
            lambda: small.poll(timeout=seconds),
            lambda: small.close(seconds),
            lambda: Server(start_timeout=seconds),
        ):
            with pytest.raises(error, match="timeout must be a number of seconds"):
                call()
    assert inference.result()["OUTPUT0"].tolist() == [1]


@pytest.mark.parametrize("seconds", [1e300, float("inf"), np.float64(30), 30, None])
def test_any_number_is_a_time(tmp_path, backend_directory, seconds):
    """For ever too."""
    _backend.write_model(tmp_path, "one", FP32)
    server = Server(tmp_path, backend_directory=backend_directory, start_timeout=seconds)
    model = server.load("one", timeout=seconds)
    assert model.infer({"INPUT0": [1.0]}, timeout=seconds)["OUTPUT0"].tolist() == [1]
    assert model.submit({"INPUT0": [1.0]}).result(seconds)["OUTPUT0"].tolist() == [1]
    server.unload("one", timeout=seconds)
    server.close(seconds)
