# SPDX-License-Identifier: Apache-2.0
"""Calls of a handler in the midst of a call, at a chosen step.

A trace function counts the steps of the package at which Python looks for signals, and calls the
handler at one of them, as a signal at that moment would.
"""

from __future__ import annotations

import inspect
import opcode
import sys
from pathlib import Path

import tritonffi
from tritonffi import TritonError

PACKAGE = str(Path(tritonffi.__file__).parent)


def interrupted(number, handler, call):
    """Call, and in the midst of it, at the step with a number, call the handler.

    Steps are those at which Python looks for signals: a function begins, or a call has returned.

    Returns:
        Whether it came to that, and the result.
    """
    left = number
    before = {}  # the instruction before, by frame

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        # What is raised where a generator goes on, or is dropped, does not in every Python get into
        # its frame, as it would from a signal: no `finally` of it is run then, or nobody is told.
        is_call = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        is_step = is_call or (event == "opcode" and before.get(frame, "").startswith("CALL"))
        # Nor does Python forget what is being handled there, with all that the frame has.
        if is_step and (handler is not interrupt or sys.exc_info()[0] is None):
            left -= 1
            if left == 0:
                sys.settrace(None)
                handler()
        if event == "opcode":  # a line begins before its first instruction, which is still to come
            before[frame] = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
        return trace

    sys.settrace(trace)
    try:
        result = call()
    except TritonError as error:
        result = error
    finally:
        sys.settrace(None)
        before.clear()
    return left <= 0, result


def later(number):
    """Return the next step to interrupt at: where a busy machine makes it thousands, not each."""
    return number + max(9, number // 9)


class InterruptionError(Exception):
    """What a handler raises."""


def interrupt():
    """Raise, as a handler may."""
    raise InterruptionError


def cut_short(number, call):
    """Call, and raise at the step with a number; tell whether it came to that."""
    try:
        came, _ = interrupted(number, interrupt, call)
    except InterruptionError:
        came = True
    return came
