# SPDX-License-Identifier: Apache-2.0
"""Streams: responses of decoupled models one by one, in order, to the end or not."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import numpy as np
import pytest
from conftest import counters

import tritonffi
from tritonffi import (
    CancelledError,
    ClosedError,
    InternalError,
    InvalidArgumentError,
    QueueFullError,
    Server,
)

MANY = 200


@pytest.fixture
def model(server):
    """The decoupled model: COUNT responses, each the input and its own INDEX."""
    return server.model("stream")


def ask(count, value=7, **parameters):
    """A request for so many responses."""
    return tritonffi.Request({"INPUT0": [value], "COUNT": [count]}, parameters=parameters)


def numbers(stream):
    """The INDEX of every response that is left."""
    return [int(response["INDEX"][0]) for response in stream]


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("order", ["final_first", "release_first", "release_early"])
@pytest.mark.parametrize("final", ["last", "bare"])
@pytest.mark.parametrize("count", [1, 2, 8, MANY])
def test_all_responses_come_in_order(model, count, final, order, thread):
    """With the final flag on the last or alone, and the request released before or after."""
    if order == "release_early" and count > 8:
        pytest.skip("the test backend keeps no more than 8 responses")
    stream = model.stream(ask(count, final=final, order=order, thread=thread))
    assert numbers(stream) == list(range(count))
    assert numbers(stream) == []


def test_a_response_is_whole(model):
    """Outputs, name, version, id and parameters are there as with `infer`."""
    with model.stream({"INPUT0": [1, 2, 3]}, request_id="mine", parameters={"count": 2}) as stream:
        assert (stream.model_name, stream.request_id) == ("stream", "mine")
        for i, response in enumerate(stream):
            assert response["OUTPUT0"].tolist() == [1, 2, 3]
            assert response["INDEX"].tolist() == [i]
            assert response.model_name == "stream"
            assert response.model_version == 1
            assert response.request_id == "mine"
            assert response.parameters == {"count": 2}


@pytest.mark.parametrize("order", ["final_first", "release_first"])
def test_no_response_is_an_empty_stream(model, order):
    """A final flag alone is no response."""
    assert list(model.stream(ask(0, order=order))) == []


def test_a_model_with_one_response_streams_it(echo):
    """A stream of a model that is not decoupled has one response."""
    assert [r["OUTPUT0"].tolist() for r in echo.stream({"INPUT0": [1.5]})] == [[1.5]]


@pytest.mark.parametrize("where", [0, 2, 4])
def test_an_error_is_raised_at_its_place_and_the_rest_follows(model, where):
    """The responses before and behind it are all read."""
    stream = model.stream(ask(5, error_at=where, error_text="no luck", error_code="INTERNAL"))
    assert [int(next(stream)["INDEX"][0]) for _ in range(where)] == list(range(where))
    with pytest.raises(InternalError, match=r"^model 'stream': no luck$"):
        next(stream)
    assert numbers(stream) == list(range(where + 1, 5))
    with pytest.raises(StopIteration):
        next(stream)


def test_responses_come_while_the_model_still_works(model, gate):
    """The first ones are read while the model stands before the third."""
    stream = model.stream(ask(4, hold="response", hold_at=2))
    gate.wait()
    assert [int(next(stream)["INDEX"][0]) for _ in range(2)] == [0, 1]
    gate.release()
    assert numbers(stream) == [2, 3]


def test_other_calls_take_nothing_from_a_stream(model, echo, gate):
    """A reader that sleeps gets its responses although other threads take completions."""
    stream = model.stream(ask(3, hold="response", hold_at=2, thread=True))
    gate.wait()
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(numbers(stream)))
    reader.start()
    for i in range(50):
        echo.infer({"INPUT0": [i]})
    gate.release()
    reader.join()
    assert seen == [0, 1, 2]


def test_two_readers_share_a_stream(model):
    """Each response goes to one of them, and both come to the end."""
    stream = model.stream(ask(MANY, thread=True))
    seen = [[], []]
    readers = [threading.Thread(target=lambda s=s: s.extend(numbers(stream))) for s in seen]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sorted(seen[0] + seen[1]) == list(range(MANY))
    assert all(part == sorted(part) for part in seen)


@pytest.mark.parametrize("way", ["drop", "close", "with", "break"])
def test_an_abandoned_stream_is_cancelled(model, echo, gate, way):
    """Half read and given up, it stops the model and leaves nothing behind."""
    stream = model.stream(ask(MANY, hold="response", hold_at=3))
    gate.wait()
    inflight = stream._feed
    if way == "drop":
        next(stream)
        del stream
    elif way == "close":
        next(stream)
        stream.close()
        assert list(stream) == []
    elif way == "with":
        with stream:
            next(stream)
        assert list(stream) == []
    else:
        for response in stream:
            assert response["INDEX"].tolist() == [0]
            break
        del stream
    assert inflight.is_cancelled()
    assert not inflight.outcomes
    while not inflight.is_over:
        inflight.queue.wait(inflight, None)
    del inflight
    echo.infer({"INPUT0": [1.0]})  # whatever the server is asked next clears it away
    assert len(model._lifecycle.queues) == 0


def test_a_stream_that_nobody_has_read_is_cancelled_when_dropped(model, gate):
    """Unlike a generator that never started."""
    stream = model.stream(ask(MANY, hold="start"))
    gate.wait()
    feed = stream._feed
    del stream
    assert feed.is_cancelled()


def test_a_stream_in_a_cycle_is_cancelled_by_the_collector(model, gate):
    """However it is dropped."""
    stream = model.stream(ask(MANY, hold="start"))
    gate.wait()
    feed = stream._feed
    cycle = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()
    assert feed.is_cancelled()


def test_responses_of_an_abandoned_stream_are_not_kept(model, gate):
    """A model that does not stop fills no memory."""
    before = counters()["buffers"]
    stream = model.stream(ask(MANY, hold="response", hold_at=1, ignore_cancel=True))
    gate.wait()
    feed = stream._feed
    stream.close()
    gate.release()
    while not feed.is_over:
        feed.queue.wait(feed, None)
    assert not feed.outcomes
    assert counters()["buffers"] == before


@pytest.mark.parametrize("order", ["final_first", "release_first", "release_early"])
@pytest.mark.parametrize("quiet", [False, True])
def test_cancel_ends_a_stream_with_an_error(model, gate, order, quiet):
    """What the model sent before is read, then comes CancelledError, then the end.

    Also where the model has given the request back, or ends with no word of the cancel.
    """
    stream = model.stream(ask(8, hold="response", hold_at=2, order=order, quiet=quiet))
    gate.wait()
    assert not stream.is_cancelled()
    assert stream.cancel()
    assert stream.is_cancelled()
    assert [int(next(stream)["INDEX"][0]) for _ in range(2)] == [0, 1]
    with pytest.raises(CancelledError, match="model 'stream'"):
        next(stream)
    assert list(stream) == []
    assert not stream.cancel()


@pytest.mark.parametrize("read_first", [False, True])
def test_an_error_of_the_model_s_own_is_the_last_one(model, gate, read_first):
    """Nothing is added to it, where the end comes after a cancel."""

    def read():
        assert next(stream)["INDEX"].tolist() == [0]
        with pytest.raises(InternalError, match="an error as asked for"):
            next(stream)

    stream = model.stream(ask(3, error_at=1, hold="response", hold_at=2, quiet=True))
    gate.wait()
    if read_first:
        read()
    assert stream.cancel()
    if not read_first:
        read()
    assert list(stream) == []


def test_a_stream_that_is_complete_stays_so(model, gate):
    """Where the cancel comes between the final flag and the release of the request."""
    stream = model.stream(ask(2, hold="between", final="bare"))
    gate.wait()
    assert stream.cancel()
    gate.open()
    assert numbers(stream) == [0, 1]


@pytest.mark.parametrize("order", ["final_first", "release_early"])
def test_cancel_ends_an_async_stream_with_an_error(model, gate, order):
    """The same, where the model says nothing of it."""

    async def read():
        stream = model.async_stream(ask(8, hold="response", hold_at=2, order=order, quiet=True))
        came = [int((await anext(stream))["INDEX"][0]) for _ in range(2)]
        gate.wait()
        assert stream.cancel()
        with pytest.raises(CancelledError, match="model 'stream': the request was cancelled"):
            await anext(stream)
        return came, [response async for response in stream]

    assert asyncio.run(read()) == ([0, 1], [])


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_cancelled_inference_is_not_complete_because_the_model_says_nothing(model, gate, sent):
    """Whatever it has sent until then."""
    inference = model.submit(ask(8, hold="response", hold_at=sent, quiet=True))
    gate.wait()
    assert inference.cancel()
    with pytest.raises(CancelledError, match="model 'stream': the request was cancelled"):
        inference.result()


@pytest.mark.usefixtures("gate")
def test_too_many_responses_cancel_a_request_that_was_given_back(model):
    """The model stops at the next look, and does not come to the gate."""
    stream = model.stream(
        ask(8, hold="response", hold_at=4, order="release_early", quiet=True), max_pending=2
    )
    deadline = time.monotonic() + 30
    while not stream._feed.is_over:
        assert stream._feed.queue.wait(stream._feed, deadline)
    assert [int(next(stream)["INDEX"][0]) for _ in range(2)] == [0, 1]
    with pytest.raises(QueueFullError, match="more than 2 responses waited"):
        next(stream)
    assert list(stream) == []


def test_timeout_ends_a_stream(model, gate):
    """It is for the whole stream; what came in time is read."""
    stream = model.stream(
        {"INPUT0": [1]}, timeout=0.05, parameters={"count": 3, "hold": "response", "hold_at": 1}
    )
    gate.wait()
    assert next(stream)["INDEX"].tolist() == [0]
    with pytest.raises(TimeoutError, match=r"'stream': no result within 0.05 s; the req"):
        next(stream)
    assert stream.is_cancelled()
    stream.close()


def test_max_pending_bounds_what_is_unread(model, gate):
    """As many as that wait; the next is an error in its place and cancels, the rest is dropped."""
    stream = model.stream(ask(MANY, ignore_cancel=True, final="bare"), max_pending=3)
    feed = stream._feed
    feed.wait()
    assert len(feed.outcomes) == 4
    assert [int(next(stream)["INDEX"][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(QueueFullError, match=r"'stream': more than 3 responses waited to be read"):
        next(stream)
    assert list(stream) == []


def test_the_final_response_may_be_the_one_too_many(model):
    """It is then the error."""
    stream = model.stream(ask(3), max_pending=2)
    stream._feed.wait()
    assert [int(next(stream)["INDEX"][0]) for _ in range(2)] == [0, 1]
    with pytest.raises(QueueFullError):
        next(stream)
    assert list(stream) == []


def test_a_reader_that_keeps_up_meets_no_bound(model, gate):
    """Reading makes room, exactly one for each response."""
    stream = model.stream(
        ask(3, hold="response", hold_at=2, thread=True, final="bare"), max_pending=2
    )
    gate.wait()
    assert next(stream)["INDEX"].tolist() == [0]
    gate.release()
    stream._feed.wait()
    assert numbers(stream) == [1, 2]


def test_max_pending_as_many_as_come(model):
    """The bound itself is allowed."""
    stream = model.stream(ask(3), max_pending=3)
    stream._feed.wait()
    assert numbers(stream) == [0, 1, 2]


@pytest.mark.parametrize(("value", "kind"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_max_pending_is_checked(model, value, kind):
    """Before anything is submitted."""
    with pytest.raises(kind, match="max_pending must be"):
        model.stream(ask(1), max_pending=value)


def test_a_refused_request_leaves_no_stream(model):
    """Wrong inputs are raised by the call and not by the iteration."""
    before = counters()
    with pytest.raises(InvalidArgumentError, match=r"model 'stream'.*'nope'"):
        model.stream({"nope": [1]})
    assert counters() == before


@pytest.mark.parametrize(("count", "said"), [(0, "sent 0 responses"), (3, "sent 3 responses")])
def test_infer_on_a_decoupled_model_wants_one_response(model, count, said):
    """It gives the only one, and says what to use where there are none or several."""
    assert model.infer(ask(1))["INDEX"].tolist() == [0]
    with pytest.raises(InvalidArgumentError, match=rf"{said} where one was expected: stream\(\)"):
        model.infer(ask(count))


def test_the_bound_of_a_stream_is_its_own(model):
    """The structs that it was submitted with serve a map next, whose requests have none."""
    one, three = (
        {name: np.array(value, np.int32) for name, value in ask(count).inputs.items()}
        for count in (1, 3)
    )
    assert numbers(model.stream(one, max_pending=1)) == [0]
    for error in model.map([three] * 2, return_errors=True):
        assert "sent 3 responses where one was expected" in str(error)


def test_infer_gives_a_response_before_a_bare_final_flag(model, echo):
    """Also where other threads take completions at the same time."""
    stop = threading.Event()

    def disturb():
        while not stop.is_set():
            echo.infer({"INPUT0": [1.0]})

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for value in range(200):
            response = model.infer(ask(1, value, final="bare", thread=True))
            assert response["OUTPUT0"].tolist() == [value]
    finally:
        stop.set()
        thread.join()


def test_completions_delivered_in_the_wrong_order_count_in_the_right_one(model, monkeypatch):
    """Two threads may take completions of one inference, and the later one be faster."""
    held = []
    deliver = tritonffi.Inference._arrive

    def late(self, number, outcome, done):
        held.append((number, outcome, done))

    monkeypatch.setattr(tritonffi.Inference, "_arrive", late)
    inference = model.submit(ask(1, final="bare"))
    while len(held) < 2:
        inference.queue.wait_any(None, inference.queue.wakes[0])
    assert [entry[0] for entry in held] == [0, 1]
    for entry in reversed(held):
        assert not inference.is_over
        deliver(inference, *entry)
    assert inference.result()["INDEX"].tolist() == [0]
    assert inference.queue.early == {}


def test_closing_the_server_ends_its_streams(repository, backend_directory, gate):
    """A reader is told, whether the model stops or not."""
    with Server(repository, backend_directory=backend_directory, startup_models=["stream"]) as own:
        model = own.model("stream")
        stops = model.stream(ask(MANY, hold="start", thread=True))
        never_read = model.stream(ask(MANY, hold="start", thread=True))
        gate.wait(2)
        outcomes = []

        def read():
            try:
                outcomes.extend(stops)
            except (CancelledError, ClosedError) as error:
                outcomes.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        own.close()
        reader.join()
    assert [type(outcome) for outcome in outcomes] == [CancelledError]
    with pytest.raises(CancelledError):
        next(never_read)
    with pytest.raises(ClosedError):
        model.stream(ask(1))


def test_outputs_outlive_the_stream(model):
    """Arrays own their memory."""
    arrays = [response["OUTPUT0"] for response in model.stream(ask(5, value=9))]
    gc.collect()
    assert np.concatenate(arrays).tolist() == [9] * 5
