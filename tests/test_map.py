# SPDX-License-Identifier: Apache-2.0
"""Maps: bounded, lazy, in order or as completed, with errors at their place or handed out."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import threading
import weakref

import numpy as np
import pytest
import tqdm
import uvloop

from tritonffi import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    Request,
    Server,
)

COUNT = 200
ORDERS = pytest.mark.parametrize("ordered", [True, False])
WAYS = pytest.mark.parametrize("way", ["map", "asyncio", "uvloop"])


def item(value, **parameters):
    """One request with one value."""
    return Request({"INPUT0": [value]}, parameters=parameters)


def values(responses):
    """The values that came back; of an error its class."""
    return [r if isinstance(r, Exception) else r["OUTPUT0"].tolist()[0] for r in responses]


async def until(condition):
    """Let the loop turn until something is so."""
    while not condition():  # noqa: ASYNC110 (what is waited for happens in C)
        await asyncio.sleep(0)


async def listed(responses):
    """All that an async map gives."""
    return [response async for response in responses]


def collect(model, way, items, **keywords):
    """Everything that a map of one of the kinds hands out."""
    if way == "map":
        return list(model.map(items, **keywords))

    async def main():
        return await listed(model.async_map(items, **keywords))

    return {"asyncio": asyncio.run, "uvloop": uvloop.run}[way](main())


def results(model):
    """The server's further queues."""
    return tuple(model._lifecycle.queues)


@WAYS
@ORDERS
@pytest.mark.parametrize("in_flight", [1, 2, 32, 1000])
def test_every_item_has_its_response(echo, way, ordered, in_flight):
    """In the order of the items, or in any."""
    items = ({"INPUT0": [i]} for i in range(COUNT))
    got = values(collect(echo, way, items, in_flight=in_flight, ordered=ordered))
    assert (got if ordered else sorted(got)) == [float(i) for i in range(COUNT)]


@WAYS
@ORDERS
def test_nothing_in_nothing_out(echo, way, ordered):
    """An empty iterable."""
    assert collect(echo, way, [], ordered=ordered) == []


@ORDERS
def test_one_memory_for_all_items_is_refused(echo, ordered):
    """`out` belongs into the requests of the items."""
    out = {"OUTPUT0": np.zeros(1, np.float32)}
    with pytest.raises(InvalidArgumentError, match="out= would give all items of a map the same"):
        echo.map([{"INPUT0": [1]}], ordered=ordered, out=out)
    with pytest.raises(InvalidArgumentError, match="out= would give all items of a map the same"):
        echo.async_map([{"INPUT0": [1]}], ordered=ordered, out=out)
    outs = [np.zeros(1, np.float32) for _ in range(4)]
    requests = [Request({"INPUT0": [i]}, out={"OUTPUT0": outs[i]}) for i in range(4)]
    assert len(list(echo.map(requests, ordered=ordered))) == 4
    assert [out.tolist() for out in outs] == [[0.0], [1.0], [2.0], [3.0]]


@ORDERS
def test_items_are_read_when_there_is_room(echo, ordered):
    """So an iterable without end will do."""
    read = itertools.count()
    seen = []

    def items():
        for i in read:
            seen.append(i)
            yield {"INPUT0": [i]}

    with echo.map(items(), in_flight=4, ordered=ordered) as responses:
        assert seen == []
        for taken in range(1, 20):
            next(responses)
            assert len(seen) <= taken + 3
        # What is ready is handed out before the row is filled again, from half of it on.
        assert 19 <= len(seen) <= 19 + 3


@ORDERS
def test_no_more_are_in_flight_than_allowed(echo, gate, ordered):
    """The model sees as many as that, and the next when one was handed out."""
    items = (item(i, hold="start", thread=True) for i in range(6))
    responses = echo.map(items, in_flight=3, ordered=ordered)
    got = []
    reader = threading.Thread(target=lambda: got.extend(values(responses)))
    reader.start()
    for _ in range(6):
        gate.wait(1)
        assert gate.waiting() <= 3
        gate.release(1)
    reader.join()
    assert (got if ordered else sorted(got)) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@WAYS
def test_as_completed_hands_out_what_is_there(echo, gate, way):
    """The first item stands at the gate while the others come."""
    items = [item(0, hold="start", thread=True), *(item(i) for i in range(1, 5))]

    async def main():
        responses = echo.async_map(items, ordered=False)
        got = [await anext(responses) for _ in range(4)]
        gate.wait()
        gate.release()
        return got + [response async for response in responses]

    if way == "map":
        responses = echo.map(items, ordered=False)
        got = [next(responses) for _ in range(4)]
        gate.wait()
        gate.release()
        got += list(responses)
    else:
        got = {"asyncio": asyncio.run, "uvloop": uvloop.run}[way](main())
    assert sorted(values(got)[:4]) == [1.0, 2.0, 3.0, 4.0]
    assert values(got)[4:] == [0.0]


