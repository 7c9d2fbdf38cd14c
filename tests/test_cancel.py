# SPDX-License-Identifier: Apache-2.0
"""Giving up: cancellation in every state, deadlines of both kinds, full queues, priorities."""

from __future__ import annotations

import asyncio
import gc
import math
import time

import _backend
import pytest

from tritonffi import CancelledError, QueueFullError, Server, UnavailableError

QUEUE = """
instance_group [{{ kind: KIND_CPU count: 1 }}]
dynamic_batching {{
  preferred_batch_size: [1]
  max_queue_delay_microseconds: 0
  {rest}
}}
"""
POLICIES = {
    "bounded": "default_queue_policy { max_queue_size: 2 }",
    "patient": """default_queue_policy {
        timeout_action: REJECT default_timeout_microseconds: 60000000 allow_timeout_override: true
    }""",
    "stubborn": """default_queue_policy {
        timeout_action: REJECT default_timeout_microseconds: 60000000
    }""",
    "ranked": "priority_levels: 2 default_priority_level: 2",
}


@pytest.fixture(scope="module")
def _queued(backend_directory, tmp_path_factory):
    """A server with models of one instance, each behind a queue of its own kind."""
    folder = tmp_path_factory.mktemp("queues")
    for name, rest in POLICIES.items():
        _backend.write_model(
            folder,
            name,
            {"INPUT0": ("FP32", [-1])},
            max_batch_size=1,
            extra=QUEUE.format(rest=rest),
        )
    gc.collect()
    with Server(folder, backend_directory=backend_directory, server_id="queued") as running:
        yield running


@pytest.fixture
def queued(_queued):
    """The same; what a test dropped in flight there is taken after it."""
    yield _queued
    assert _queued._lifecycle.queue.settle(time.monotonic() + 30)


def submit(model, value=0.0, *, hold=True, **keywords):
    """One request, which stops at the gate when its turn comes."""
    parameters = {"hold": "start"} if hold else {}
    return model.submit({"INPUT0": [[value]]}, parameters=parameters, **keywords)


def test_cancelled_while_the_model_works(echo, gate):
    """A model that looks ends with CancelledError."""
    inference = echo.submit({"INPUT0": [1.0]}, parameters={"hold": "start"})
    gate.wait()
    assert not inference.is_cancelled()
    assert inference.cancel()
    assert inference.cancel()
    assert inference.is_cancelled()
    with pytest.raises(CancelledError, match="model 'echo'"):
        inference.result()
    assert not inference.cancel()


def test_cancelled_while_it_waits_in_the_queue(queued, gate):
    """It never reaches the model; the others go on."""
    model = queued.model("bounded")
    first = submit(model)
    gate.wait()
    second, third = submit(model, 1.0), submit(model, 2.0, hold=False)
    assert second.cancel()
    gate.release()
    assert first.result()["OUTPUT0"].tolist() == [[0.0]]
    assert third.result()["OUTPUT0"].tolist() == [[2.0]]
    with pytest.raises(CancelledError, match="model 'bounded': the request was cancelled"):
        second.result()
    assert gate.waiting() == 0


def test_a_model_that_does_not_look_gives_its_response(echo, gate):
    """Cancelling asks; it does not force."""
    parameters = {"hold": "start", "ignore_cancel": True}
    inference = echo.submit({"INPUT0": [1.0]}, parameters=parameters)
    gate.wait()
    assert inference.cancel()
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == [1.0]


def test_cancelling_what_is_over_does_nothing(echo):
    """Neither to it nor to the one that came after it."""
    inference = echo.submit({"INPUT0": [1.0]})
    inference.result()
    following = echo.submit({"INPUT0": [2.0]})
    assert not inference.cancel()
    assert not inference.is_cancelled()
    assert following.result()["OUTPUT0"].tolist() == [2.0]


@pytest.mark.parametrize("way", ["infer", "result", "stream", "map", "async", "async map"])
def test_timeouts_are_precise(echo, gate, way):
    """To 20 milliseconds, where the machine lets us run: the best of ten counts."""
    inputs = {"INPUT0": [1.0]}
    said = {"parameters": {"hold": "start", "thread": True}, "timeout": 0.13}

    async def first(responses):
        return await anext(responses)

    ways = {
        "infer": lambda: echo.infer(inputs, **said),
        "result": lambda: echo.submit(inputs, **said).result(),
        "stream": lambda: next(echo.stream(inputs, **said)),
        "map": lambda: next(echo.map([inputs], ordered=False, **said)),
        "async": lambda: asyncio.run(echo.async_infer(inputs, **said)),
        "async map": lambda: asyncio.run(first_of(inputs, said)),
    }

    async def first_of(inputs, said):
        return await first(echo.async_map([inputs], **said))

    late = math.inf
    for _ in range(10):
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match=r"no result within 0.13 s; the request was"):
            ways[way]()
        assert time.monotonic() - begin >= 0.13
        late = min(late, time.monotonic() - begin - 0.13)
        if late < 0.02:
            break
    assert late < 0.02


def test_a_timeout_of_nothing_is_up_at_once(echo, gate):
    """And one without end never is."""
    with pytest.raises(TimeoutError):
        echo.infer({"INPUT0": [1.0]}, timeout=0, parameters={"hold": "start"})
    response = echo.infer({"INPUT0": [1.0]}, timeout=math.inf)
    assert response["OUTPUT0"].tolist() == [1.0]


def test_a_full_queue_is_told_apart(queued, gate):
    """From other reasons of being unavailable; those who wait in it go on."""
    model = queued.model("bounded")
    running = submit(model)
    gate.wait()
    waiting = [submit(model, value, hold=False) for value in (1.0, 2.0)]
    with pytest.raises(QueueFullError, match=r"model 'bounded': .*Exceeds maximum queue size"):
        submit(model)
    with pytest.raises(UnavailableError):
        submit(model)
    gate.release()
    assert running.result()["OUTPUT0"].tolist() == [[0.0]]
    assert [r.result()["OUTPUT0"].tolist() for r in waiting] == [[[1.0]], [[2.0]]]


def test_a_queue_timeout_is_looked_at_when_the_model_is_free(queued, gate):
    """However short it is, it is refused only then, and it is no full queue."""
    model = queued.model("patient")
    running = submit(model)
    gate.wait()
    late = submit(model, 1.0, hold=False, queue_timeout=1e-6)
    in_time = submit(model, 2.0, hold=False, queue_timeout=60)
    assert not late.done()
    gate.release()
    running.result()
    with pytest.raises(UnavailableError, match=r"'patient': .*imeout expired") as failure:
        late.result()
    assert type(failure.value) is UnavailableError
    assert in_time.result()["OUTPUT0"].tolist() == [[2.0]]


def test_a_queue_timeout_counts_where_the_model_allows_it(queued, gate):
    """Others go by their own."""
    model = queued.model("stubborn")
    running = submit(model)
    gate.wait()
    late = submit(model, 1.0, hold=False, queue_timeout=1e-6)
    gate.release()
    running.result()
    assert late.result()["OUTPUT0"].tolist() == [[1.0]]


def test_priority_1_goes_first(queued, gate):
    """Before those that came earlier; a priority that the model does not have is the default."""
    model = queued.model("ranked")
    running = submit(model)
    gate.wait()
    low, default, none = submit(model, priority=2), submit(model), submit(model, priority=3)
    high = submit(model, priority=1)
    for following in (running, high, low, default, none):
        gate.wait()
        assert gate.release(1) == 1
        following.result()
