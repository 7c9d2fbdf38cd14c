# SPDX-License-Identifier: Apache-2.0
"""Models are let go only when Triton's threads are at rest, or Triton crashes on a busy machine."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from tritonffi import _rest

# In a process of its own, because what is tested for is a crash.
LOOP = """
import tritonffi
tensor = ("FP32", [4])
warm_up = [{"name": "w", "batch_size": 1, "inputs": {
    "x": {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}}}]
with tritonffi.Server(REPOSITORY, backend_directory=BACKENDS, startup_models=["echo"]) as server:
    for i in range(20):
        load = lambda f, config={}: server.load_function(
            "f", f, inputs={"x": tensor}, outputs={"y": tensor}, max_batch_size=4, config=config)
        load(lambda x: x).infer({"x": [[1.0, 2.0, 3.0, 4.0]]})
        if i % 2:
            server.unload("f")
        try:
            load(lambda x: 1 / 0, {"model_warmup": warm_up})
        except ZeroDivisionError:
            pass
        server.model("echo").infer({"INPUT0": [1.0]})
        server.unload("echo")
        server.load("echo")
print("through")
"""


def test_unloads_right_after_an_inference_survive_a_busy_machine(on_a_busy_machine):
    """Unload, reload, failed warm-up and close while twice as many processes run as cores are."""
    done = on_a_busy_machine(LOOP)
    assert (done.returncode, done.stdout, done.stderr) == (0, "through\n", "")


def test_a_model_is_held_until_its_requests_are_over(server, gate):
    """The pin goes after them, and a request of another model is not waited for as long."""
    lifecycle = server._lifecycle
    inference = server.model("echo").submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    gate.wait()
    began = time.monotonic()
    with lifecycle.use(), lifecycle.letting_go(lifecycle.handle(), {"echo"}, 0.1):
        pass
    assert time.monotonic() - began >= 0.1
    assert not inference.is_through()
    gate.release()
    with lifecycle.use(), lifecycle.letting_go(lifecycle.handle(), {"echo"}, 30):
        pass
    assert inference.is_through()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_nothing_is_held_of_a_model_that_is_not_there(server):
    """There is nothing to let go, so nothing is waited for."""
    lifecycle = server._lifecycle
    with lifecycle.use(), lifecycle.letting_go(lifecycle.handle(), {"nope"}, 30):
        pass


def test_threads_are_read_whatever_their_names():
    """A thread's name may hold parentheses and spaces."""
    text = b"12 (a) R (b) S " + b" ".join(b"%d" % number for number in range(4, 53))
    assert _rest._read(text) == (b"S", 14 + 15)
    state, ticks = _rest._read(Path("/proc/self/stat").read_bytes())
    assert state == b"R"
    assert abs(ticks - sum(os.times()[:2]) * os.sysconf("SC_CLK_TCK")) < 100


def test_each_thread_that_runs_is_waited_for_until_it_has_slept_or_run_long(monkeypatch):
    """One that gets no turn is not taken for one that rests, and one that begins later is not."""
    looks = [
        {1: 7, 2: 7, 3: 7},
        {1: 7, 2: 8, 3: 7, 4: 0},
        {1: 7, 2: 9, 4: 0},
        {1: 7, 2: 9, 3: 7, 4: 0},
        {3: 7, 4: 0},
    ]
    monkeypatch.setattr(_rest, "_running", lambda _: looks.pop(0))
    _rest._wait_rest()
    assert looks == []
    looks[:] = [{1: 7}] * 1000
    monkeypatch.setattr(_rest, "_REST_S", 0.01)
    _rest._wait_rest()
    assert 0 < len(looks) < 999


def test_only_those_that_ran_are_looked_at_again(monkeypatch):
    """Hundreds of models have many hundreds of threads, and each look takes time itself."""
    asked = []
    looks = [{3: 7, 5: 7}, {5: 7}, {}]

    def running(threads):
        asked.append(set(threads))
        return looks.pop(0)

    monkeypatch.setattr(_rest, "_threads", lambda: {1, 2, 3, 4, 5})
    monkeypatch.setattr(_rest, "_running", running)
    _rest._wait_rest()
    assert asked == [{1, 2, 3, 4, 5}, {3, 5}, {5}]


def test_threads_of_python_do_not_count():
    """Who waits is one of them; one that has ended does not run."""
    this = threading.get_native_id()
    assert this not in _rest._threads()
    assert this in _rest._running([this])
    assert _rest._running([2**22 + 1]) == {}  # more than the kernel gives


def test_where_the_system_does_not_tell_what_runs_a_model_is_let_go_all_the_same(
    server, monkeypatch
):
    """Triton was told: an error would leave the books as if the model were still there."""
    spec = {"inputs": {"x": ("FP32", [1])}, "outputs": {"y": ("FP32", [1])}}
    model = server.load_function("blind", lambda x: x, **spec)
    monkeypatch.setattr(_rest, "_TASKS", "/nonexistent/task")
    server.load_function("blind", lambda x: x + 1, **spec)
    assert model.infer({"x": [1.0]})["y"].tolist() == [2]
    server.unload("blind")
    assert "blind" not in server._lifecycle.functions


@pytest.mark.parametrize(
    ("error", "waited", "raised"),
    [
        (OSError(errno.EMFILE, "too many open files"), [_rest._BLIND_S], None),
        (OSError(errno.ENOENT, "no /proc"), [_rest._BLIND_S], None),
        (TimeoutError("of a signal handler"), [], TimeoutError),
    ],
    ids=["descriptors", "proc", "a handler"],
)
def test_what_cannot_be_seen_is_waited_for_blindly(monkeypatch, error, waited, raised):
    """For a fixed time; what a signal handler raises is none of the system's errors."""
    sleeps = []

    def fail(*_):
        raise error

    monkeypatch.setattr(_rest.os, "listdir", fail)
    monkeypatch.setattr(_rest.time, "sleep", sleeps.append)
    with pytest.raises(raised) if raised else nullcontext():
        _rest._wait_rest()
    assert sleeps == waited


def test_a_thread_that_cannot_be_read_has_not_ended(monkeypatch):
    """The last descriptor may go to another between the list of threads and the first of them."""

    def fail(*_, **__):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(_rest, "keep", fail)
    with pytest.raises(OSError, match="too many"):
        _rest._running([threading.get_native_id()])


@pytest.mark.parametrize("count", [1, 3])
def test_an_unload_is_still_quick(server, echo, count, monkeypatch):
    """Holding takes no longer than the threads need: the limits, here for ever, are not reached."""
    monkeypatch.setattr(_rest, "_REST_S", 1e6)
    monkeypatch.setattr(_rest, "_OTHERS_S", 1e6)
    for _ in range(count):
        echo.infer({"INPUT0": np.ones(4, np.float32)})
    server.unload("echo", timeout=30)
    server.load("echo", timeout=30)
