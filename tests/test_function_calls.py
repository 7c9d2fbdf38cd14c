# SPDX-License-Identifier: Apache-2.0
"""Functions that call other models of their server, and models that are made of functions."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import numpy as np
import pytest
from _functions import BATCHED, FP32, Held, Loader, identity, row
from conftest import counters

from tritonffi import (
    ClosedError,
    InternalError,
    Server,
    TritonError,
    UnsupportedError,
    _loading,
    _rest,
)

TWO = {"instance_group": [{"count": 2}]}


def test_a_function_may_call_other_models(load, server, echo):
    """Of every kind, many at a time, and their errors are its own."""
    other = load(lambda x: x * 2, name="other", **BATCHED)

    def function(x):
        pending = [other.submit({"x": x + i}) for i in range(10)]
        total = sum(inference.result()["y"] for inference in pending)
        return echo.infer({"INPUT0": total[0]})["OUTPUT0"].reshape(1, -1)

    model = load(function, max_batch_size=4)
    assert model.infer({"x": row(1)})["y"].item() == 2 * (10 + 45)
    load(lambda x: 1 // 0, name="other", **BATCHED)
    with pytest.raises(InternalError, match="model 'other': ZeroDivisionError"):
        model.infer({"x": row(1)})


def test_a_generator_may_stream_from_another_model(load):
    """Its own reader that stops early stops that too."""
    closed = threading.Event()

    def count(x):
        try:
            for i in range(int(x[0])):
                yield np.array([i], np.float32)
        finally:
            closed.set()

    inner = load(count, name="count")

    def function(x):
        with inner.stream({"x": x}) as stream:
            for response in stream:
                yield response["y"] * 10

    model = load(function)
    assert [r["y"].item() for r in model.stream({"x": [3.0]})] == [0, 10, 20]
    closed.clear()
    with model.stream({"x": [1e9]}) as stream:
        next(stream)
    assert closed.wait(30)


def test_a_coroutine_may_await_other_models(load):
    """At the same time, as responses and as streams."""

    def count(x):
        for i in range(int(x[0])):
            yield np.array([i], np.float32)

    counted = load(count, name="count")
    doubled = load(lambda x: x * 2, name="double")

    async def function(x):
        one, two = await asyncio.gather(
            doubled.async_infer({"x": x}), doubled.async_infer({"x": x + 1})
        )
        total = one["y"] + two["y"]
        async for response in counted.async_stream({"x": x}):
            total = total + response["y"]
        return total

    model = load(function, config=TWO)
    pending = [model.submit({"x": [4.0]}) for _ in range(10)]
    assert [inference.result()["y"].item() for inference in pending] == [8 + 10 + 6] * 10


def test_a_function_that_calls_its_own_only_instance_is_refused(load, server):
    """It would wait for itself; the error says what to do."""

    def function(x):
        return server.model("function").infer({"x": x})["y"]

    with pytest.raises(UnsupportedError) as caught:
        load(function).infer({"x": [1.0]})
    words = "its function calls the model itself, whose only instance"
    assert str(caught.value).startswith(f"model 'function': UnsupportedError: {words}")


@pytest.mark.parametrize(
    "how", ["stream", "map", "sequence", "async_infer", "async_stream", "async_map"]
)
def test_every_way_to_wait_for_oneself_is_refused(load, server, caplog, how):
    """In threads and in event loops."""
    own = server.model("function")

    def stream(x):
        yield from (response["y"] for response in own.stream({"x": x}))

    async def async_infer(x):
        return (await own.async_infer({"x": x}))["y"]

    async def async_stream(x):
        async for response in own.async_stream({"x": x}):
            yield response["y"]

    def map(x):  # noqa: A001
        yield from (response["y"] for response in own.map([{"x": x}]))

    def sequence(x):
        with own.sequence() as requests:
            yield requests.infer({"x": x}, sequence_end=True)["y"]

    async def async_map(x):
        async for response in own.async_map([{"x": x}]):
            yield response["y"]

    model = load(locals()[how])
    with model.stream({"x": [1.0]}) as responses, pytest.raises(UnsupportedError) as caught:
        next(responses)
    assert "its function calls the model itself, whose only instance" in str(caught.value)
    caplog.clear()  # the closures in the traceback hold the input


def test_a_function_that_unloads_itself_is_refused(load, server):
    """The unload would wait for the very call that asked for it."""
    load(lambda x: server.unload("function"))
    with pytest.raises(UnsupportedError, match="its function unloads the model itself"):
        server.model("function").infer({"x": row(1)[0]})
    assert server.model("function").is_ready()


def test_a_function_may_unload_another_model_with_its_parts(load, server):
    """Of what that is made of the calls are waited for, and not the very one that asks."""
    load(identity, name="other")

    def function(x):
        server.unload("other", dependents=True, timeout=5)
        return x

    assert load(function).infer({"x": [1.0]}, timeout=4)["y"].item() == 1
    assert not server.model("other").is_ready()


def test_a_function_may_submit_to_itself(load, server):
    """Which is no waiting: the request is served when the call is over."""
    submitted = []

    def function(x):
        if x[0] > 0:
            submitted.append(server.model("function").submit({"x": x - 1}))
        return x

    assert load(function).infer({"x": [2.0]})["y"].item() == 2
    assert submitted[0].result()["y"].item() == 1
    assert submitted[1].result()["y"].item() == 0
    submitted.clear()


def test_a_function_may_call_itself_with_more_instances(load, server):
    """As deep as there are instances."""

    def function(x):
        if x[0] <= 0:
            return x
        return server.model("function").infer({"x": x - 1})["y"] + 1

    model = load(function, config={"instance_group": [{"count": 3}]})
    assert model.infer({"x": [2.0]})["y"].item() == 2


def test_a_model_of_the_same_name_elsewhere_is_another_one(load):
    """What counts is the server, and what is loaded now."""
    with Server() as other:
        elsewhere = Loader(other)(lambda x: x * 2)
        model = load(lambda x: elsewhere.infer({"x": x})["y"])
        assert model.infer({"x": [1.0]})["y"].item() == 2
        load.unload()


def test_other_threads_are_not_taken_for_the_function(load):
    """Who calls from outside while it runs only waits."""
    held = Held()
    model = load(held)
    first = model.submit({"x": [1.0]})
    held.wait()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(model.infer({"x": [2.0]})["y"].item()))
    thread.start()
    held.may_go.set()
    thread.join(30)
    assert first.result()["y"].item() == 1
    assert answers == [2]
    held.calls.clear()


def test_a_task_that_outlives_its_call_may_ask_the_model(load, server):
    """It is not in the call any more, for which it would wait."""
    tasks = []
    over = threading.Event()
    done = threading.Event()

    async def later(own):
        await asyncio.to_thread(over.wait, 30)
        return (await own.async_infer({"x": [5.0]}))["y"].item()

    async def function(x):
        if x[0] == 1:
            tasks.append(asyncio.create_task(later(server.model("function"))))
            tasks[0].add_done_callback(lambda _: done.set())
        return x

    assert load(function).infer({"x": [1.0]})["y"].item() == 1
    over.set()
    assert done.wait(30)
    assert tasks.pop().result() == 5


@pytest.mark.parametrize("how", ["unload", "load anew"])
def test_a_function_lets_another_model_go_at_once(load, server, monkeypatch, how):
    """Its own call, which is in flight meanwhile, is not waited for."""
    monkeypatch.setattr(_rest, "_OTHERS_S", 60.0)
    monkeypatch.setattr(_loading, "_REPLACED_S", 60.0)
    load(identity, name="other")

    def let_go(x):
        began = time.monotonic()
        if how == "unload":
            server.unload("other")
        else:
            load(identity, name="other")
        return np.array([time.monotonic() - began], np.float32)

    model = load(let_go)
    assert model.infer({"x": [1]})["y"].item() < 30


def test_what_runs_on_in_the_context_of_a_call_may_unload_the_model(load, server):
    """While the call runs that is refused, as it would wait for it."""
    contexts = []
    refusals = []

    def function(x):
        contexts.append(contextvars.copy_context())
        try:
            contexts[0].copy().run(server.unload, "function")
        except UnsupportedError as error:
            refusals.append(str(error))
        return x

    assert load(function).infer({"x": [1.0]})["y"].item() == 1
    assert len(refusals) == 1
    contexts.pop().run(server.unload, "function")
    assert not server.model("function").is_ready()


def test_a_call_to_another_model_does_not_hold_up_close():
    """Both are given up: what waits inside gets an error, and nothing stays."""
    before = counters()
    held = Held()
    errors = []

    with Server(exit_timeout=60) as server:
        load = Loader(server)
        load(held, name="inner")

        def function(x):
            try:
                return server.model("inner").infer({"x": x})["y"]
            except (TritonError, ClosedError) as error:
                errors.append(type(error))
                raise

        outer = load(function).submit({"x": [1.0]})
        held.wait()
        threads = [t for t in threading.enumerate() if t.name.startswith("tritonffi: ")]
    with pytest.raises(TritonError):
        outer.result()
    held.may_go.set()
    for thread in threads:
        if " #" in thread.name:
            thread.join(30)
    assert len(errors) == 1
    held.calls.clear()
    del outer
    assert counters() == before


def ensemble(server, name, steps, **config):
    """Load an ensemble from X to Y of (model, input, output)."""
    names = ["X", *(f"between{i}" for i in range(1, len(steps))), "Y"]
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    return server.load(
        name,
        {
            "platform": "ensemble",
            "max_batch_size": 8,
            "input": [{"name": "X", **tensor}],
            "output": [{"name": "Y", **tensor}],
            "ensemble_scheduling": {
                "step": [
                    {
                        "model_name": model,
                        "model_version": -1,
                        "input_map": {given: names[i]},
                        "output_map": {made: names[i + 1]},
                    }
                    for i, (model, given, made) in enumerate(steps)
                ]
            },
            **config,
        },
    )


def test_an_ensemble_mixes_functions_and_other_backends(load, server):
    """A function, a backend in C, a coroutine function; ids and parameters go through."""
    seen = []

    def first(x, context):
        seen.append([(r.request_id, r.parameters) for r in context.requests])
        return x + 1

    async def last(x):
        await asyncio.sleep(0)
        return x * 10

    load(first, name="first", **BATCHED)
    load(last, name="last", **BATCHED)
    steps = [("first", "x", "y"), ("batched", "INPUT0", "OUTPUT0"), ("last", "x", "y")]
    model = ensemble(server, "chain_of_functions", steps)
    try:
        response = model.infer({"X": row(1, 2)}, request_id="mine", parameters={"k": 5})
        np.testing.assert_array_equal(response["Y"], row(20, 30), strict=True)
        pending = [model.submit({"X": row(i)}) for i in range(20)]
        assert [p.result()["Y"].item() for p in pending] == [(i + 1) * 10 for i in range(20)]
    finally:
        server.unload("chain_of_functions")
    assert seen[0] == [("mine", {"k": 5})]


def test_an_ensemble_fails_with_the_error_of_its_function(load, server):
    """In the function's words."""
    load(lambda x: x[:, :0] + 1 // 0, name="first", **BATCHED)
    model = ensemble(server, "fails", [("first", "x", "y"), ("batched", "INPUT0", "OUTPUT0")])
    try:
        with pytest.raises(InternalError, match="model 'first': ZeroDivisionError"):
            model.infer({"X": row(1)})
    finally:
        server.unload("fails")


def test_optional_inputs_go_with_a_context_and_a_class(load):
    """None of the ways to be called gets in the way of another."""

    class Add:
        def __call__(self, a, context, b=None):
            return a + (100 if b is None else b) + context.instance

    model = load(
        Add,
        inputs={"a": FP32, "b": FP32},
        max_batch_size=8,
        config={"dynamic_batching": {}, "input": [{"name": "b", "optional": True}]},
    )
    assert model.infer({"a": row(1)})["y"].item() == 101
    assert model.infer({"a": row(1), "b": row(5)})["y"].item() == 6
