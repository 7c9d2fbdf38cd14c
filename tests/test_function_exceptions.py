# SPDX-License-Identifier: Apache-2.0
"""What a function model does with exceptions of odd kinds, and what it leaves alone in them."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref

import numpy as np
import pytest
from _functions import identity, row
from test_function_failures import WARM_UP, raising

from tritonffi import InternalError, TritonError, UnknownError
from tritonffi._function_errors import error_code, error_text, forget_arrays

TWO = {"instance_group": [{"count": 2}]}


def raise_from_itself(x):
    """Raise a cause that is its own."""
    try:
        raise ValueError("boom")  # noqa: TRY301 -- it must be caught here
    except ValueError as error:
        raise error from error


def raise_in_a_circle(x):
    """Raise causes and contexts that go around."""
    first, second = ValueError("one"), KeyError("two")
    first.__cause__, second.__context__ = second, first
    raise first


class OddError(Exception):
    """Is neither true nor false."""

    def __bool__(self):
        """Fail."""
        raise RuntimeError("no bool")


def raise_from_odd(x):
    """Raise what comes of something odd."""
    raise ValueError("boom") from OddError()


class ExitingError(Exception):
    """Leaves the interpreter where its text is asked for."""

    def __str__(self):
        """Leave."""
        raise SystemExit(1)


class NoCodeError(TritonError):
    """Has no code."""

    code = None


class FailingCodeError(TritonError):
    """Has a code that cannot be asked for."""

    @property
    def code(self):
        """Fail."""
        raise KeyError("code")


class HugeCodeError(TritonError):
    """Has a code that is none of C's."""

    code = 2**40


class OtherCodeError(TritonError):
    """Has a code of a newer library."""

    code = 99


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (raise_from_itself, InternalError, "ValueError: boom"),
        (raise_in_a_circle, InternalError, "ValueError: one"),
        (raise_from_odd, InternalError, "ValueError: boom"),
        (raising(ExitingError()), InternalError, "ExitingError"),
        (raising(NoCodeError("no")), InternalError, "NoCodeError: no"),
        (raising(FailingCodeError("no")), InternalError, "FailingCodeError: no"),
        (raising(HugeCodeError("no")), InternalError, "HugeCodeError: no"),
        (raising(OtherCodeError("no")), UnknownError, "OtherCodeError: no"),
    ],
)
def test_an_odd_exception_is_the_error_of_its_request(load, function, error, text):
    """And the next one is served."""
    model = load(lambda x: function(x) if x[0] else x)
    for _ in range(2):
        with pytest.raises(error) as caught:
            model.infer({"x": [1.0]}, timeout=30)
        assert str(caught.value).endswith(f"model 'function': {text}")
        assert model.infer({"x": [0.0]})["y"].item() == 0


@pytest.mark.parametrize("function", [raise_from_itself, raise_in_a_circle, raise_from_odd])
def test_an_odd_exception_of_a_warm_up_ends_the_load(load, function):
    """It is raised there, and the name is free."""
    with pytest.raises(ValueError, match=r"boom|one"):
        load(function, max_batch_size=4, config=WARM_UP, timeout=30)
    assert load(identity, max_batch_size=4).infer({"x": row(1)})["y"].item() == 1


def test_what_a_log_raises_is_not_in_the_way_of_the_answer(load):
    """The request has its error all the same."""

    class Broken(logging.Handler):
        def emit(self, record):
            raise SystemExit(record.levelno)

    logger = logging.getLogger("tritonffi.functions")
    handler = Broken()
    model = load(raising(ValueError("boom")))
    logger.addHandler(handler)
    try:
        for _ in range(2):
            with pytest.raises(InternalError, match="ValueError: boom"):
                model.infer({"x": [1.0]})
    finally:
        logger.removeHandler(handler)


