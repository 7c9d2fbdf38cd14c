# SPDX-License-Identifier: Apache-2.0
"""Generator functions: models that give any number of responses to a request."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading

import numpy as np
import pytest
from _functions import BATCHED, FP32, Loader, identity, statistics, workers
from conftest import counters

from tritonffi import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    ModelTxnPropertyFlag,
    Result,
    Server,
    UnavailableError,
    UnsupportedError,
)


def wrapped(x):
    """Return a generator, without being a generator function."""
    return count(x)


def wrapped_async(x):
    """The same for an asynchronous one."""

    async def counting():
        yield {"y": x}

    return counting()


def count(x):
    """Yield as many values as the input says, from 0."""
    for i in range(int(x[0])):
        yield {"y": np.array([i], np.float32)}


class Counter:
    """Generator functions of other kinds."""

    def __call__(self, x):
        """Count."""
        yield from count(x)

    def method(self, x):
        """Count."""
        yield from count(x)


def values(stream):
    """The values of every response that is left."""
    return [response["y"].tolist() for response in stream]


def responses(model):
    """Triton's counts of responses, by their place in the stream: success, fail, empty, cancel."""
    return {
        int(index): (
            counts.success.count,
            counts.fail.count,
            counts.empty_response.count,
            counts.cancel.count,
        )
        for index, counts in model.statistics().responses.items()
    }


@pytest.mark.parametrize("function", [count, Counter(), Counter().method, functools.partial(count)])
def test_a_generator_function_makes_a_decoupled_model(load, function):
    """Each value is a response, in order; the config says so by itself."""
    model = load(function)
    assert model.transaction_properties() is ModelTxnPropertyFlag.DECOUPLED
    assert values(model.stream({"x": [3.0]})) == [[0], [1], [2]]
    assert values(model.stream({"x": [1.0]})) == [[0]]


def test_there_may_be_no_responses(load):
    """The end comes all the same."""
    model = load(count)
    assert values(model.stream({"x": [0.0]})) == []
    assert responses(model) == {0: (0, 0, 1, 0)}
    assert statistics(model)["success"] == 1


def test_many_responses_come_in_order_and_leave_nothing_behind(load):
    """A thousand of them, for several readers at a time."""
    before = counters()
    model = load(count, config={"instance_group": [{"count": 2}]})
    streams = [model.stream({"x": [1000.0]}) for _ in range(3)]
    for stream in streams:
        assert values(stream) == [[i] for i in range(1000)]
    del stream, streams
    load.unload()
    assert counters() == before


def test_responses_are_counted_by_their_place(load):
    """Those with outputs and the one that is only the end; requests and executions as always."""
    model = load(count)
    for n in (2, 1):
        assert len(values(model.stream({"x": [n]}))) == n
    assert responses(model) == {0: (2, 0, 0, 0), 1: (1, 0, 1, 0), 2: (0, 0, 1, 0)}
    assert statistics(model) == {
        "inferences": 2,
        "executions": 2,
        "success": 2,
        "fail": 0,
        "sizes": {1: 2},
    }
    (first, second) = (model.statistics().responses[key] for key in (0, 1))
    assert 0 < first.compute_infer.ns < 10**10
    assert first.success.ns == first.compute_infer.ns + first.compute_output.ns
    assert second.empty_response.count == 1


def test_each_response_is_sent_when_it_is_yielded(load):
    """It is read while the generator waits for the reader."""
    may_go = threading.Semaphore(0)

    def echo(x):
        for i in range(3):
            yield x + i
            assert may_go.acquire(timeout=30)

    stream = load(echo).stream({"x": [5.0]})
    for i in range(3):
        assert next(stream)["y"].item() == 5 + i
        may_go.release()
    assert values(stream) == []


def test_an_exception_in_the_middle_comes_at_its_place(load, caplog):
    """What was yielded before is read, then the error is raised, and that is the end."""

    def fail(x):
        yield x
        yield x + 1
        raise ValueError("boom")

    model = load(fail)
    with model.stream({"x": [5.0]}) as stream:
        assert [next(stream)["y"].item() for _ in range(2)] == [5, 6]
        with pytest.raises(InternalError, match=r"model 'function': ValueError: boom$"):
            next(stream)
        assert values(stream) == []
    assert responses(model) == {0: (1, 0, 0, 0), 1: (1, 0, 0, 0), 2: (0, 1, 0, 0)}
    assert statistics(model)["fail"] == 1
    assert statistics(model)["executions"] == 0
    (record,) = [r for r in caplog.records if r.name == "tritonffi.functions"]
    assert "Traceback" in record.exc_text
    load(count)
    assert values(model.stream({"x": [1.0]})) == [[0]]


