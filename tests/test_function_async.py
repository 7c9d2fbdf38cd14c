# SPDX-License-Identifier: Apache-2.0
"""Coroutine functions and async generators as models: one event loop for all instances of one."""

from __future__ import annotations

import asyncio
import functools
import threading
import types

import numpy as np
import pytest
from _functions import BATCHED, Held, Loader, row, statistics, workers
from conftest import counters

from tritonffi import (
    CancelledError,
    ClosedError,
    InternalError,
    InvalidArgumentError,
    Server,
    UnavailableError,
)

TWO = {"instance_group": [{"count": 2}]}


async def double(x):
    """Return twice the input, in a while."""
    await asyncio.sleep(0)
    return {"y": x * 2}


class Doubler:
    """Coroutine functions of other kinds."""

    async def __call__(self, x):
        """Double."""
        return await double(x)

    async def method(self, x):
        """Double."""
        return await double(x)


@pytest.mark.parametrize(
    "function",
    [
        double,
        Doubler,
        Doubler(),
        Doubler().method,
        functools.partial(double),
        lambda x: double(x * 1),
    ],
)
def test_what_a_coroutine_returns_is_the_result(load, function):
    """Whatever makes the coroutine."""
    model = load(function, **BATCHED)
    for i in range(3):
        assert model.infer({"x": row(i)})["y"].item() == 2 * i
    assert statistics(model)["success"] == 3


def test_the_calls_of_all_instances_run_in_one_loop_at_the_same_time(load):
    """As many as there are instances; they may share what belongs to a loop."""
    seen = []
    events = []

    async def meet(x):
        seen.append((asyncio.get_running_loop(), threading.current_thread().name))
        if not events:
            events.append(asyncio.Event())
            await asyncio.wait_for(events[0].wait(), 30)
        else:
            events[0].set()
        return x

    model = load(meet, config=TWO)
    for inference in [model.submit({"x": row(i)[0]}) for i in range(2)]:
        inference.result()
    assert seen[0] == seen[1]
    assert seen[0][1] == "tritonffi: loop of model 'function'"


def test_a_loop_is_only_made_for_coroutines(load):
    """And ends with the model."""

    def loops():
        return [t for t in threading.enumerate() if t.name.startswith("tritonffi: loop of")]

    load(lambda x: x).infer({"x": row(1)[0]})
    assert loops() == []
    load(double).infer({"x": row(1)[0]})
    assert len(loops()) == 1
    load.unload()
    assert loops() == []


def test_initialize_and_finalize_may_be_coroutines(load):
    """They run in the loop of the calls, also where the call is none."""
    loops = []

    class Session:
        async def initialize(self, config):
            loops.append(asyncio.get_running_loop())
            self.lock = asyncio.Lock()

        async def __call__(self, x):
            loops.append(asyncio.get_running_loop())
            async with self.lock:
                return x

        async def finalize(self):
            loops.append(asyncio.get_running_loop())

    class Plain(Session):
        def __call__(self, x):
            return x

    for given, count in ((Session, 3), (Session(), 3), (Plain, 2)):
        loops.clear()
        assert load(given).infer({"x": row(5)[0]})["y"].item() == 5
        load.unload()
        assert len(loops) == count
        assert len(set(loops)) == 1
        assert loops[0].is_closed()


def fail():
    """Fail."""
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (fail, InternalError, "ValueError: boom"),
        (lambda: (_ for _ in ()).throw(SystemExit(3)), InternalError, "SystemExit: 3"),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt), InternalError, "KeyboardInterrupt"),
        (lambda: (_ for _ in ()).throw(asyncio.CancelledError), InternalError, "CancelledError"),
        (lambda: (_ for _ in ()).throw(UnavailableError("busy")), UnavailableError, "busy"),
    ],
)
def test_an_exception_is_the_error_of_its_request(load, end, error, text):
    """Whatever its class, the loop goes on."""

    async def function(x):
        await asyncio.sleep(0)
        if x[0] < 0:
            end()
        return x

    model = load(function)
    with pytest.raises(error) as caught:
        model.infer({"x": [-1.0]})
    assert str(caught.value).endswith(text)
    assert model.infer({"x": [1.0]})["y"].item() == 1


def test_an_async_generator_makes_a_decoupled_model(load):
    """With errors at their place, and closed when it is cancelled."""
    closed = threading.Event()

    async def count(x):
        try:
            for i in range(int(abs(x[0]))):
                await asyncio.sleep(0)
                yield np.array([i], np.float32)
            if x[0] < 0:
                raise ValueError("boom")
        finally:
            closed.set()

    model = load(count)
    assert [r["y"].item() for r in model.stream({"x": [3.0]})] == [0, 1, 2]
    assert [r["y"].item() for r in model.stream({"x": [0.0]})] == []
    closed.clear()
    with model.stream({"x": [-2.0]}) as stream:
        assert [next(stream)["y"].item() for _ in range(2)] == [0, 1]
        with pytest.raises(InternalError, match="ValueError: boom"):
            next(stream)
    assert closed.is_set()
    closed.clear()
    with model.stream({"x": [1e9]}) as stream:
        next(stream)
    assert closed.wait(30)