@WAYS
def test_errors_are_handed_out_in_their_places(echo, way):
    """Of the model and of the inputs; the rest is not touched."""
    items = [item(0), item(1, mode="error"), {"nope": [2]}, {"INPUT0": object()}, item(4)]
    got = collect(echo, way, items, return_errors=True)
    assert [type(error) for error in got[1:4]] == [InternalError, InvalidArgumentError, TypeError]
    assert values([got[0], got[4]]) == [0.0, 4.0]


@WAYS
def test_errors_are_handed_out_as_completed(echo, way):
    """As many as there were."""
    items = [item(i, mode="error" if i % 2 else "echo") for i in range(10)] + [{"nope": [1]}]
    got = collect(echo, way, items, return_errors=True, ordered=False)
    errors = sorted(type(error).__name__ for error in got if isinstance(error, Exception))
    assert errors == ["InternalError"] * 5 + ["InvalidArgumentError"]
    assert sorted(values(r for r in got if not isinstance(r, Exception))) == [0, 2, 4, 6, 8]


def test_errors_are_raised_at_their_place_and_the_rest_follows(echo):
    """A `for` loop ends there; who goes on gets the others."""
    responses = echo.map([item(0), item(1, mode="error", error_text="no luck"), item(2), item(3)])
    assert values([next(responses)]) == [0.0]
    with pytest.raises(InternalError, match=r"^model 'echo': no luck$"):
        next(responses)
    assert values(responses) == [2.0, 3.0]


def test_errors_are_raised_in_an_async_map_too(echo):
    """The same."""

    async def main():
        responses = echo.async_map([item(0), {"nope": [1]}, item(2)])
        assert values([await anext(responses)]) == [0.0]
        with pytest.raises(InvalidArgumentError, match="nope"):
            await anext(responses)
        assert values(await listed(responses)) == [2.0]

    asyncio.run(main())


@ORDERS
@WAYS
def test_what_the_iterable_raises_comes_last(echo, way, ordered):
    """After the responses to all that it has given; it is nobody's result."""

    def items():
        yield from (item(i) for i in range(3))
        raise ZeroDivisionError

    got = []

    async def main():
        async for response in echo.async_map(items(), ordered=ordered, return_errors=True):
            got.append(response)  # noqa: PERF401 (the error comes in between)

    def run():
        if way == "map":
            for response in echo.map(items(), ordered=ordered, return_errors=True):
                got.append(response)  # noqa: PERF402 (likewise)
        else:
            {"asyncio": asyncio.run, "uvloop": uvloop.run}[way](main())

    with pytest.raises(ZeroDivisionError):
        run()
    assert sorted(values(got)) == [0.0, 1.0, 2.0]


@ORDERS
@pytest.mark.parametrize("way", ["drop", "close", "with", "break"])
def test_an_abandoned_map_cancels_what_is_in_flight(echo, gate, ordered, way):
    """Nothing is left behind."""
    items = [item(0), *(item(i, hold="start", thread=True) for i in range(1, 4))]
    responses = echo.map(items, ordered=ordered)
    assert values([next(responses)]) == [0.0]
    gate.wait(3)
    queue = echo._lifecycle.queue if ordered else results(echo)[0]
    pending = list(queue.in_flight.values())
    if way == "drop":
        del responses
    elif way == "close":
        responses.close()
        assert list(responses) == []
    elif way == "with":
        with responses:
            pass
        assert list(responses) == []
    else:
        gate.release(1)
        for _ in responses:
            break
        del responses
    gc.collect()
    assert sum(inference.is_cancelled() or inference.is_over for inference in pending) >= 2
    assert queue.settle(float("inf"))
    del pending
    echo.infer({"INPUT0": [1.0]})
    assert results(echo) == ()


def test_an_abandoned_async_map_cancels_what_is_in_flight(echo, gate):
    """Closed, dropped, or its task cancelled."""

    async def main():
        for way in ("aclose", "drop", "cancel"):
            items = (item(i, hold="start", thread=True) for i in range(3))
            responses = echo.async_map(items)
            task = asyncio.ensure_future(anext(responses))
            await until(lambda: gate.waiting() == 3)
            (queue,) = results(echo)
            pending = list(queue.in_flight.values())
            if way == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                for _ in range(3):
                    with pytest.raises(CancelledError):  # and not the end, as if it had no more
                        await anext(responses)
                assert [response async for response in responses] == []
            elif way == "aclose":
                await responses.aclose()
                with pytest.raises(StopAsyncIteration):
                    await task
            else:
                gate.release(1)
                await task
                del responses, task
            assert all(inference.is_cancelled() or inference.is_over for inference in pending)
            await until(lambda queue=queue: not queue.in_flight)

    asyncio.run(main())


