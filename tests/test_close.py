# SPDX-License-Identifier: Apache-2.0
"""Closing: what cannot end in time, twice, from two threads, from odd places; and what follows."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
import warnings
from types import SimpleNamespace

import _backend
import numpy as np
import pytest
from _functions import workers

from tritonffi import (
    CancelledError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    Server,
    TritonError,
    UnavailableError,
    _lifecycle,
    _log,
    _python_backend,
)

FP32 = {"INPUT0": ("FP32", [-1])}
ONES = {"INPUT0": [1.0]}
HELD = {"hold": "start", "ignore_cancel": True}


@pytest.fixture
def start(tmp_path, backend_directory):
    """Starts servers over a repository with the model `one`; they are closed in the end."""
    for name in ("one", "two"):
        _backend.write_model(tmp_path / "models", name, FP32)
    _backend.write_model(tmp_path / "models", "slow_end", FP32, finalize_hold=True)
    _backend.write_model(tmp_path / "models", "slow_start", FP32, init_hold=True)
    with _backend.starting(tmp_path / "models", backend_directory) as start:
        yield start


def test_a_held_request_is_named_and_the_close_tried_again(start, gate):
    """The message says which model and how many; when the request has ended, close succeeds."""
    server = start(exit_timeout=0.3)
    inference = server.model("one").submit(ONES, parameters=HELD)
    gate.wait()
    for _ in range(2):
        with pytest.raises(
            TimeoutError,
            match=r"server 'triton' did not stop within 0.3 s: model 'one' \(version 1\) is "
            r"\w+ \(inferences in flight: 1\); close\(\) may be called again",
        ):
            server.close()
    assert server.closed
    gate.open()
    server.close()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_a_model_that_does_not_unload_is_waited_for_and_never_deleted(start, gate):
    """A second close waits as the first did: Triton's own stop would say that it is through."""
    server = start("slow_end", exit_timeout=0.3)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"model 'slow_end' .* is UNLOADING"):
            server.close()
    gate.open()
    server.close()
    with start() as other:
        assert other.model("one").infer(ONES)["OUTPUT0"].tolist() == [1.0]


def test_models_at_rest_are_not_named_with_one_that_is_stuck(start, gate):
    """They are held until it has answered or the time is over; each close names that one alone."""
    server = start("one", "two", exit_timeout=0.5)
    server.model("two").infer(ONES)
    inference = server.model("one").submit(ONES, parameters=HELD)
    gate.wait()
    for _ in range(2):
        with pytest.raises(TimeoutError) as caught:
            server.close()
        assert str(caught.value) == (
            "server 'triton' did not stop within 0.5 s: model 'one' (version 1) is UNLOADING "
            "(inferences in flight: 1); close() may be called again"
        )
    gate.open()
    server.close()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_models_with_something_in_flight_are_named_first(start, gate):
    """One that hangs with nothing in flight is named too, as soon as it had the time to unload."""
    server = start("slow_end", "one", exit_timeout=0.3)
    inference = server.model("one").submit(ONES, parameters=HELD)
    gate.wait()
    one = "model 'one' (version 1) is UNLOADING (inferences in flight: 1)"
    other = ", model 'slow_end' (version 1) is UNLOADING (inferences in flight: 0)"
    for more in ("", other):
        with pytest.raises(TimeoutError) as caught:
            server.close()
        assert str(caught.value) == (
            f"server 'triton' did not stop within 0.3 s: {one}{more}; close() may be called again"
        )
    gate.open()
    server.close()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_a_dead_stub_is_not_taken_for_the_reason_of_other_models(start, gate, monkeypatch):
    """Only a model of the python backend is given up for it; others get all of the time."""
    monkeypatch.setattr(_python_backend, "is_lost", lambda model=None: True)
    monkeypatch.setattr(_python_backend, "PATIENCE_S", 0.0)
    server = start("slow_end", exit_timeout=0.3)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"within 0.3 s: model 'slow_end' .* called again$"):
        server.close()
    assert time.monotonic() - began >= 0.3
    gate.open()
    server.close()


def test_close_during_a_load_ends_both(start, gate):
    """The close waits for the load and then unloads; the load raises or has succeeded."""
    server = start(exit_timeout=20)
    outcome = []

    def load():
        try:
            outcome.append(server.load("slow_start"))
        except TritonError as error:
            outcome.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    gate.wait()
    closing = threading.Thread(target=server.close)
    closing.start()
    while not server.closed:
        time.sleep(0.001)
    gate.open()
    closing.join(30)
    loading.join(30)
    assert not closing.is_alive()
    assert len(outcome) == 1


