# SPDX-License-Identifier: Apache-2.0
"""Function models that fail: who gets the error, what it says, and that the server goes on."""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import logging
import shutil
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from _functions import BATCHED, FP32, Held, Loader, batching, identity, row, statistics, workers
from conftest import counters

import tritonffi
from tritonffi import (
    AlreadyExistsError,
    CancelledError,
    ClosedError,
    InternalError,
    InvalidArgumentError,
    Server,
    TritonError,
    UnavailableError,
    UnsupportedError,
    _native,
    _start,
)

WARM_UP = {
    "model_warmup": [
        {
            "name": "warm",
            "batch_size": 1,
            "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}},
        }
    ]
}


@pytest.fixture
def own_server():
    """A server of the test's own: a failed load makes a server unready for good."""
    with Server() as server:
        yield server


def boom(x):
    """Fail."""
    raise ValueError("boom")


def leave(x):
    """Leave the interpreter."""
    sys.exit(3)


def interrupt(x):
    """Do as Ctrl-C does."""
    raise KeyboardInterrupt


def exit_thread(x):
    """End this thread."""
    _thread.exit()


def recurse(x):
    """Never come to an end."""
    return recurse(x)


class Wordless(BaseException):
    """Has no text, not even an empty one."""

    def __str__(self):
        """Fail again."""
        raise ValueError


def not_a_number(x):
    """Fail without a word, and as UTF-8 cannot be."""
    raise ArithmeticError("\0 \udc80")


def raising(error):
    """Return a callable that raises this very object, again and again."""

    def raising(x):
        raise error

    return raising


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (boom, InternalError, "ValueError: boom"),
        (leave, InternalError, "SystemExit: 3"),
        (interrupt, InternalError, "KeyboardInterrupt"),
        (exit_thread, InternalError, "SystemExit"),
        (recurse, InternalError, "RecursionError: maximum recursion depth exceeded"),
        (raising(MemoryError()), InternalError, "MemoryError"),
        (raising(GeneratorExit()), InternalError, "GeneratorExit"),
        (raising(StopIteration(1)), InternalError, "StopIteration: 1"),
        (raising(asyncio.CancelledError()), InternalError, "CancelledError"),
        (raising(Wordless()), InternalError, "Wordless"),
        (not_a_number, InternalError, "ArithmeticError: \\0 \\udc80"),
        (lambda x: 1 // 0, InternalError, "ZeroDivisionError: integer division or modulo by zero"),
    ],
)
def test_an_exception_becomes_the_error_of_its_request(load, caplog, function, error, text):
    """Type and text for the caller, the traceback for the log, and the next call is served."""
    failing = threading.Event()
    failing.set()
    model = load(lambda x: function(x) if failing.is_set() else x)
    for _ in range(2):
        with pytest.raises(error) as caught:
            model.infer({"x": row(1)[0]})
        assert str(caught.value).endswith(f"model 'function': {text}")
    (record, _) = [r for r in caplog.records if r.name == "tritonffi.functions"]
    assert record.levelno == logging.ERROR
    assert "Traceback" in record.exc_text
    assert function.__name__ in record.exc_text
    failing.clear()
    assert model.infer({"x": row(1)[0]})["y"].item() == 1
    assert statistics(model) == {
        "inferences": 1,
        "executions": 1,
        "success": 1,
        "fail": 2,
        "sizes": {1: 1},
    }


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_is_thrown_into_a_worker_too_late_is_the_end_of_one_request(load, error):
    """As a library for timeouts does, when the call has just returned."""
    model = load(identity)
    (worker,) = workers()
    for _ in range(20):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(worker.ident), ctypes.py_object(error)
        )
        inference = model.submit({"x": [2.0]})
        assert inference.wait(30)
        with suppress(InternalError):
            inference.result()
        assert model.infer({"x": [3.0]})["y"].tolist() == [3.0]
    assert workers() == [worker]


@pytest.mark.parametrize("error", [InvalidArgumentError, UnavailableError, CancelledError])
def test_a_function_may_choose_the_kind_of_error(load, error):
    """What it raises of ours keeps its code on the way."""

    def refuse(x):
        raise error("not like this")

    with pytest.raises(error, match=r"not like this$"):
        load(refuse).infer({"x": row(1)[0]})


