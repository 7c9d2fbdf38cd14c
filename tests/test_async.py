# SPDX-License-Identifier: Apache-2.0
"""Inference in event loops of asyncio and uvloop: one queue a loop, giving up, loops that end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading

import pytest
import uvloop

import tritonffi
from tritonffi import (
    CancelledError,
    ClosedError,
    InternalError,
    InvalidArgumentError,
    QueueFullError,
    Server,
    UnsupportedError,
)

MANY = 200


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine in a new event loop of one of the two kinds."""
    return {"asyncio": asyncio.run, "uvloop": uvloop.run}[request.param]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request):
    """A new event loop of one of the two kinds; closed after the test."""
    made = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]()
    yield made
    made.close()


@pytest.fixture
def stream(server):
    """The decoupled model: `count` responses, each the input and its own INDEX."""
    return server.model("stream")


async def until(condition):
    """Let the loop turn until something is so."""
    while not condition():  # noqa: ASYNC110 (what is waited for happens in C)
        await asyncio.sleep(0)


def queues(model):
    """The server's further queues."""
    return tuple(model._lifecycle.queues)


async def numbers(responses):
    """The INDEX of every response that is left."""
    return [int(response["INDEX"][0]) async for response in responses]


def test_a_response_is_awaited(run, echo):
    """The arrays outlive the loop."""

    async def main():
        response = await echo.async_infer({"INPUT0": [1.0, 2.5]}, request_id="mine")
        assert response.request_id == "mine"
        return response

    assert run(main())["OUTPUT0"].tolist() == [1.0, 2.5]


def test_hundreds_are_awaited_at_once_over_one_queue(run, echo):
    """Each task gets its own result; there is one queue for the loop and no thread."""

    async def main():
        threads = threading.active_count()
        results = await asyncio.gather(*(echo.async_infer({"INPUT0": [i]}) for i in range(500)))
        assert [queue.is_left() for queue in queues(echo)] == [False]
        assert threading.active_count() == threads
        return results

    results = run(main())
    assert [r["OUTPUT0"].tolist() for r in results] == [[float(i)] for i in range(500)]


def test_errors_are_raised_in_the_task(run, echo):
    """Of the inputs before, of the model afterwards."""

    async def main():
        with pytest.raises(InvalidArgumentError, match=r"model 'echo'.*'nope'"):
            await echo.async_infer({"nope": [1.0]})
        with pytest.raises(TypeError, match="INPUT0"):
            await echo.async_infer({"INPUT0": object()})
        with pytest.raises(InternalError, match=r"^model 'echo': no luck$"):
            await echo.async_infer(
                {"INPUT0": [1.0]}, parameters={"mode": "error", "error_text": "no luck"}
            )

    run(main())


@pytest.mark.parametrize("way", ["cancel", "wait_for", "timeout"])
def test_giving_up_cancels_the_request(run, echo, gate, way):
    """A cancelled task, `asyncio.wait_for`, or the request's own timeout: all go on afterwards."""

    async def main():
        held = {"INPUT0": [1.0]}
        parameters = {"hold": "start"}
        if way == "cancel":
            task = asyncio.ensure_future(echo.async_infer(held, parameters=parameters))
            await until(gate.waiting)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif way == "wait_for":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(echo.async_infer(held, parameters=parameters), 0.05)
        else:
            with pytest.raises(TimeoutError, match=r"'echo': no result within 0.05 s; the"):
                await echo.async_infer(held, parameters=parameters, timeout=0.05)
        (queue,) = queues(echo)
        # The model has seen it: it stands at the gate, which is closed, until it is cancelled.
        await until(lambda: not queue.in_flight)
        response = await echo.async_infer({"INPUT0": [2.0]})
        assert response["OUTPUT0"].tolist() == [2.0]

    run(main())


