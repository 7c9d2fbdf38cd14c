# SPDX-License-Identifier: Apache-2.0
"""What maps read from: generators with things around their items, and those that raise."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import sys

import pytest
import uvloop

ORDERS = pytest.mark.parametrize("ordered", [True, False])
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
with_timeouts = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs asyncio.timeout")

COUNT = 20


def item(value):
    """What a map takes."""
    return {"INPUT0": [float(value)]}


def value(response):
    """What came back."""
    return response["OUTPUT0"].item()


class StopAllError(BaseException):
    """What a signal handler raises, that is no failure of anything."""


def interrupting(at):
    """Return an iterator in which a signal handler raises, once, before it gives an item."""
    numbers = iter(range(COUNT))
    steps = itertools.count()

    def step():
        if next(steps) == at:
            raise StopAllError
        return next(numbers, None)

    return map(item, iter(step, None))


class Ending(dict):
    """A mapping that raises where it is read."""

    def __getitem__(self, name):
        """Raise what it has."""
        raise super().__getitem__(name)


async def until(condition):
    """Let the loop turn until something is so."""
    while not condition():  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0)


@LOOPS
@ORDERS
def test_an_asynchronous_generator_goes_on_in_one_task(echo, run, ordered):
    """Context variables that it sets are there at its next item."""
    last = contextvars.ContextVar("last", default=-1)
    tasks = []

    async def items():
        for number in range(COUNT):
            assert last.get() == number - 1
            last.set(number)
            tasks.append(asyncio.current_task())
            yield item(number)

    async def main():
        got = [value(r) async for r in echo.async_map(items(), ordered=ordered, in_flight=4)]
        assert sorted(got) == list(range(COUNT))

    run(main())
    assert len(tasks) == COUNT
    assert len(set(tasks)) == 1


@LOOPS
@with_timeouts
def test_a_timeout_around_the_items_ends_the_wait_for_one(echo, run):
    """It is raised after the responses to those before, as what an iterable raises is."""

    async def items():
        async with asyncio.timeout(None) as scope:
            for number in range(3):
                yield item(number)
            scope.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

    async def main():
        responses = echo.async_map(items())
        got = [value(await anext(responses)) for _ in range(3)]
        with pytest.raises(TimeoutError):
            await anext(responses)
        assert got == [0.0, 1.0, 2.0]

    run(main())


@LOOPS
@with_timeouts
def test_a_timeout_that_is_up_between_two_items_is_raised_for_the_next(echo, run):
    """The generator stands at its `yield` then, and gets it there."""
    scopes = []

    async def items():
        async with asyncio.timeout(None) as scope:
            scopes.append(scope)
            yield item(1)
            yield item(2)

    async def main():
        responses = echo.async_map(items(), in_flight=1)
        assert value(await anext(responses)) == 1.0
        scopes[0].reschedule(asyncio.get_running_loop().time())
        await until(scopes[0].expired)
        with pytest.raises(TimeoutError):
            await anext(responses)
        assert [response async for response in responses] == []

    run(main())


@LOOPS
def test_what_cancels_the_reading_task_reaches_the_generator(echo, run):
    """At its `yield`, and what it makes of it comes in its place."""
    tasks = []

    async def items():
        tasks.append(asyncio.current_task())
        try:
            yield item(1)
        except asyncio.CancelledError:
            yield item(2)
            raise ZeroDivisionError from None

    async def main():
        responses = echo.async_map(items(), in_flight=1)
        assert value(await anext(responses)) == 1.0
        tasks[0].cancel()
        assert value(await anext(responses)) == 2.0
        with pytest.raises(ZeroDivisionError):
            await anext(responses)

    run(main())


@LOOPS
def test_a_closed_map_has_let_go_of_its_generator(echo, run):
    """Where it waits for an item, it has come to its end by then."""
    ended = []

    async def items():
        try:
            yield item(1)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(asyncio.current_task())

    async def main():
        async with echo.async_map(items()) as responses:
            assert value(await anext(responses)) == 1.0
            reading = asyncio.ensure_future(anext(responses))
            await asyncio.sleep(0)
        assert len(ended) == 1
        with pytest.raises(StopAsyncIteration):
            await reading
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


@LOOPS
def test_a_generator_that_goes_on_in_spite_of_the_close_is_left(echo, run):
    """Where it gives one more item, nobody waits for the next."""

    async def items():
        yield item(1)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        yield item(2)

    async def main():
        source = items()
        async with echo.async_map(source) as responses:
            assert value(await anext(responses)) == 1.0
            reading = asyncio.ensure_future(anext(responses))
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await reading
        assert [left async for left in source] == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


@LOOPS
def test_a_generator_that_stands_at_an_item_outlives_the_map(echo, run):
    """As it does a loop that is left by `break`."""

    async def items():
        for number in range(4):
            yield item(number)

    async def main():
        source = items()
        async with echo.async_map(source, in_flight=1) as responses:
            assert value(await anext(responses)) == 0.0
        assert [left["INPUT0"] async for left in source] == [[1.0], [2.0], [3.0]]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


@LOOPS
def test_an_iterable_may_close_its_map(echo, run):
    """From the task that reads it, too."""

    async def items():
        yield item(0)
        await maps[0].aclose()
        yield item(1)

    async def main():
        maps.append(echo.async_map(items(), in_flight=1))
        assert [value(response) async for response in maps[0]] == [0.0]
        await until(lambda: len(asyncio.all_tasks()) == 1)

    maps = []
    run(main())
    maps.clear()


@ORDERS
def test_ctrl_c_in_the_iterable_loses_none_of_its_items(echo, ordered):
    """The next step submits what had been read before it."""
    for at in range(COUNT):
        got, came = [], 0
        responses = echo.map(interrupting(at), in_flight=8, ordered=ordered)
        while True:
            try:
                got.append(value(next(responses)))
            except StopAllError:  # noqa: PERF203
                came += 1
            except StopIteration:
                break
        assert came == 1
        assert (got if ordered else sorted(got)) == list(range(COUNT))


@LOOPS
@ORDERS
def test_what_stops_an_iterable_in_a_loop_loses_none_of_its_items(echo, run, ordered):
    """The same."""

    async def main():
        for at in range(COUNT):
            got, came = [], 0
            responses = echo.async_map(interrupting(at), in_flight=8, ordered=ordered)
            while True:
                try:
                    got.append(value(await anext(responses)))
                except StopAllError:  # noqa: PERF203
                    came += 1
                except StopAsyncIteration:
                    break
            assert came == 1
            assert (got if ordered else sorted(got)) == list(range(COUNT))

    run(main())


@LOOPS
@ORDERS
def test_an_item_that_ends_iterations_does_not_end_the_map(echo, run, ordered):
    """It is a RuntimeError in its place, as from a generator."""
    items = [
        item(0),
        Ending(INPUT0=StopIteration()),
        item(2),
        Ending(INPUT0=StopAsyncIteration()),
        item(4),
    ]

    async def main():
        responses = echo.async_map(items, ordered=ordered, return_errors=True)
        return [response async for response in responses]

    for got in (list(echo.map(items, ordered=ordered, return_errors=True)), run(main())):
        errors = [str(outcome) for outcome in got if isinstance(outcome, RuntimeError)]
        ends = ["StopAsyncIteration", "StopIteration"]
        assert sorted(errors) == [f"an item raised {end}" for end in ends]
        rest = [value(outcome) for outcome in got if not isinstance(outcome, RuntimeError)]
        assert sorted(rest) == [0.0, 2.0, 4.0]


@LOOPS
def test_an_iterable_that_raises_the_wrong_end_does_not_end_the_map(echo, run):
    """An iterator is over with StopIteration alone."""
    left = [item(1)]

    def step():
        if not left:
            raise StopAsyncIteration
        return left.pop()

    async def main():
        responses = echo.async_map(iter(step, None))
        assert value(await anext(responses)) == 1.0
        with pytest.raises(RuntimeError, match="the iterable raised StopAsyncIteration"):
            await anext(responses)

    run(main())