def test_an_exception_is_the_error_of_its_batch_and_of_no_other(load):
    """All requests that were stacked with the bad one fail, those before and after do not."""
    held = Held()

    def function(x):
        held(x)
        if (x < 0).any():
            raise ValueError("negative")
        return {"y": x}

    model = load(function, max_batch_size=64, config={"dynamic_batching": batching(3)})
    first = model.submit({"x": row(1)})
    held.wait()
    pending = [model.submit({"x": row(value)}) for value in (2, -3, 4)]
    held.may_go.set()
    assert first.result()["y"].item() == 1
    for inference in pending:
        with pytest.raises(InternalError, match="ValueError: negative"):
            inference.result()
    assert model.infer({"x": row(5)})["y"].item() == 5
    assert [len(call) for call in held.calls] == [1, 3, 1]
    held.calls.clear()
    assert statistics(model) == {
        "inferences": 2,
        "executions": 2,
        "success": 2,
        "fail": 3,
        "sizes": {1: 2},
    }


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda x: None, "TypeError: the function must return a dict with 'y', not NoneType"),
        (lambda x: {"q": x}, "the function's result lacks 'y' and has 'q', which is not declared"),
        (lambda x: {}, "the function's result lacks 'y'"),
        (lambda x: {"y": x, "q": x}, "the function's result has 'q', which is not declared"),
        (lambda x: {"y": x.astype(np.float64)}, "output 'y': expected FP32 (float32), got"),
        (lambda x: {"y": "text"}, "output 'y': "),
        (lambda x: {"y": object()}, "TypeError: output 'y': expected an array"),
        (lambda x: {"y": x[:1]}, "output 'y': wrong number of rows: expected 2, got 1"),
        (lambda x: {"y": x.reshape(-1)}, "output 'y': wrong number of rows: expected 2, got 6"),
        (lambda x: {"y": 1.0}, "output 'y': wrong number of rows: expected 2, got a scalar"),
        (lambda x: {"y": x[..., None]}, "output 'y': wrong shape: expected [-1,3], got [2,3,1]"),
        (lambda x: {"y": x[:, 1:]}, "output 'y': wrong shape: expected [-1,3], got [2,2]"),
    ],
)
def test_a_wrong_result_is_an_error_in_words(load, result, text):
    """Names, types, shapes and rows are held against what was declared."""
    model = load(result, y=("FP32", [3]), max_batch_size=4)
    with pytest.raises(InternalError) as caught:
        model.infer({"x": np.ones((2, 3), np.float32)})
    assert "model 'function': " in str(caught.value)
    assert text in str(caught.value)
    assert statistics(model)["fail"] == 1


def test_a_failed_call_keeps_no_batch_alive(server, load, caplog):
    """Whoever keeps the exception, as this log does, keeps no array with it."""
    before = counters()
    for function in (boom, lambda x: {"y": x[1:]}):
        model = load(function, y=("FP32", [1000]))
        with pytest.raises(InternalError):
            model.infer({"x": np.ones(1000, np.float32)})
    load.unload()
    assert [r.exc_info is None for r in caplog.records if r.name == "tritonffi.functions"] == [
        False,
        False,
    ]
    assert counters() == before


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (boom, ValueError, "boom"),
        (leave, InternalError, "model 'function', warm-up: SystemExit: 3"),
        (lambda x: x[:0], InternalError, "warm-up: InvalidArgumentError: output 'y': wrong number"),
    ],
)
def test_a_warm_up_that_fails_makes_the_load_fail(server, load, function, error, text):
    """With the callable's own exception; nothing stays, and the name is free for a better one."""
    before = counters()
    with pytest.raises(error) as caught:
        load(function, max_batch_size=4, config=WARM_UP)
    assert text in str(caught.value)
    del caught
    assert server.is_live()
    assert workers() == []
    assert counters() == before
    calls = []
    model = load(lambda x: calls.append(x.shape) or x, max_batch_size=4, config=WARM_UP)
    assert calls == [(1, 4)]
    assert model.infer({"x": row(7)})["y"].item() == 7


def test_each_call_of_each_instances_warm_up_counts(load):
    """The last of them fails, and that is enough; a request of a user is not taken for one."""
    sample = WARM_UP["model_warmup"][0]
    config = {
        "instance_group": [{"count": 2}],
        "model_warmup": [
            {**sample, "count": 2},
            {**sample, "name": "more", "batch_size": 3},
            {**sample, "name": "skipped", "batch_size": 0},
        ],
    }
    calls = []

    def fail_at(number):
        def function(x):
            calls.append(len(x))
            if len(calls) == number:
                raise ValueError(number)
            return {"y": x}

        return function

    with pytest.raises(ValueError, match="6"):
        load(fail_at(6), max_batch_size=4, config=config)
    assert sorted(calls) == [1, 1, 1, 1, 3, 3]
    calls.clear()
    model = load(fail_at(7), max_batch_size=4, config=config)
    with pytest.raises(InternalError, match="ValueError: 7"):
        model.infer({"x": row(1)})
    assert model.infer({"x": row(1)})["y"].item() == 1


def test_a_warm_up_that_fails_does_not_leave_the_function_before(server, load):
    """The load has replaced it already: Triton has no way back."""
    load(identity, max_batch_size=4)
    with pytest.raises(ValueError, match="boom"):
        load(boom, max_batch_size=4, config=WARM_UP)
    assert workers() == []
    assert not server.model("function").is_ready()


