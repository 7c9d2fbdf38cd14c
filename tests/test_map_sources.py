# SPDX-License-Identifier: Apache-2.0
"""What maps read from: generators with things around their items, and those that raise."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

ORDERS = pytest.mark.parametrize("ordered", [True, False])
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def item(value):
    """What a map takes."""
    return {"INPUT0": [float(value)]}


def value(response):
    """What came back."""
    return response["OUTPUT0"].item()


class Ending(dict):
    """A mapping that raises where it is read."""

    def __getitem__(self, name):
        """Raise what it has."""
        raise super().__getitem__(name)


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