def test_a_task_cancelled_before_it_ran_submits_nothing(run, echo):
    """There is nothing to take back."""

    async def main():
        await echo.async_infer({"INPUT0": [0.0]})
        task = asyncio.ensure_future(echo.async_infer({"INPUT0": [1.0]}))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [len(queue.in_flight) for queue in queues(echo)] == [0]

    run(main())


def test_run_twice_on_one_server(run, echo):
    """The second loop has a queue of its own, and the first one's is cleared away."""

    async def main(value):
        response = await echo.async_infer({"INPUT0": [value]})
        (queue,) = queues(echo)
        assert os.path.exists(f"/proc/self/fd/{queue._descriptor}")  # noqa: ASYNC240, PTH110
        return queue, response["OUTPUT0"].tolist()

    first, output = run(main(1.0))
    assert output == [1.0]
    second, output = run(main(2.0))
    assert output == [2.0]
    assert first is not second
    assert queues(echo) == (second,)


def test_two_loops_in_two_threads(run, echo):
    """Neither takes what is the other's."""
    results = {}
    barrier = threading.Barrier(2)

    def work(base):
        async def main():
            barrier.wait()
            return [
                (await echo.async_infer({"INPUT0": [base + i]}))["OUTPUT0"].tolist()
                for i in range(MANY)
            ]

        results[base] = run(main())

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for base in (0, 1000):
        assert results[base] == [[float(base + i)] for i in range(MANY)]


def test_calls_without_a_loop_take_nothing_from_it(run, echo, gate):
    """A sync call in another thread, or in the loop itself, while a task waits."""

    async def main():
        task = asyncio.ensure_future(
            echo.async_infer({"INPUT0": [1.0]}, parameters={"hold": "start", "thread": True})
        )
        await until(gate.waiting)
        assert echo.infer({"INPUT0": [2.0]})["OUTPUT0"].tolist() == [2.0]
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: echo.infer({"INPUT0": [3.0]})
        )
        gate.release()
        assert (await task)["OUTPUT0"].tolist() == [1.0]

    run(main())


def test_a_loop_closed_with_work_in_flight(loop, echo, gate, caplog):
    """The inputs stay pinned until the model is through; then everything is cleared away."""
    with caplog.at_level(logging.CRITICAL):  # asyncio logs that a pending task was destroyed
        task = loop.create_task(
            echo.async_infer({"INPUT0": [1.0]}, parameters={"hold": "start", "thread": True})
        )
        ignores = loop.create_task(
            echo.async_infer(
                {"INPUT0": [2.0]},
                parameters={"hold": "start", "thread": True, "ignore_cancel": True},
            )
        )
        loop.run_until_complete(until(lambda: gate.waiting() == 2))
        (queue,) = queues(echo)
        pinned = list(queue.in_flight.values())
        loop.close()
        del task, ignores
        # Whatever the server is asked next finds that the loop is closed.
        assert echo.infer({"INPUT0": [3.0]})["OUTPUT0"].tolist() == [3.0]
        gc.collect()
    assert all(inference.is_cancelled() or inference.is_over for inference in pinned)
    assert queues(echo) == (queue,)
    assert [inference.pins is not None for inference in pinned][-1]
    gate.release()
    assert queue.settle(float("inf"))
    echo.infer({"INPUT0": [4.0]})
    assert queues(echo) == ()


@pytest.mark.parametrize("where", ["in the loop", "in another thread"])
def test_closing_the_server_ends_what_is_awaited(run, repository, backend_directory, gate, where):
    """The tasks get CancelledError, and the loop is left as it was."""

    async def main():
        loop = asyncio.get_running_loop()
        server = Server(repository, backend_directory=backend_directory, startup_models=["echo"])
        model = server.model("echo")
        parameters = {"hold": "start", "thread": True}
        tasks = [
            asyncio.ensure_future(model.async_infer({"INPUT0": [1.0]}, parameters=parameters))
            for _ in range(3)
        ]
        await until(lambda: gate.waiting() == 3)
        (queue,) = queues(model)
        if where == "in the loop":
            server.close()
        else:
            await loop.run_in_executor(None, server.close)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [CancelledError] * 3
        assert not loop.remove_reader(queue._descriptor)
        with pytest.raises(ClosedError):
            await model.async_infer({"INPUT0": [1.0]})

    run(main())


