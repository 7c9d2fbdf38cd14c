# SPDX-License-Identifier: Apache-2.0
"""What the docs promise, where it is near its end: after the end, after a close, of odd values."""

from __future__ import annotations

import asyncio
import threading

import _backend
import numpy as np
import pytest

import tritonffi
from tritonffi import (
    AlreadyExistsError,
    CancelledError,
    Chunks,
    ClosedError,
    InvalidArgumentError,
    Request,
    Server,
    capi,
)

ONE = {"INPUT0": [1.0]}
HELD = {"parameters": {"hold": "start", "ignore_cancel": True}}
SPEC = ("FP32", [-1])


def test_done_says_that_the_time_is_up(echo, gate):
    """`result` would raise at once."""
    inference = echo.submit(ONE, timeout=0.01, **HELD)
    gate.wait()
    with pytest.raises(TimeoutError, match=r"no result within 0\.01 s"):
        inference.result()
    assert inference.done()
    assert not inference.is_over
    gate.open()
    echo.infer(ONE)  # takes what comes of it


def test_done_says_that_nobody_waits_any_more(repository, backend_directory, gate):
    """After a close in vain, too."""
    server = Server(repository, backend_directory=backend_directory)
    inference = server.model("echo").submit(ONE, **HELD)
    gate.wait()
    with pytest.raises(TimeoutError, match=r"did not stop within 0\.3 s"):
        server.close(timeout=0.3)
    assert inference.done()
    with pytest.raises(ClosedError):
        inference.result()
    gate.open()
    server.close()


def test_is_cancelled_is_remembered(echo, gate):
    """Also when it is over; and nothing else is remembered so."""
    inference = echo.submit(ONE, parameters={"hold": "start"})
    gate.wait()
    assert not inference.is_cancelled()
    assert inference.cancel()
    with pytest.raises(CancelledError):
        inference.result()
    assert inference.is_cancelled()
    other = echo.submit(ONE)
    other.result()
    assert not other.cancel()
    assert not other.is_cancelled()


def test_an_error_that_is_raised_again_does_not_grow(echo):
    """It is one object, and would keep the frames of each call."""
    inference = echo.submit(ONE, parameters={"mode": "error"})
    depths = set()
    for _ in range(3):
        with pytest.raises(tritonffi.TritonError) as caught:
            inference.result()
        depths.add(len(caught.traceback))
    assert len(depths) == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_map_that_its_source_closes_ends(echo, ordered):
    """What was not submitted is not submitted any more."""

    def source():
        yield ONE
        responses.close()
        yield ONE

    responses = echo.map(source(), ordered=ordered, in_flight=4)
    assert list(responses) == []
    assert list(responses) == []
    assert echo.infer(ONE)["OUTPUT0"].tolist() == [1.0]


def test_what_was_begun_in_a_closed_loop_says_so(server):
    """Only that loop would take what comes; in another one nobody would be woken."""
    may_go = threading.Event()
    model = server.load_function(
        "held", lambda x: x if may_go.wait(30) else None, inputs={"x": SPEC}, outputs={"y": SPEC}
    )
    inputs = {"x": [1.0]}

    async def begin_map():
        return model.async_map([inputs] * 3)

    async def begin_stream():
        return model.async_stream(inputs)

    async def read(responses):
        await anext(responses)

    for begin in (begin_map, begin_stream):
        responses = asyncio.run(begin())
        with pytest.raises(ClosedError, match="the event loop in which this was begun is closed"):
            asyncio.run(read(responses))
        del responses
    may_go.set()
    model.infer(inputs)
    server.unload("held")


def test_a_close_names_the_busy_model_of_a_repository_that_was_taken_away(
    tmp_path, backend_directory, gate
):
    """Triton's index shows it again for that; the close may be called again all the same."""
    _backend.write_model(tmp_path, "gone", {"INPUT0": SPEC})
    server = Server(backend_directory=backend_directory)
    server.register_repository(tmp_path)
    inference = server.load("gone").submit(ONE, **HELD)
    server.unregister_repository(tmp_path)
    gate.wait()
    busy = r"model 'gone' \(version 1\) is UNLOADING \(inferences in flight: 1\)"
    with pytest.raises(TimeoutError, match=busy):
        server.close(timeout=0.3)
    gate.open()
    server.close()
    assert inference.done()