def test_two_threads_may_close(start):
    """Both return when it is closed, and a third close does nothing."""
    server = start()
    threads = [threading.Thread(target=server.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    server.close()
    assert server.closed


def test_a_server_closes_while_another_one_is_closing(start, gate):
    """Neither waits for the other, and what they share is given back after both."""
    slow, quick = start("slow_end", exit_timeout=20), start()
    closing = threading.Thread(target=slow.close)
    closing.start()
    gate.wait()
    quick.close()
    assert closing.is_alive()
    gate.open()
    closing.join(30)
    assert not closing.is_alive()
    with start() as other:
        assert other.model("one").infer(ONES)["OUTPUT0"].tolist() == [1.0]


def count_for_ever(x):
    """A decoupled model."""
    for number in itertools.count():
        yield {"y": x + number}


COUNTS = {"inputs": {"x": ("FP32", [1])}, "outputs": {"y": ("FP32", [1])}}


def test_streams_that_are_half_read_end_with_the_server(start):
    """What came before may be read to its end, which is an error; what was read stays."""
    server = start()
    model = server.load_function("counts", count_for_ever, **COUNTS)
    streams = [model.stream({"x": [1.0]}, max_pending=4) for _ in range(3)]
    read = [next(stream)["y"] for stream in streams]
    server.close()
    for stream in streams:
        with pytest.raises(TritonError):
            list(stream)
    assert np.concatenate(read).tolist() == [1.0] * 3


def until_closed(step, begun, problems):
    """Do something over and over, which fails for want of a model; others are waited for once."""
    for number in itertools.count():
        if number == 3:
            begun.wait(30)
        try:
            step()
        except (UnavailableError, NotFoundError, CancelledError, InvalidArgumentError):
            pass
        except ClosedError:
            return
        except Exception as error:  # noqa: BLE001 (shown by the assertion)
            problems.append(error)
            return


def test_two_threads_close_in_the_midst_of_everything(start):
    """Eight threads infer, two load and unload one model, two read streams: all of them end."""
    server = start(exit_timeout=20)
    model = server.load_function("counts", count_for_ever, **COUNTS)
    begun = threading.Barrier(14)
    problems = []

    def close():
        begun.wait(30)
        server.close()

    def reload():
        server.load("one")
        server.unload("one")

    steps = [
        *[lambda: server.model("one").infer(ONES)] * 8,
        *[reload] * 2,
        *[lambda: next(model.stream({"x": [1.0]}))] * 2,
    ]
    threads = [threading.Thread(target=until_closed, args=(s, begun, problems)) for s in steps]
    threads += [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [thread for thread in threads if thread.is_alive()] == []
    assert problems == []
    assert server._lifecycle._server is None


def test_a_function_may_close_its_own_server(start):
    """The request is given up or answered; the close, from inside the callable, is bounded."""
    server = start(exit_timeout=5)
    closed = threading.Event()
    problems = []

    def close(a):
        try:
            server.close(timeout=2)
        except Exception as error:  # noqa: BLE001 (shown by the assertion)
            problems.append(error)
        closed.set()
        return {"b": a}

    spec = ("FP32", [-1])
    model = server.load_function("closer", close, inputs={"a": spec}, outputs={"b": spec})
    with pytest.raises(TritonError):
        model.infer({"a": [1.0]})
    assert closed.wait(30)
    server.close()
    for thread in workers("closer"):
        thread.join(30)
    assert all(isinstance(problem, (TimeoutError, TritonError)) for problem in problems)


def test_a_model_of_a_closed_server_leaves_the_next_server_alone(start):
    """What is ready there stays there: the queues of closed servers are used again."""
    first = start()
    stale = first.model("one")
    stale.infer(ONES)
    first.close()
    second = start()
    inference = second.model("one").submit(ONES)
    while not second._lifecycle.queue.ready[0]:
        time.sleep(0.001)
    with pytest.raises(ClosedError):
        stale.submit(ONES)
    assert inference.result(timeout=10)["OUTPUT0"].tolist() == [1.0]


def test_garbage_collection_may_close_a_server_at_any_moment(start):
    """In the midst of reading the log, too, where locks are held."""
    server = start()
    server.model("one").infer(ONES)
    lifecycle = server._lifecycle
    before = gc.get_threshold()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        gc.disable()
        cycle = [Server()]
        cycle.append(cycle)
        lost = cycle[0]._lifecycle
        del cycle
        with _log.capture.steady() as path:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(file, b'I1129 00:00:00.0 1 some.cc:1] "a line"\n' * 5000)
        os.close(file)
        gc.set_threshold(50, 1, 1)
        gc.enable()
        try:
            _log.capture.forward()
            gc.collect()
        finally:
            gc.set_threshold(*before)
    for _ in range(3000):
        if lost._server is None:
            break
        time.sleep(0.01)
    assert lost._server is None
    assert lifecycle.native is not None


def test_who_unloads_takes_what_others_wait_for_and_wakes_them(start):
    """One who was about to sleep until something came would sleep for ever."""
    server = start()
    queue = server._lifecycle.queue
    inference = server.model("one").submit(ONES)
    wakes = queue.wakes[0]
    while not queue.ready[0]:
        time.sleep(0.001)
    server._lifecycle.inferences()
    assert inference.is_over
    assert queue.wait_any(time.monotonic(), wakes)


def test_sigterm_may_close_while_a_call_waits(start, gate):
    """A handler that closes: the call ends with an error, the close is quick."""
    server = start(exit_timeout=20)
    took = []

    def handler(number, frame):
        began = time.monotonic()
        server.close()
        took.append(time.monotonic() - began)

    def send():
        gate.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, handler)
    thread = threading.Thread(target=send)
    try:
        thread.start()
        with pytest.raises(TritonError):
            server.model("one").infer(ONES, parameters={"hold": "start"})
        while not took:
            time.sleep(0.001)
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, previous)
    assert took[0] < 2


def test_a_signal_handler_that_closes_does_not_wait_for_the_call_it_interrupted(start):
    """It raises at once, for the call goes on with the server; then close may be called again."""
    server = start(exit_timeout=20)
    began = time.monotonic()
    with server._lifecycle.use(), pytest.raises(TimeoutError, match="a call of it"):
        server.close()
    server.close()
    assert time.monotonic() - began < 5


def test_a_reload_that_failed_does_not_hold_up_close(start, caplog):
    """Triton never stops after one, so the server is left behind, empty; others are not touched."""
    server = start(exit_timeout=30)
    tensor = {"a": ("FP32", [-1])}
    model = server.load_function(
        "f", lambda a: {"b": a}, inputs=tensor, outputs={"b": ("FP32", [1])}
    )
    with pytest.raises(TritonError, match="no GPUs are available"):
        server.load_function(
            "f",
            lambda a: {"b": a},
            inputs=tensor,
            outputs={"b": ("FP32", [1])},
            config={"instance_group": [{"kind": "KIND_GPU"}]},
        )
    assert model.infer({"a": [4.0]})["b"].tolist() == [4.0]
    began = time.monotonic()
    with caplog.at_level("WARNING", logger="tritonffi"):
        server.close()
    assert time.monotonic() - began < 3
    assert "a server is left behind" in caplog.text
    assert "'f'" in caplog.text
    with start() as other:
        assert other.model("one").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


def test_arrays_in_any_order(start):
    """Server, model, inference, response and array are dropped in every order."""
    from itertools import permutations  # noqa: PLC0415 (here alone)

    for order in permutations(range(5)):
        server = start()
        model = server.model("one")
        inference = model.submit({"INPUT0": np.arange(2000, dtype=np.float32)})
        response = inference.result()
        things = [server, model, inference, response, response["OUTPUT0"]]
        last = things[4]
        del model, inference, response
        server.close()
        del server
        for index in order:
            things[index] = None
        assert last[1999] == 1999


def test_the_error_of_a_stop_is_kept_without_its_frames(monkeypatch):
    """They have the server, which would be there until the garbage collector ran."""

    def fail(*_):
        raise TritonError("no")

    class Native:
        def __getattr__(self, name):
            return fail

    monkeypatch.setattr(_lifecycle, "lib", Native())
    stopping = SimpleNamespace(
        name="x", _stopping=threading.Lock(), _is_stopped=False, _stop_error=None
    )
    for _ in range(2):
        with pytest.raises(TritonError, match=r"^no$"):
            _lifecycle.Lifecycle._stop(stopping, None, 1)
        assert stopping._stop_error.__traceback__ is None