def test_a_server_closed_after_the_loop_was_left(loop, repository, backend_directory):
    """A loop that stands still does not hold the server up; its end frees the queue."""
    with Server(repository, backend_directory=backend_directory, startup_models=["echo"]) as own:
        model = own.model("echo")
        response = loop.run_until_complete(model.async_infer({"INPUT0": [1.0]}))
        assert response["OUTPUT0"].tolist() == [1.0]
    loop.run_until_complete(asyncio.sleep(0))


def test_a_queue_whose_loop_never_turns_again(repository, backend_directory):
    """It goes with the loop."""
    loop = asyncio.new_event_loop()
    with Server(repository, backend_directory=backend_directory, startup_models=["echo"]) as own:
        loop.run_until_complete(own.model("echo").async_infer({"INPUT0": [1.0]}))
    loop.close()
    del loop
    gc.collect()


def test_waiters_are_told_when_the_server_gives_up(run, repository, backend_directory, gate):
    """A model that does not stop is not waited for: ClosedError."""

    async def main():
        loop = asyncio.get_running_loop()
        server = Server(repository, backend_directory=backend_directory, startup_models=["echo"])
        model = server.model("echo")
        task = asyncio.ensure_future(
            model.async_infer(
                {"INPUT0": [1.0]}, parameters={"hold": "start", "ignore_cancel": True}
            )
        )
        await until(gate.waiting)
        closing = loop.run_in_executor(None, lambda: server.close(timeout=0.2))
        with pytest.raises(ClosedError, match="model 'echo': the server was closed meanwhile"):
            await task
        with pytest.raises((tritonffi.TritonError, TimeoutError)):
            await closing
        gate.open()
        await loop.run_in_executor(None, server.close)

    run(main())


@pytest.mark.parametrize("final", ["last", "bare"])
@pytest.mark.parametrize("count", [0, 1, MANY])
def test_a_stream_is_iterated_in_order(run, stream, count, final):
    """Every response once, then the end, again and again."""

    async def main():
        responses = stream.async_stream(
            {"INPUT0": [7]}, parameters={"count": count, "final": final, "thread": True}
        )
        assert await numbers(responses) == list(range(count))
        assert await numbers(responses) == []

    run(main())


def test_many_streams_at_once(run, stream):
    """They share the loop's queue."""

    async def one(value):
        responses = stream.async_stream(
            {"INPUT0": [value]}, parameters={"count": 20, "thread": True}
        )
        return [response["OUTPUT0"].tolist() async for response in responses]

    async def main():
        results = await asyncio.gather(*(one(value) for value in range(30)))
        assert results == [[[value]] * 20 for value in range(30)]
        assert len(queues(stream)) == 1

    run(main())


def test_an_error_is_raised_at_its_place_and_the_rest_follows(run, stream):
    """As in a stream without a loop."""

    async def main():
        responses = stream.async_stream({"INPUT0": [1]}, parameters={"count": 4, "error_at": 1})
        assert (await responses.__anext__())["INDEX"].tolist() == [0]
        with pytest.raises(InternalError):
            await responses.__anext__()
        assert await numbers(responses) == [2, 3]

    run(main())


@pytest.mark.parametrize("way", ["break", "aclose", "with"])
def test_an_abandoned_stream_is_cancelled(run, stream, way):
    """And what was not read of it is not kept."""

    async def main():
        parameters = {"count": MANY, "hold": "response", "hold_at": 2}
        responses = stream.async_stream({"INPUT0": [1]}, parameters=parameters)
        feed = responses._feed
        if way == "break":
            async for response in responses:
                assert response["INDEX"].tolist() == [0]
                break
            del responses
        elif way == "aclose":
            await responses.__anext__()
            await responses.aclose()
            assert await numbers(responses) == []
        else:
            async with responses:
                await responses.__anext__()
            assert await numbers(responses) == []
        assert feed.is_abandoned
        await until(lambda: feed.is_over)
        assert not feed.outcomes

    run(main())