@pytest.mark.parametrize(
    "infer",
    [
        lambda model: model.infer({"x": [5.0]}),
        lambda model: model.submit({"x": [5.0]}).result(),
        lambda model: model.prepare({"x": [5.0]}).infer({"x": np.float32([5])}),
        lambda model: list(model.map([{"x": [5.0]}])),
        lambda model: list(model.map([{"x": [5.0]}], ordered=False)),
        lambda model: asyncio.run(model.async_infer({"x": [5.0]})),
    ],
)
def test_who_asked_for_one_response_gets_the_error_that_follows_it(load, infer):
    """And not that there were two: there is no second one."""

    def fail(x):
        yield x
        raise ValueError("boom")

    model = load(fail)
    with pytest.raises(InternalError, match=r"^model 'function': ValueError: boom$"):
        infer(model)
    load(count)
    with pytest.raises(InvalidArgumentError, match="sent 5 responses where one was expected"):
        infer(model)


@pytest.mark.parametrize("error", [InvalidArgumentError, UnavailableError])
def test_a_generator_may_choose_the_kind_of_error(load, error):
    """Also before its first response."""

    def refuse(x):
        if x[0] < 0:
            raise error("not like this")
        yield x

    with (
        load(refuse).stream({"x": [-1.0]}) as stream,
        pytest.raises(error, match=r"not like this$"),
    ):
        next(stream)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "TypeError: the function must return a dict with 'y', not NoneType"),
        ({"q": 1}, "the function's result lacks 'y' and has 'q', which is not declared"),
        (np.zeros(2), "output 'y': expected FP32 (float32), got"),
    ],
)
def test_a_wrong_value_closes_the_generator(load, value, text):
    """It is the error of the request, and the generator's `finally` runs before that is told."""
    closed = []

    def function(x):
        try:
            yield x
            yield value
        except GeneratorExit:
            closed.append("exit")
            raise
        finally:
            closed.append("finally")

    with load(function).stream({"x": [5.0]}) as stream:
        assert next(stream)["y"].item() == 5
        with pytest.raises(InternalError) as caught:
            next(stream)
    assert closed == ["exit", "finally"]
    assert text in str(caught.value)


def test_a_cancelled_stream_closes_the_generator(load, caplog):
    """Between two values, with GeneratorExit; the reader gets a CancelledError."""
    closed = threading.Event()
    entered = threading.Event()
    may_go = threading.Event()

    def forever(x):
        try:
            while True:
                entered.set()
                assert may_go.wait(30)
                yield x
        finally:
            closed.set()

    model = load(forever)
    inference = model.submit({"x": [5.0]})
    assert entered.wait(30)
    assert inference.cancel()
    may_go.set()
    with pytest.raises(CancelledError):
        inference.result()
    assert len(inference._outcomes) == 2
    assert closed.is_set()
    stats = responses(model)
    assert stats[max(stats)] == (0, 0, 0, 1)
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


def test_a_stream_that_is_dropped_ends_the_generator(load):
    """Nobody reads on, so nothing more is made."""
    closed = threading.Event()

    def forever(x):
        try:
            while True:
                yield x
        finally:
            closed.set()

    with load(forever).stream({"x": [5.0]}) as stream:
        assert next(stream)["y"].item() == 5
    assert closed.wait(30)


def test_a_generator_may_look_whether_it_is_cancelled(load):
    """Where values are far apart."""
    entered = threading.Event()

    def wait(x, context):
        yield x
        entered.set()
        while not context.is_cancelled():
            pass

    stream = load(wait).stream({"x": [5.0]})
    next(stream)
    assert entered.wait(30)
    stream.close()


def test_a_generator_that_never_ends_does_not_hold_up_close():
    """It is given up, and closed when it yields the next time."""
    before = counters()
    closed = threading.Event()
    entered = threading.Event()
    may_go = threading.Event()

    def wait(x):
        try:
            yield x
            entered.set()
            assert may_go.wait(30)
            yield x
        finally:
            closed.set()

    with Server(exit_timeout=60) as server:
        model = Loader(server)(wait)
        (worker,) = workers()
        stream = model.stream({"x": [5.0]})
        assert next(stream)["y"].item() == 5
        assert entered.wait(30)
    may_go.set()
    worker.join(30)
    assert closed.is_set()
    del stream, model
    assert counters() == before


