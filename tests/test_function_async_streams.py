# SPDX-License-Identifier: Apache-2.0
"""An async generator as a model is one task from its first value to its end; and its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import sys
import threading

import pytest
from _functions import Held, workers

from tritonffi import CancelledError, InternalError
from tritonffi._function_loop import EventLoop

needs_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has it since 3.11")
variable = contextvars.ContextVar("variable", default=0)


def values(model):
    """Read a stream to its end, or to its error."""
    got = []
    with model.stream({"x": [1.0]}) as stream:
        try:
            got.extend(response["y"].item() for response in stream)
        except InternalError as error:
            got.append(str(error).removeprefix("model 'function': "))
    return got


@pytest.mark.parametrize("ends_early", [False, True])
def test_all_of_it_runs_in_one_task_and_context(load, ends_early):
    """Its end too, whoever ends it."""
    tasks = []
    ended = threading.Event()

    async def function(x):
        token = variable.set(1)
        try:
            for _ in range(3):
                tasks.append(asyncio.current_task())
                await asyncio.sleep(0)
                yield [float(variable.get())]
                variable.set(variable.get() + 1)
        finally:
            variable.reset(token)
            tasks.append(asyncio.current_task())
            ended.set()

    model = load(function)
    if ends_early:
        with model.stream({"x": [1.0]}) as stream:
            assert next(stream)["y"].item() == 1
    else:
        assert values(model) == [1, 2, 3]
    assert ended.wait(30)
    assert len(set(tasks)) == 1
    assert tasks[0] is not None
    tasks.clear()


@needs_311
def test_a_task_group_may_be_open_around_the_yields(load):
    """What its tasks raise ends the generator, wherever that is."""

    async def function(x):
        queue = asyncio.Queue()

        async def produce():
            for i in range(3):
                await queue.put([float(i)])
            raise ValueError("no more")

        async with asyncio.TaskGroup() as group:
            producer = group.create_task(produce())
            while True:
                yield await queue.get()
                await asyncio.wait([producer])

    (first, error) = values(load(function))
    assert first == 0
    assert error == "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"


@needs_311
def test_a_timeout_may_be_open_around_the_yields(load):
    """It ends the generator in an await."""

    async def function(x):
        async with asyncio.timeout(0.05):
            yield [1.0]
            await asyncio.get_running_loop().create_future()

    assert values(load(function)) == [1, "TimeoutError"]


class Steps:
    """Steps through a stream without a server, as an instance does."""

    def __init__(self, function):
        """Begin nothing yet."""
        self.loop = EventLoop("model 'm'")
        self.is_cancelled = threading.Event()
        self.stream = self.loop.stream(function(), self.is_cancelled.is_set)

    def cancel(self, task):
        """Cancel a task, and wait until that has arrived."""

        async def cancel():
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        self.loop.run(cancel())


@pytest.fixture
def step():
    """Begin a stream; its loop is ended after the test."""
    made = []

    def step(function):
        made.append(Steps(function))
        return made[-1]

    yield step
    for steps in made:
        steps.stream.close()
        steps.loop.close()


def test_a_cancellation_between_two_values_arrives_at_the_yield(step):
    """Where a timeout that is open there sends it to; the next value waits its turn."""
    seen = []

    async def function():
        seen.append(asyncio.current_task())
        for i in range(4):
            try:
                yield i
            except asyncio.CancelledError:  # noqa: PERF203
                seen.append(i)

    steps = step(function)
    assert next(steps.stream) == 0
    steps.cancel(seen[0])
    assert seen[1:] == [0]
    assert next(steps.stream) == 1
    assert next(steps.stream) == 2
    steps.cancel(seen[0])
    assert [*steps.stream] == [3]
    assert seen[1:] == [0, 2]
    seen.clear()


def test_what_it_raises_between_two_values_comes_with_the_next(step):
    """Nothing is lost."""
    seen = []

    async def function():
        seen.append(asyncio.current_task())
        with contextlib.suppress(asyncio.CancelledError):
            yield 1
        raise ValueError("then")

    steps = step(function)
    assert next(steps.stream) == 1
    steps.cancel(seen.pop())
    with pytest.raises(ValueError, match="then"):
        next(steps.stream)
    assert list(steps.stream) == []


def test_the_next_value_is_not_begun_before_the_last_one_was_taken(step):
    """Nobody may want it."""
    begun = []

    async def function():
        for i in range(3):
            begun.append(i)
            yield i

    steps = step(function)
    assert begun == []
    for i in range(3):
        assert next(steps.stream) == i
        steps.loop.run(asyncio.sleep(0))
        assert begun == list(range(i + 1))
    assert next(steps.stream, None) is None


def test_a_cancelled_call_may_still_give_values(step):
    """It is cancelled once, where it awaits something, and may come to its end."""
    seen = []

    async def function():
        for i in range(3):
            try:
                if i == 1:
                    steps.is_cancelled.set()
                    await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                seen.append(i)
            yield i

    steps = step(function)
    assert list(steps.stream) == [0, 1, 2]
    assert seen == [1]


def test_a_cancelled_call_that_ends_by_it_was_cancelled(step):
    """As a coroutine."""

    async def function():
        steps.is_cancelled.set()
        yield await asyncio.get_running_loop().create_future()

    steps = step(function)
    with pytest.raises(CancelledError, match="the request was cancelled"):
        next(steps.stream)


def test_what_it_raises_when_it_is_closed_is_raised(step):
    """By who closes it."""

    async def function():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            raise OSError("in close")

    steps = step(function)
    assert next(steps.stream) == 1
    with pytest.raises(OSError, match="in close"):
        steps.stream.close()


def test_a_loop_that_cannot_begin_fails_one_call(load, monkeypatch):
    """For want of a thread; the next call tries again."""
    start = threading.Thread.start
    failures = [RuntimeError("can't start new thread")]

    def start_or_fail(self):
        if failures and "loop of" in self.name:
            raise failures.pop()
        start(self)

    async def function(x):
        return x

    async def generate(x):
        yield x

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    for made in (function, generate):
        failures[:] = [RuntimeError("can't start new thread")]
        model = load(made)
        with pytest.raises(InternalError, match="RuntimeError: can't start new thread"):
            model.infer({"x": [1.0]}, timeout=30)
        assert model.infer({"x": [2.0]}, timeout=30)["y"].item() == 2


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit])
def test_what_is_thrown_into_the_thread_of_the_loop_does_not_end_it(load, error):
    """As a library for timeouts does, which takes it for the thread of the call."""
    held = Held()
    waits = threading.Event()

    async def function(x):
        if x[0]:
            answer = asyncio.get_running_loop().run_in_executor(None, held, x)
            waits.set()  # and is not in the midst of the start of that thread
            await answer
        return x

    model = load(function)
    assert model.infer({"x": [0.0]})["y"].item() == 0
    (loop,) = [t for t in threading.enumerate() if t.name == "tritonffi: loop of model 'function'"]
    pending = model.submit({"x": [1.0]})
    held.wait()
    assert waits.wait(30)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(loop.ident), ctypes.py_object(error))
    held.may_go.set()
    assert pending.wait(30)
    with contextlib.suppress(InternalError):
        assert pending.result()["y"].item() == 1
    held.calls.clear()
    assert model.infer({"x": [0.0]}, timeout=30)["y"].item() == 0
    assert loop.is_alive()
    assert len(workers()) == 1


def test_a_loop_that_has_ended_leaves_nobody_waiting():
    """Who waits is told, and the next one has a new one."""
    loop = EventLoop("model 'm'")

    async def end():
        loop._is_over = True
        asyncio.get_running_loop().stop()
        await asyncio.get_running_loop().create_future()

    async def swallow():
        with contextlib.suppress(asyncio.CancelledError):
            await end()

    loop.run(swallow())  # is cancelled with the loop
    loop._thread.join(30)
    loop._is_over = False
    assert loop.run(asyncio.sleep(0, 5)) == 5
    loop.close()
