# SPDX-License-Identifier: Apache-2.0
"""What function models get to know about their requests: ids, flags, parameters, cancellation."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from _functions import BATCHED, FP32, Held, Loader, row
from conftest import counters

from tritonffi import CancelledError, Context, ContextRequest, InvalidArgumentError, Server

START = {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}


def described(request):
    """All that a context tells of a request."""
    return {
        "request_id": request.request_id,
        "correlation_id": request.correlation_id,
        "sequence_start": request.sequence_start,
        "sequence_end": request.sequence_end,
        "parameters": request.parameters,
        "queue_timeout": request.queue_timeout,
        "rows": request.rows,
    }


PLAIN = {
    "request_id": "",
    "correlation_id": 0,
    "sequence_start": False,
    "sequence_end": False,
    "parameters": {},
    "queue_timeout": None,
    "rows": slice(0, 1),
}


class Kept:
    """A callable that keeps its contexts."""

    def __init__(self):
        """Keep nothing yet."""
        self.contexts = []

    def __call__(self, x, context):
        """Return what comes in."""
        self.contexts.append(context)
        return {"y": x}


def test_a_request_arrives_as_it_was_sent(load):
    """Id, correlation id, flags and parameters of every type; values at the ends of their range."""
    kept = Kept()
    model = load(kept)
    parameters = {
        "text": "größe",
        "empty": "",
        "low": -(2**63),
        "high": 2**63 - 1,
        "yes": True,
        "no": False,
        "real": -1.5e300,
    }
    model.infer(
        {"x": row(1)[0]},
        request_id="número 7",
        correlation_id=2**64 - 1,
        sequence_start=True,
        sequence_end=True,
        parameters=parameters,
        queue_timeout=2.5,
    )
    (context,) = kept.contexts
    assert (context.model_name, context.instance, context.is_warm_up) == ("function", 0, False)
    assert context.request is context.requests[0]
    assert described(context.request) == {
        **PLAIN,
        "request_id": "número 7",
        "correlation_id": 2**64 - 1,
        "sequence_start": True,
        "sequence_end": True,
        "parameters": parameters,
        "queue_timeout": 2.5,
    }
    assert {name: type(value) for name, value in context.request.parameters.items()} == {
        name: type(value) for name, value in parameters.items()
    }


def test_a_request_that_says_nothing_is_told_so(load):
    """Every attribute has its empty value."""
    kept = Kept()
    load(kept).infer({"x": row(1)[0]})
    assert described(kept.contexts[0].request) == PLAIN
    assert not kept.contexts[0].is_cancelled()
    assert repr(kept.contexts[0]) == "<Context of 'function', instance 0: 1 request>"
    assert repr(kept.contexts[0].request) == "<ContextRequest '', rows 0 to 1>"


@pytest.mark.parametrize("correlation_id", ["a", "größe" * 10, "7"])
def test_a_correlation_id_may_be_a_text(load, correlation_id):
    """It stays one, whatever it looks like."""
    kept = Kept()
    load(kept).infer({"x": row(1)[0]}, correlation_id=correlation_id)
    assert kept.contexts[0].request.correlation_id == correlation_id


def test_a_batch_tells_of_each_request_in_the_order_of_its_rows(load):
    """`rows` cuts the arrays."""
    held = Held()
    seen = []

    def function(x, context):
        held(x)
        seen.append([(r.request_id, r.parameters, x[r.rows].tolist()) for r in context.requests])
        return {"y": x}

    model = load(function, **BATCHED)
    first = model.submit({"x": row(0)})
    held.wait()
    pending = [
        model.submit(
            {"x": np.full((rows, 1), rows, np.float32)},
            request_id=f"of {rows}",
            parameters={"rows": rows},
        )
        for rows in (2, 1, 3)
    ]
    held.may_go.set()
    for inference in [first, *pending]:
        inference.result()
    assert seen == [
        [("", {}, [[0]])],
        [
            ("of 2", {"rows": 2}, [[2], [2]]),
            ("of 1", {"rows": 1}, [[1]]),
            ("of 3", {"rows": 3}, [[3], [3], [3]]),
        ],
    ]


def test_the_only_request_is_not_asked_of_several(load):
    """The error says what to do."""
    context = Context("m", 0, (ContextRequest(slice(0, 1)), ContextRequest(slice(1, 2))))
    with pytest.raises(InvalidArgumentError, match=r"model 'm': the batch has 2 requests: ask for"):
        context.request  # noqa: B018


def test_a_cancellation_shows_while_the_callable_runs(load):
    """Of one request of two, and of the batch when both are cancelled."""
    held = Held()
    contexts = []
    states = []
    looked = threading.Semaphore(0)
    look = threading.Semaphore(0)

    def function(x, context):
        held(x)
        contexts.append(context)
        if len(x) == 1:
            return {"y": x}
        for _ in range(3):
            assert look.acquire(timeout=30)
            states.append([*(r.is_cancelled() for r in context.requests), context.is_cancelled()])
            looked.release()
        raise CancelledError("nobody is left")

    model = load(function, **BATCHED)
    first = model.submit({"x": row(0)})
    held.wait()
    second, third = (model.submit({"x": row(i)}) for i in (1, 2))
    held.may_go.set()
    first.result()
    for inference in (None, third, second):
        if inference is not None:
            assert inference.cancel()
        look.release()
        assert looked.acquire(timeout=30)
    for inference in (second, third):
        with pytest.raises(CancelledError, match="nobody is left"):
            inference.result()
    assert states == [[False, False, False], [False, True, False], [True, True, True]]
    held.calls.clear()
    # What is kept says the same when everything is over, and nothing of Triton's is touched.
    load.unload()
    assert [context.is_cancelled() for context in contexts] == [False, True]


def test_a_cancellation_after_the_end_does_not_show(load):
    """The state is that of the call's end."""
    kept = Kept()
    model = load(kept)
    inference = model.submit({"x": row(1)[0]})
    inference.result()
    inference.cancel()
    assert not kept.contexts[0].is_cancelled()