def test_a_config_that_triton_refuses_leaves_nothing_behind(own_server):
    """The error is Triton's, and says why."""
    before = counters()
    with pytest.raises(TritonError, match="preferred size must be <= max batch size"):
        own_server.load_function(
            "function",
            identity,
            inputs={"x": FP32},
            outputs={"y": FP32},
            max_batch_size=2,
            config={"dynamic_batching": {"preferred_batch_size": [4]}},
        )
    assert workers() == []
    assert counters() == before


def test_a_callable_that_never_returns_does_not_hold_up_close():
    """What it works on, and what waits behind it, fails at once; its late result is harmless."""
    before = counters()
    held = Held()
    with Server(exit_timeout=60) as server:
        model = Loader(server)(held, **BATCHED)
        (worker,) = workers()
        running = model.submit({"x": row(1)})
        held.wait()
        waiting = model.submit({"x": row(2)})
        start = time.monotonic()
    assert time.monotonic() - start < 2
    with pytest.raises(ClosedError, match="closed before its function answered"):
        running.result()
    with pytest.raises(TritonError):
        waiting.result()
    assert worker.is_alive()
    held.may_go.set()
    worker.join(30)
    held.calls.clear()
    del running, waiting, model
    assert counters() == before


def test_a_callable_of_a_server_that_goes_on_was_not_closed():
    """Where one that it has asked was: its own words are no sign."""
    held = Held()
    words = "the server was closed before its function answered"

    def say(x):
        raise UnavailableError(words)

    with Server() as server, Server(exit_timeout=60) as other:
        slow = Loader(other)(held, name="slow")
        asking = Loader(server)(lambda x: slow.infer({"x": x})["y"], name="asking")
        pending = asking.submit({"x": row(1)[0]})
        held.wait()
        other.close()
        with pytest.raises(UnavailableError) as caught:
            pending.result()
        assert str(caught.value) == f"model 'asking': ClosedError: model 'slow': {words}"
        assert type(caught.value) is UnavailableError
        with pytest.raises(UnavailableError) as caught:
            Loader(server)(say, name="saying").infer({"x": row(1)[0]})
        assert type(caught.value) is UnavailableError
        held.may_go.set()


def test_a_callable_that_was_replaced_while_it_ran_does_not_hold_up_close_either():
    """What the old one works on fails at once; its late result is harmless."""
    held = Held()
    with Server(exit_timeout=60) as server:
        loader = Loader(server)
        model = loader(held)
        (worker,) = workers()
        running = model.submit({"x": row(1)[0]})
        held.wait()
        loader(identity)
        start = time.monotonic()
    assert time.monotonic() - start < 3
    with pytest.raises(ClosedError, match="closed before its function answered"):
        running.result()
    held.may_go.set()
    worker.join(30)
    held.calls.clear()


def test_a_model_without_its_function_is_refused(own_server):
    """A config that names no function, or one that is not here, is an error in words."""
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = {
        "backend": "tritonffi",
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
    }
    with pytest.raises(TritonError, match="names no Python function"):
        own_server.load("orphan", config=config)
    for token in ("18446744073709551615", "99999999999999999999999", "0x1", "-1", ""):
        with pytest.raises(TritonError, match="Python function"):
            own_server.load(
                "orphan",
                config={**config, "parameters": {"tritonffi.token": {"string_value": token}}},
            )


def test_a_function_takes_no_name_of_a_repository(server):
    """It would hide the model there."""
    with pytest.raises(AlreadyExistsError, match="model 'echo' is in a model repository"):
        server.load_function("echo", identity, inputs={"x": FP32}, outputs={"y": FP32})


def test_functions_need_control_over_loading():
    """In the other modes the reason is said."""
    with (
        Server(model_control_mode=tritonffi.ModelControlMode.NONE) as server,
        pytest.raises(UnsupportedError, match="model_control_mode EXPLICIT"),
    ):
        server.load_function("function", identity, inputs={"x": FP32}, outputs={"y": FP32})


def test_a_copy_of_the_extension_refuses_to_be_the_backend(monkeypatch):
    """It has an empty import table: the load fails, and the process lives."""

    def assemble(folder, library, directories):
        backend = folder / "tritonffi" / "libtriton_tritonffi.so"
        backend.parent.mkdir(parents=True)
        shutil.copy(_native.__file__, backend)
        return folder

    monkeypatch.setattr(_start, "assemble_backends", assemble)
    with Server() as server:
        with pytest.raises(TritonError, match="a copy of it, or the file was replaced since"):
            server.load_function("function", identity, inputs={"x": FP32}, outputs={"y": FP32})
        assert server.is_live()


def test_a_closed_server_loads_no_function():
    """The guard is the server's own."""
    with Server() as server:
        pass
    with pytest.raises(tritonffi.ClosedError):
        server.load_function("function", identity, inputs={"x": FP32}, outputs={"y": FP32})
    assert workers() == []