def test_a_name_is_not_mapped_onto_another_model(tmp_path, backend_directory):
    """Triton takes it, and then loads the one in place of the other."""
    for place, name in (("one", "a"), ("two", "b")):
        _backend.write_model(tmp_path / place, name, {"INPUT0": SPEC})
    with Server(backend_directory=backend_directory) as server:
        server.register_repository(tmp_path / "one")
        server.load_function("c", lambda x: x, inputs={"x": SPEC}, outputs={"y": SPEC})
        for name in ("a", "c"):
            with pytest.raises(AlreadyExistsError, match=f"the name '{name}' is another model's"):
                server.register_repository(tmp_path / "two", {"b": name})
        server.register_repository(tmp_path / "two", {"b": "d"})
        assert server.load("d").infer(ONE)["OUTPUT0"].tolist() == [1.0]


def test_a_backend_directory_takes_no_folder_that_is_there(tmp_path):
    """It would be filled, and closed to others."""
    (tmp_path / "file").touch()
    mode = tmp_path.stat().st_mode
    with pytest.raises(InvalidArgumentError, match="it exists already"):
        capi.backend_directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert tmp_path.stat().st_mode == mode


def test_a_prepared_call_takes_subclasses_of_arrays(echo, tmp_path):
    """A file that is mapped is one, and what `prepare` has taken the call takes as well."""
    np.save(tmp_path / "a.npy", np.array([1, 2], np.float32))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert type(mapped) is np.memmap
    call = echo.prepare({"INPUT0": mapped})
    assert call.infer({"INPUT0": mapped})["OUTPUT0"].tolist() == [1, 2]
    masked = np.ma.array([1, 2], np.float32, mask=[True, False])
    with pytest.raises(InvalidArgumentError, match="masked"):
        call.infer({"INPUT0": masked})


WRONG = {
    "timeout": (lambda model: model.infer(ONE, timeout=10**400), ValueError),
    "outputs": (lambda model: model.infer(ONE, outputs=[["OUTPUT0"]]), TypeError),
    "in_flight": (lambda model: model.map([ONE], in_flight=2**64), ValueError),
    "host_policies": (lambda _: Chunks([[1.0]], host_policies=[1]), TypeError),
    "chrome_trace": (lambda _: tritonffi.chrome_trace([1]), TypeError),
    "parse_metrics": (lambda _: tritonffi.parse_metrics(None), TypeError),
    "ModelStatistics": (lambda model: model.statistics() - 5, TypeError),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_called_by_its_name(echo, what):
    """Whatever it would have come to further inside."""
    call, kind = WRONG[what]
    with pytest.raises(kind, match=what):
        call(echo)


def test_versions_and_names_of_repositories_are_checked(server, tmp_path):
    """Before they get into C."""
    with pytest.raises(InvalidArgumentError, match="version must be between 0 and"):
        server.model("echo", 2**63)
    with pytest.raises(TypeError, match="name_mapping must be a mapping, not list"):
        server.register_repository(tmp_path, ["a"])


def test_long_times_are_as_long_as_there_are(echo):
    """In seconds, however many; Triton's own take no more than 64 bits."""
    assert echo.infer(ONE, queue_timeout=float("inf"))["OUTPUT0"].tolist() == [1.0]
    assert echo.infer(ONE, timeout=float("inf"))["OUTPUT0"].tolist() == [1.0]
    with Server(metrics_interval=1e30) as server:
        assert server.is_ready()


def test_responses_and_requests_are_equal_to_themselves(echo):
    """Arrays are not equal or not, but in their elements: so what holds them is not compared."""
    first, second = echo.infer(ONE), echo.infer(ONE)
    assert first == first  # noqa: PLR0124 (this is the question)
    assert first != second
    assert len({first, second}) == 2
    inputs = {"INPUT0": np.ones(2, np.float32)}
    assert Request(inputs) != Request(inputs)