def test_the_code_and_the_text_of_an_exception_are_taken_with_care():
    """Nothing of it is taken on trust."""
    assert error_code(ValueError()) == InternalError.code
    assert error_code(UnknownError()) == UnknownError.code
    assert error_text(ExitingError(), "m") == "ExitingError"
    assert error_text(ValueError("model 'm': boom"), "m") == "ValueError: boom"


def test_a_generator_that_goes_on_is_not_closed(load):
    """An object's own, in which the exception was raised, and handled."""

    class Model:
        def __init__(self):
            self.generator = self.run()

        def run(self):
            for i in range(10):
                try:
                    if i == 1:
                        raise ValueError("second")  # noqa: TRY301
                    yield [float(i)]
                except ValueError as error:  # noqa: PERF203
                    yield error

        def execute(self, x):
            result = next(self.generator)
            if isinstance(result, Exception):
                raise result
            return result

    model = load(Model)
    assert model.infer({"x": [0.0]})["y"].item() == 0
    with pytest.raises(InternalError, match="ValueError: second"):
        model.infer({"x": [0.0]})
    assert [model.infer({"x": [0.0]})["y"].item() for _ in range(2)] == [2, 3]


def test_a_call_that_fails_closes_no_coroutine_of_another_call(load, caplog):
    """Both await one future that fails; one of them deals with it, and goes on."""
    seen = {}
    waiting = threading.Event()
    failed = threading.Event()

    async def function(x):
        if not x[0]:
            seen["shared"] = asyncio.get_running_loop().create_future()
            seen["may_ask"], seen["handled"] = asyncio.Event(), asyncio.Event()
            waiting.set()
            await seen["may_ask"].wait()
            try:
                await seen["shared"]
            except ConnectionError:
                seen["handled"].set()
                await asyncio.to_thread(failed.wait, 30)
            return [42.0]
        seen["shared"].set_exception(ConnectionError("down"))
        try:
            await seen["shared"]
        except ConnectionError:
            seen["may_ask"].set()
            await seen["handled"].wait()
            raise

    model = load(function, config=TWO)
    handling = model.submit({"x": [0.0]})
    assert waiting.wait(30)
    with pytest.raises(InternalError, match="ConnectionError: down"):
        model.infer({"x": [1.0]})  # the answer comes when its frames were cleared
    failed.set()
    assert handling.result()["y"].item() == 42
    seen.clear()
    caplog.clear()  # what it keeps has the frame that went on


def failing(x):
    """Fail in a generator function that has an array."""
    yield x
    raise ValueError("boom")


async def failing_later(x):
    """Fail in a coroutine function that has an array."""
    held = x
    await asyncio.sleep(0)
    raise ValueError(len(held))


async def failing_deeper(x):
    """Fail in one that it awaits."""
    await failing_later(x)


@pytest.mark.parametrize("function", [failing, failing_later, failing_deeper])
def test_generators_and_coroutines_that_have_failed_keep_no_array(function):
    """Those that have come to their end are cleared like functions."""
    x = np.ones(1000)
    reference = weakref.ref(x)
    made = function(x)
    kept = None
    try:
        list(made) if function is failing else asyncio.run(made)
    except ValueError as error:
        kept = error
    del x, made
    assert reference() is not None
    forget_arrays(kept)
    gc.collect()
    assert reference() is None
    assert kept.__traceback__ is not None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups are of 3.11")
def test_the_exceptions_of_a_group_keep_no_array():
    """Nor do their causes."""

    def fail(x):
        raise ValueError("boom")

    def fail_again(x):
        try:
            fail(x)
        except ValueError as error:
            raise KeyError("key") from error

    x = np.ones(1000)
    reference = weakref.ref(x)
    kept = None
    try:
        fail_again(x)
    except KeyError as error:
        kept = ExceptionGroup("outer", [ExceptionGroup("inner", [error])])  # noqa: F821
    del x
    assert reference() is not None
    forget_arrays(kept)
    assert reference() is None