@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize("way", ["cancel", "wait_for"])
def test_a_cancelled_wait_is_not_the_end_of_a_stream(run, stream, gate, way, ignores):
    """It cancels the request; whoever reads on is told so, or gets what the model still sends."""

    async def main():
        parameters = {"count": 4, "hold": "response", "hold_at": 2, "ignore_cancel": ignores}
        responses = stream.async_stream({"INPUT0": [1]}, parameters=parameters)
        assert [int((await anext(responses))["INDEX"][0]) for _ in range(2)] == [0, 1]
        if way == "cancel":
            task = asyncio.ensure_future(anext(responses))
            await until(lambda: responses._feed._waiters)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(responses), 0.02)
        assert responses.is_cancelled()
        gate.open()
        if ignores:
            assert await numbers(responses) == [2, 3]
        else:
            with pytest.raises(CancelledError):
                await numbers(responses)

    run(main())


def test_cancel_and_timeout_end_a_stream(run, stream, gate):
    """With an error after what came before."""

    async def main():
        parameters = {"count": 5, "hold": "response", "hold_at": 1}
        responses = stream.async_stream({"INPUT0": [1]}, parameters=parameters)
        assert (await responses.__anext__())["INDEX"].tolist() == [0]
        assert responses.cancel()
        assert responses.is_cancelled()
        with pytest.raises(CancelledError):
            await responses.__anext__()
        assert await numbers(responses) == []
        responses = stream.async_stream({"INPUT0": [1]}, timeout=0.05, parameters=parameters)
        assert (await responses.__anext__())["INDEX"].tolist() == [0]
        with pytest.raises(TimeoutError):
            await responses.__anext__()

    run(main())


def test_max_pending_bounds_what_is_unread(run, stream):
    """The response too many is an error in its place."""

    async def main():
        responses = stream.async_stream(
            {"INPUT0": [1]}, parameters={"count": 9, "ignore_cancel": True}, max_pending=2
        )
        await until(lambda: responses._feed.is_over)
        assert [int((await responses.__anext__())["INDEX"][0]) for _ in range(2)] == [0, 1]
        with pytest.raises(QueueFullError, match="more than 2 responses waited"):
            await responses.__anext__()
        assert await numbers(responses) == []

    run(main())


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.async_stream({"INPUT0": [1]}),
        lambda model: model.async_map([{"INPUT0": [1]}]),
        lambda model: model.sequence(5).async_stream({"INPUT0": [1]}),
    ],
)
def test_no_loop_no_stream(stream, call):
    """There must be one to wait in."""
    with pytest.raises(RuntimeError) as caught:
        call(stream)
    assert str(caught.value) == (
        "server 'shared': no running event loop, in which the inference would be awaited: call "
        "this in a coroutine, or the method without async_ in its name"
    )


def test_a_loop_that_watches_no_descriptors_is_told_so(echo):
    """As one of Windows, or of a GUI; nothing is left of the attempt."""

    class Blind(asyncio.SelectorEventLoop):
        def add_reader(self, *_):
            raise NotImplementedError

    before = queues(echo)
    loop = Blind()
    try:
        with pytest.raises(UnsupportedError) as caught:
            loop.run_until_complete(echo.async_infer({"INPUT0": [1.0]}))
    finally:
        loop.close()
    assert queues(echo) == before
    words = str(caught.value)
    assert words.startswith("event loop <")
    assert words.partition("> ")[2] == (
        "has no add_reader, by which it would be told of responses: use another one, such as "
        "asyncio.SelectorEventLoop, or the method without async_ in its name in a thread"
    )
