# SPDX-License-Identifier: Apache-2.0
"""What other threads throw into the worker of a function model, at any step of its.

Python does that, for `PyThreadState_SetAsyncExc`, where a function begins, or a call or a turn of a
loop has ended. Here it comes at chosen ones of these steps.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import opcode
import sys
import threading
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from _functions import workers

import tritonffi
from tritonffi import InternalError
from tritonffi._function_errors import persist

PACKAGE = str(Path(tritonffi.__file__).parent)
BREAKS = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
INPUTS = {name: np.full(2000, i, np.float32) for i, name in enumerate("abc")}


class LateError(BaseException):
    """What is thrown."""


class Thrower:
    """Throws into its own thread at a later step."""

    def __init__(self):
        """Throw nothing yet."""
        self.left = 0
        self._before = {}  # the instruction before, by the frame's id: it shall not live longer

    def arm(self, number):
        """Throw at the step of this number from now on, in the package's code."""
        self.left = number
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                frame.f_trace, frame.f_trace_opcodes = self._trace, True
            frame = frame.f_back
        sys.settrace(self._trace)

    def disarm(self):
        """Throw nothing any more."""
        sys.settrace(None)
        self.left = 0
        self._before.clear()

    def _trace(self, frame, event, _):
        if self.left <= 0:
            self.disarm()
        if not frame.f_code.co_filename.startswith(PACKAGE) or self.left <= 0:
            return None
        frame.f_trace_opcodes = True
        is_step = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if event == "call":
            self._before.pop(id(frame), None)
        if event == "opcode":
            is_step = self._before.get(id(frame), "").startswith(BREAKS)
            self._before[id(frame)] = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
        if is_step:
            self.left -= 1
            if self.left == 0:
                self.disarm()
                raise LateError
        return self._trace


@pytest.mark.parametrize("wants_context", [False, True])
def test_what_is_thrown_into_a_worker_ends_no_more_than_two_calls(load, caplog, wants_context):
    """Nothing is freed twice, or lost, or wrong; and the worker goes on.

    What comes between two calls ends the second one too.
    """
    thrower = Thrower()
    contexts = []
    number = 0

    def function(a, b, c):
        if a[0]:
            thrower.arm(number)
        return {"y": b}

    def with_context(a, b, c, context):
        contexts.append(context)
        return function(a, b, c)

    given = with_context if wants_context else function
    model = load(given, inputs=dict.fromkeys("abc", ("FP32", [-1])))
    (worker,) = workers()

    def fails(first):
        try:
            response = model.infer({**INPUTS, "a": [first]}, timeout=30)
        except InternalError:
            return True
        assert response["y"].tolist() == INPUTS["b"].tolist()
        return False

    for number in count(1):  # noqa: B007 -- it is the callable's
        failed = [fails(1.0), fails(0.0)]
        was_thrown = thrower.left == 0
        thrower.left = 0
        failed += [fails(0.0), fails(0.0)]
        assert failed[3:] == [False]
        assert [c for c in contexts if c.is_cancelled()] == []
        contexts.clear()
        caplog.clear()
        if not was_thrown:
            break
    assert number > 50
    assert workers() == [worker]


@pytest.mark.parametrize("is_generator", [False, True])
def test_a_worker_that_is_thrown_out_of_its_waiting_cancels_what_it_waits_for(load, is_generator):
    """The coroutine, which runs in another thread, ends with the call."""
    entered = threading.Event()
    ended = threading.Event()

    async def function(x):
        if x[0]:
            entered.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()
        return x

    async def generate(x):
        yield await function(x)

    model = load(generate if is_generator else function)
    (worker,) = workers()
    pending = model.submit({"x": [1.0]})
    assert entered.wait(30)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(worker.ident), ctypes.py_object(LateError)
    )
    with pytest.raises(InternalError, match="LateError"):
        pending.result(timeout=30)
    assert ended.wait(30)
    assert model.infer({"x": [0.0]}, timeout=30)["y"].item() == 0
    assert workers() == [worker]


def test_a_thread_s_work_goes_on_whatever_is_thrown():
    """Also where what was raised before has just been caught."""
    steps = []
    # A thread of its own, which ends: what a trace function raises leaves Python in the belief
    # that the last exception is still being handled.
    thread = threading.Thread(target=lambda: steps.extend(thrown_at_each_step()))
    thread.start()
    thread.join()
    assert len(steps) > 3
    assert steps == [[3, 2, 1, 0]] * len(steps)


def thrown_at_each_step():
    """Throw at one step after the other; give what the work came to each time."""
    thrower = Thrower()
    for number in count(1):
        left = [ValueError, SystemExit, LateError]
        done = []

        def work(left=left, done=done, number=number):
            if not done:
                thrower.arm(number)
            done.append(len(left))
            if left:
                raise left.pop()
            return True

        persist(work)
        was_thrown = thrower.left == 0
        thrower.disarm()
        yield done[:4]
        if not was_thrown:
            break
