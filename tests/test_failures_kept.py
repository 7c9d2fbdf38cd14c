# SPDX-License-Identifier: Apache-2.0
"""What failed keeps nothing: its arrays are gone with the exception, without a collection.

An exception holds frames by its traceback. What holds the exception, and stands in one of those,
makes a circle, in which the inputs of many failures would wait for the garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from contextlib import suppress

import numpy as np
import pytest

from tritonffi import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Request,
    Server,
    TritonError,
)
from tritonffi._errors import anew, error_from_code

FAILING = {"parameters": {"mode": "error", "error_code": "NOT_FOUND", "error_text": "out of tea"}}
FP32 = {"inputs": {"x": ("FP32", [-1])}, "outputs": {"y": ("FP32", [-1])}}


@pytest.fixture(autouse=True)
def _uncollected():
    """No collection but where a test wants one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def remains(call, make=lambda: np.ones(1000, np.float32)):
    """Whether an array is alive after a call with it that fails."""
    array = make()
    seen = weakref.ref(array)
    failed = ""
    try:
        call(array)
    except TritonError as error:
        failed = str(error)
    assert "out of tea" in failed or "'out' has" in failed
    del array
    return seen() is not None


def infer(model, array):
    """Wait for the response."""
    model.infer({"INPUT0": array}, **FAILING)


def infer_request(model, array):
    """Likewise, of a request."""
    model.infer(Request({"INPUT0": array}, **FAILING))


def ask_twice(model, array):
    """Ask again for a result that was none."""
    inference = model.submit({"INPUT0": array}, **FAILING)
    with suppress(NotFoundError):
        inference.result()
    inference.result()


def in_order(model, array, **keywords):
    """Map, with failures handed out in the places of responses; and one raised.

    Of several, those behind the first would still be in flight, with their inputs.
    """
    items = [{"INPUT0": array}] * 3
    errors = list(model.map(items, return_errors=True, **keywords, **FAILING))
    assert [type(error) for error in errors] == [NotFoundError] * 3
    errors.clear()  # this frame stands in their tracebacks
    next(model.map(items[:1], **keywords, **FAILING))


def as_completed(model, array):
    """Map in the order in which they fail."""
    in_order(model, array, ordered=False)


def prepared(model, array):
    """Prepare a call, and make it."""
    model.prepare({"INPUT0": array}, **FAILING).infer({"INPUT0": array})


def in_a_sequence(model, array):
    """Infer as a part of a sequence."""
    model.sequence(5).infer({"INPUT0": array}, **FAILING)


def streamed(model, array):
    """Read the one response of a stream."""
    next(model.stream({"INPUT0": array}, **FAILING))


def streamed_in_a_loop(model, array):
    """Await it."""

    async def run():
        try:
            await anext(model.async_stream({"INPUT0": array}, **FAILING))
        except NotFoundError as error:
            return str(error)

    message = asyncio.run(run())
    raise NotFoundError(message)


def awaited(model, array):
    """Await the response."""

    async def run():
        try:
            await model.async_infer({"INPUT0": array}, **FAILING)
        except NotFoundError as error:
            return str(error)

    message = asyncio.run(run())
    raise NotFoundError(message)


def mapped_in_a_loop(model, array):
    """Await it as a part of a map."""

    async def run():
        try:
            async for _ in model.async_map([{"INPUT0": array}], **FAILING):
                pass
        except NotFoundError as error:
            return str(error)

    message = asyncio.run(run())
    raise NotFoundError(message)


@pytest.mark.parametrize(
    "call",
    [
        infer,
        infer_request,
        ask_twice,
        in_order,
        as_completed,
        prepared,
        in_a_sequence,
        awaited,
        streamed,
        streamed_in_a_loop,
        mapped_in_a_loop,
    ],
)
def test_a_failed_inference_keeps_no_inputs(echo, call):
    """However it was asked for."""
    assert not remains(lambda array: call(echo, array))


@pytest.mark.parametrize("shape", [3, 1000, 2000])
def test_a_failed_inference_keeps_no_memory_for_outputs(echo, shape):
    """Where the model fails, and where what it gives is too long or too short."""
    keywords = FAILING if shape == 1000 else {}
    value = np.ones(1000, np.float32)
    assert not remains(
        lambda out: echo.infer({"INPUT0": value}, out={"OUTPUT0": out}, **keywords),
        lambda: np.empty(shape, np.float32),
    )


def test_a_failed_function_keeps_no_inputs():
    """Also of the exceptions that it has raised itself."""

    def fail(x):
        raise ValueError("out of tea")

    with Server() as server:
        model = server.load_function("fail", fail, **FP32)
        assert not remains(lambda array: model.infer({"x": array}))


def test_each_call_raises_an_exception_of_its_own(echo):
    """With all that belongs to it, and without what was added to another one."""
    inference = echo.submit({"INPUT0": [1.0]}, **FAILING)
    errors = []
    for _ in range(2):
        with pytest.raises(NotFoundError, match=r"^model 'echo': out of tea$") as caught:
            inference.result()
        errors.append(caught.value)
        if hasattr(caught.value, "add_note"):
            caught.value.add_note("once")
            assert caught.value.__notes__ == ["once"]
    first, second = errors
    assert first is not second
    assert first.args == second.args
    assert first.code == second.code == NotFoundError.code
    [kept] = inference._outcomes
    assert kept.__traceback__ is kept.__context__ is None
    assert not hasattr(kept, "__notes__")
    del caught, errors, first, second


def test_what_is_read_wrongly_is_kept_without_its_frames(echo):
    """They hold the caller's memory."""
    out = np.empty(3, np.float32)
    inference = echo.submit({"INPUT0": [1.0]}, out={"OUTPUT0": out})
    assert inference.wait()
    [kept] = inference._outcomes
    assert type(kept) is InvalidArgumentError
    assert kept.__traceback__ is kept.__context__ is None


def test_an_exception_made_anew_is_the_same_in_all():
    """Class, arguments, code, cause, notes, and whether its context is shown."""
    cause = ValueError("why")
    error = error_from_code(99, "words")
    error.__cause__ = cause
    error.__notes__ = ["a note"]
    made = anew(error)
    assert (type(made), made.args, made.code) == (type(error), ("words",), 99)
    assert made.__cause__ is cause
    assert made.__suppress_context__
    assert made.__notes__ == ["a note"]
    assert made.__notes__ is not error.__notes__
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.args, again.code) == (type(error), ("words",), 99)
    plain = anew(InternalError("more"))
    assert plain.__cause__ is None
    assert not plain.__suppress_context__
    assert not hasattr(plain, "__notes__")