def test_a_call_that_never_ends_is_cancelled_at_close():
    """Its coroutine gets a CancelledError, and the thread is gone."""
    before = counters()
    entered = threading.Event()
    cancelled = threading.Event()

    async def forever(x):
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    with Server(exit_timeout=60) as server:
        model = Loader(server)(forever)
        pending = model.submit({"x": [1.0]})
        assert entered.wait(30)
        threads = workers()
    assert cancelled.wait(30)
    for thread in threads:
        thread.join(30)
    with pytest.raises((ClosedError, CancelledError)):
        pending.result()
    del pending, model
    assert counters() == before


@pytest.mark.parametrize("is_generator", [False, True])
def test_a_cancelled_request_cancels_its_coroutine(load, is_generator):
    """At its await; it may come to its end, and the next request waits for that."""
    entered = threading.Semaphore(0)
    seen = []

    async def wait(x):
        seen.append("begin")
        try:
            if x[0] > 0:
                entered.release()
                await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            seen.append("end")
        return x

    async def generate(x):
        yield await wait(x)

    model = load(generate if is_generator else wait)
    inference = model.submit({"x": [1.0]})
    assert entered.acquire(timeout=30)
    following = model.submit({"x": [0.0]})
    inference.cancel()
    with pytest.raises(CancelledError, match="the request was cancelled"):
        inference.result()
    assert following.result()["y"].item() == 0
    assert seen == ["begin", "end"] * 2


def test_a_coroutine_is_cancelled_when_nobody_waits_for_its_batch(load):
    """One request of two is not enough; and a coroutine may answer all the same."""
    held = Held()
    entered = threading.Semaphore(0)

    async def function(x):
        if len(x) == 1:
            await asyncio.to_thread(held, x)
            return x
        entered.release()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return x * 2

    model = load(function, **BATCHED)
    first = model.submit({"x": row(0)})
    held.wait()
    pending = [model.submit({"x": row(i)}) for i in (1, 2)]
    held.may_go.set()
    first.result()
    assert entered.acquire(timeout=30)
    assert pending[0].cancel()
    assert not pending[0].wait(0.25)
    assert pending[1].cancel()
    assert [inference.result()["y"].item() for inference in pending] == [2, 4]
    held.calls.clear()


def test_cancelling_a_call_cancels_what_it_awaits(load):
    """Through a chain of coroutine functions."""
    entered = threading.Event()
    cancelled = threading.Event()

    async def inner(x):
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    other = load(inner, name="inner")

    async def outer(x):
        return (await other.async_infer({"x": x}))["y"]

    inference = load(outer).submit({"x": [1.0]})
    assert entered.wait(30)
    inference.cancel()
    with pytest.raises(CancelledError):
        inference.result()
    assert cancelled.wait(30)


def test_tasks_that_a_call_leaves_behind_go_on_until_the_model_ends(load):
    """Then they are cancelled."""
    seen = []

    async def background():
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def function(x):
        seen.append(asyncio.create_task(background()))
        await asyncio.sleep(0)
        return x

    load(function).infer({"x": [1.0]})
    assert not seen[0].done()
    load.unload()
    assert seen[1:] == ["cancelled"]


def test_a_batch_that_waits_is_one_call(load):
    """Dynamic batching is as with other functions."""
    held = Held()
    rows = []

    async def function(x):
        rows.append(len(x))
        await asyncio.to_thread(held, x)
        return x

    model = load(function, **BATCHED)
    first = model.submit({"x": row(0)})
    held.wait()
    pending = [model.submit({"x": row(i)}) for i in range(4)]
    held.may_go.set()
    first.result()
    assert [inference.result()["y"].item() for inference in pending] == [0, 1, 2, 3]
    assert rows == [1, 4]


def test_the_result_is_checked(load):
    """As that of other functions."""

    async def wrong(x):
        return {"q": x}

    with pytest.raises((InternalError, InvalidArgumentError), match="lacks 'y'"):
        load(wrong).infer({"x": [1.0]})


class Old:
    """An object that is called by a coroutine of the old kind."""

    @types.coroutine
    def __call__(self, x):
        """Be one."""
        yield


@pytest.mark.parametrize("given", [Old, Old(), functools.partial(Old.__call__, None)])
def test_coroutines_of_generators_are_refused(load, given):
    """They look like generator functions, which are decoupled models, and are none."""
    with pytest.raises(TypeError, match=r"^model 'function': the function .* of types\.coroutine"):
        load(given)