def test_a_context_may_be_asked_by_other_threads_at_any_time(load):
    """While its call ends and after it."""
    model = load(Kept())
    kept = Kept()
    over = threading.Event()

    def function(x, context):
        kept.contexts.append(context)
        return {"y": x}

    def ask():
        while not over.is_set():
            for context in kept.contexts[-3:]:
                assert not context.is_cancelled()

    model = load(function, **BATCHED)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(200):
        assert model.infer({"x": row(i)})["y"].item() == i
    over.set()
    for thread in threads:
        thread.join()


def test_a_callable_that_is_given_up_is_cancelled():
    """At close it may look, and come to its end."""
    before = counters()
    entered = threading.Event()
    cancelled = threading.Event()

    def function(x, context):
        entered.set()
        while not context.is_cancelled():
            pass
        cancelled.set()
        return {"y": x}

    with Server() as server:
        model = Loader(server)(function)
        pending = model.submit({"x": row(1)[0]})
        assert entered.wait(30)
    assert cancelled.wait(30)
    del pending, model
    assert counters() == before


def test_a_warm_up_is_told(load):
    """It has no ids, and is marked."""
    kept = Kept()
    sample = {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}
    warm_up = [{"name": "warm", "batch_size": 2, "inputs": {"x": sample}}]
    model = load(kept, max_batch_size=4, config={"model_warmup": warm_up})
    model.infer({"x": row(1)})
    assert [context.is_warm_up for context in kept.contexts] == [True, False]
    assert [len(context.requests) for context in kept.contexts] == [2, 1]