def test_each_value_may_have_parameters(load):
    """The responses have their own."""

    def number(x):
        for i in range(2):
            yield Result({"y": x}, {"index": i})

    stream = load(number).stream({"x": [5.0]})
    assert [response.parameters for response in stream] == [{"index": 0}, {"index": 1}]


def test_requests_are_not_stacked(load):
    """Each is a call with the rows of its own, out of one batch of Triton's."""
    shapes = []

    def function(x):
        shapes.append(x.shape)
        yield x
        yield x * 2

    model = load(function, **BATCHED)
    streams = [model.stream({"x": np.full((n, 2), n, np.float32)}) for n in (1, 2, 3)]
    for n, stream in zip((1, 2, 3), streams, strict=True):
        assert values(stream) == [[[n, n]] * n, [[2 * n, 2 * n]] * n]
    assert shapes == [(1, 2), (2, 2), (3, 2)]
    assert statistics(model)["inferences"] == 6


def test_a_request_gets_only_the_outputs_it_asks_for(load):
    """In every response."""

    def function(x):
        yield {"y": x, "z": -x}

    model = load(function, outputs={"y": FP32, "z": FP32})
    (response,) = model.stream({"x": [1.0]}, outputs=["z"])
    assert {name: array.tolist() for name, array in response.items()} == {"z": [-1]}


WARM_UP = {
    "model_warmup": [
        {
            "name": "warm",
            "batch_size": 1,
            "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}},
        }
    ]
}


def test_a_warm_up_runs_the_generator_to_its_end(load):
    """And a failure in it is the load's."""
    seen = []

    def function(x):
        seen.append("begin")
        yield x
        seen.append("end")

    load(function, config=WARM_UP)
    assert seen == ["begin", "end"]

    def fail(x):
        yield x
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        load(fail, config=WARM_UP)
    load.names.clear()


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_config_cannot_say_otherwise(load, decoupled):
    """What it says must be what the callable is."""
    config = {"model_transaction_policy": {"decoupled": decoupled}}
    with pytest.raises(InvalidArgumentError, match=r"config: 'decoupled': a .*function"):
        load(identity if decoupled else count, config=config)
    assert values(load(count, config={"model_transaction_policy": {}}).stream({"x": [1]})) == [[0]]
    config = {"model_transaction_policy": {"decoupled": not decoupled}}
    assert load(identity if decoupled else count, config=config).is_ready()


def test_a_stream_cannot_be_cached(load):
    """Triton would refuse it too, later."""
    with pytest.raises(UnsupportedError, match="Triton caches no decoupled model"):
        load(count, config={"response_cache": {"enable": True}})
    load.names.clear()


def test_a_generator_is_part_of_an_ensemble(load, server):
    """Whose responses are as many."""
    load(count, name="count")
    load(lambda x: x * 10, name="scale")
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    steps = [
        {"model_name": "count", "input_map": {"x": "X"}, "output_map": {"y": "between"}},
        {"model_name": "scale", "input_map": {"x": "between"}, "output_map": {"y": "Y"}},
    ]
    model = server.load(
        "stream_of_two",
        {
            "platform": "ensemble",
            "input": [{"name": "X", **tensor}],
            "output": [{"name": "Y", **tensor}],
            "ensemble_scheduling": {"step": [{"model_version": -1, **step} for step in steps]},
        },
    )
    try:
        answers = [response["Y"].item() for response in model.stream({"X": [4.0]})]
        assert answers == [0, 10, 20, 30]
    finally:
        server.unload("stream_of_two")


@pytest.mark.parametrize("function", [wrapped, wrapped_async])
def test_a_generator_that_a_plain_function_returns_is_no_stream(load, function):
    """Whether a model is decoupled is seen when it is loaded: the error says what to load."""
    with pytest.raises(InternalError) as caught:
        load(function).infer({"x": [1.0]})
    assert str(caught.value) == (
        "model 'function': TypeError: the function returned a generator, but is no generator "
        "function: load the one that it calls, or let it yield by itself"
    )