@WAYS
@ORDERS
def test_a_map_that_was_dropped_with_errors_unread_is_gone(echo, ordered, way):
    """The errors know where they were raised, and that knows the map."""
    items = [{"INPUT0": ["x"]}] * 8

    async def start():
        responses = echo.async_map(items, ordered=ordered)
        with pytest.raises(TypeError, match="expected a number"):
            await anext(responses)
        return weakref.ref(responses)

    if way == "map":
        responses = echo.map(items, ordered=ordered)
        with pytest.raises(TypeError, match="expected a number"):
            next(responses)
        dropped = weakref.ref(responses)
        del responses
    else:
        dropped = {"asyncio": asyncio.run, "uvloop": uvloop.run}[way](start())
    gc.collect()
    assert dropped() is None


@ORDERS
def test_timeouts_are_of_each_item(echo, gate, ordered):
    """One that is late is a TimeoutError in its place and cancelled; the others are responses."""
    items = [
        Request({"INPUT0": [0.0]}, timeout=0.1, parameters={"hold": "start", "thread": True}),
        *(item(i) for i in range(1, 4)),
    ]
    got = list(echo.map(items, ordered=ordered, return_errors=True))
    assert [type(error) for error in got if isinstance(error, Exception)] == [TimeoutError]
    assert sorted(values(r for r in got if not isinstance(r, Exception))) == [1.0, 2.0, 3.0]
    assert isinstance(got[0 if ordered else 3], TimeoutError)


@ORDERS
def test_timeouts_are_of_each_item_in_a_loop(echo, gate, ordered):
    """The same."""
    items = [
        Request({"INPUT0": [0.0]}, timeout=0.1, parameters={"hold": "start", "thread": True}),
        *(item(i) for i in range(1, 4)),
    ]
    got = collect(echo, "asyncio", items, ordered=ordered, return_errors=True)
    assert isinstance(got[0 if ordered else 3], TimeoutError)
    assert sorted(values(r for r in got if not isinstance(r, Exception))) == [1.0, 2.0, 3.0]


def test_keywords_are_for_all_items(echo):
    """As with `infer`; a Request has its own."""
    responses = echo.map([{"INPUT0": [1]}] * 2, request_id="mine", parameters={"a": 1})
    assert [(r.request_id, r.parameters) for r in responses] == [("mine", {"a": 1})] * 2
    with pytest.raises(TypeError, match="a Request says all: no further request_id"):
        next(echo.map([item(1)], request_id="mine"))


@pytest.mark.parametrize(
    ("value", "kind"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_in_flight_is_checked(echo, value, kind):
    """Before an item is read."""
    for ordered in (True, False):
        with pytest.raises(kind, match="in_flight must be"):
            echo.map([], in_flight=value, ordered=ordered)
    with pytest.raises(TypeError, match="not iterable"):
        echo.map(7, ordered=False)


@WAYS
def test_an_async_iterable_is_awaited_while_responses_come(echo, way):
    """A source that waits for the response to its last item before it gives the next."""

    async def main():
        seen = asyncio.Queue()

        async def items():
            for i in range(20):
                yield {"INPUT0": [i]}
                assert await seen.get() == float(i)

        got = []
        async for response in echo.async_map(items()):
            got.append(response["OUTPUT0"].tolist()[0])
            seen.put_nowait(got[-1])
        assert got == [float(i) for i in range(20)]

    if way != "map":
        {"asyncio": asyncio.run, "uvloop": uvloop.run}[way](main())


@ORDERS
def test_tqdm_shows_the_way(echo, ordered, monkeypatch):
    """A map is an iterator like any other."""
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # or a thread of its would stay
    shown = io.StringIO()
    items = [{"INPUT0": [i]} for i in range(20)]
    bar = tqdm.tqdm(echo.map(items, ordered=ordered), total=len(items), file=shown)
    assert sorted(values(bar)) == [float(i) for i in range(20)]
    assert "20/20" in shown.getvalue()


@ORDERS
@pytest.mark.parametrize("way", ["map", "asyncio"])
def test_closing_the_server_ends_a_map(repository, backend_directory, gate, way, ordered):
    """What was in flight is cancelled, and what comes then is refused."""
    with Server(repository, backend_directory=backend_directory, startup_models=["echo"]) as own:
        model = own.model("echo")
        items = (item(i, hold="start", thread=True) for i in range(5))
        got = []
        options = {"in_flight": 3, "ordered": ordered, "return_errors": True}
        reader = threading.Thread(target=lambda: got.extend(collect(model, way, items, **options)))
        reader.start()
        gate.wait(3)
        own.close()
        reader.join()
    kinds = [type(error).__name__ for error in got]
    assert sorted(kinds) == ["CancelledError"] * 3 + ["ClosedError"] * 2
    if ordered:
        assert kinds == sorted(kinds)


@pytest.mark.parametrize("way", ["map", "async_map"])
def test_one_item_in_place_of_several_is_refused(echo, way):
    """A mapping can be iterated over too, and its names are no inputs."""
    with pytest.raises(TypeError) as caught:
        getattr(echo, way)({"INPUT0": [1.0]})
    assert str(caught.value) == "model 'echo': map takes an iterable of mappings, not one of them"