def test_a_sequence_stays_at_one_instance_and_keeps_state_by_its_id(load):
    """Each of two instances has its own sequences, and all of their requests."""
    totals = {}
    instances = {}

    def accumulate(x, context):
        sums = []
        for request in context.requests:
            key = request.correlation_id
            instances.setdefault(key, set()).add(context.instance)
            start = 0 if request.sequence_start else totals[key]
            totals[key] = start + x[request.rows].sum()
            sums.append(totals[key])
            if request.sequence_end:
                del totals[key]
        return {"y": np.array(sums, np.float32).reshape(-1, 1)}

    batching = {"oldest": {"max_candidate_sequences": 4}, "max_sequence_idle_microseconds": 10**8}
    model = load(
        accumulate,
        max_batch_size=4,
        config={"sequence_batching": batching, "instance_group": [{"count": 2}]},
    )
    ids = [1, 2, 2**63, 4, 5, 6]
    for step in range(5):
        pending = [
            model.submit(
                {"x": row(key % 10)},
                correlation_id=key,
                sequence_start=step == 0,
                sequence_end=step == 4,
            )
            for key in ids
        ]
        answers = [inference.result()["y"].item() for inference in pending]
        assert answers == [(step + 1) * (key % 10) for key in ids]
    assert totals == {}
    assert [len(seen) for seen in instances.values()] == [1] * len(ids)
    assert set().union(*instances.values()) == {0, 1}


def test_a_sequence_streams_with_its_state(load):
    """Requests of a sequence that are answered by any number of responses each."""
    totals = {}

    def count(x, context):
        request = context.request
        start = 0 if request.sequence_start else totals[request.correlation_id]
        totals[request.correlation_id] = start + int(x[0, 0])
        for i in range(start, totals[request.correlation_id]):
            yield row(i)

    batching = {"oldest": {"max_candidate_sequences": 4}}
    model = load(count, max_batch_size=4, config={"sequence_batching": batching})
    for key in ("one", "two"):
        seen = []
        with model.sequence(key) as sequence:
            for n in (2, 0, 3):
                with sequence.stream({"x": row(n)}, sequence_end=n == 3) as stream:
                    seen.append([response["y"].item() for response in stream])
        assert seen == [[0, 1], [], [2, 3, 4]]
    assert totals == {"one": 5, "two": 5}


def test_empty_places_of_a_direct_sequence_batch_are_requests_of_nobody(load):
    """They have a place among the requests, so that rows and requests still go together."""
    calls = []

    def function(x, READY, context):  # noqa: N803
        ready = READY.ravel().tolist()
        calls.append(
            [
                (r.request_id, r.rows)
                for r, is_one in zip(context.requests, ready, strict=True)
                if is_one
            ]
        )
        assert not any(request.is_cancelled() for request in context.requests)
        return {"y": x}

    control = {"kind": "CONTROL_SEQUENCE_READY", "int32_false_true": [0, 1]}
    batching = {"direct": {}, "control_input": [{"name": "READY", "control": [control]}]}
    model = load(function, max_batch_size=4, config={"sequence_batching": batching})
    for sequence in (1, 2, 3):
        model.infer({"x": row(0)}, correlation_id=sequence, sequence_start=True)
    model.infer({"x": row(30)}, correlation_id=3, sequence_end=True, request_id="third")
    assert calls[-1] == [("third", slice(2, 3))]
    for sequence in (1, 2):
        model.infer({"x": row(0)}, correlation_id=sequence, sequence_end=True)


def test_contexts_are_only_made_for_those_who_ask(load):
    """An input of that name is an input, and keywords of any name are inputs."""
    model = load(
        lambda context: {"y": context * 2},
        inputs={"context": FP32},
    )
    assert model.infer({"context": row(3)[0]})["y"].item() == 6
    model = load(lambda **inputs: {"y": inputs["x"] + len(inputs)})
    assert model.infer({"x": row(3)[0]})["y"].item() == 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x, context: {"y": x + context.instance},
        lambda context, x: {"y": x + context.instance},
        lambda x, *, context: {"y": x + context.instance},
        lambda x, context=None: {"y": x + context.instance},
        lambda inputs, context: {"y": inputs["x"] + context.instance},
        lambda *arrays, context: {"y": arrays[0] + context.instance},
    ],
)
def test_the_context_goes_with_every_way_of_getting_inputs(load, function):
    """By name, in a dict, by place."""
    assert load(function).infer({"x": row(3)[0]})["y"].item() == 3
