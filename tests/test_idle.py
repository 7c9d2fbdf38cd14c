# SPDX-License-Identifier: Apache-2.0
"""A server of which nobody asks anything any more lets go of what it was given."""

from __future__ import annotations

import pytest
from _program import printed

# In a process of its own, whose thread looks more often than once a second from its start on.
PROGRAM = """
import asyncio, gc, sys, threading, weakref
import numpy as np
from tritonffi import Server, _log, memory_pool

_log._CALL_S = 0.01
may_go = threading.Event()

def slow(x):
    may_go.wait(60)
    return x

def twice(x):
    yield x
    yield x

def submit(inputs):
    quick.submit(inputs)

def timeout(inputs):
    try:
        held.infer(inputs, timeout=0.01)
    except TimeoutError:
        may_go.set()

def async_timeout(inputs):
    async def wait():
        await asyncio.wait_for(held.async_infer(inputs), 0.01)

    try:
        asyncio.run(wait())
    except (TimeoutError, asyncio.TimeoutError):
        may_go.set()
    gc.collect()  # asyncio keeps what a run ended with in a cycle of its own

def closed_stream(inputs):
    with several.stream(inputs) as stream:
        next(stream)

def dropped_stream(inputs):
    several.stream(inputs)

def closed_map(inputs):
    with quick.map([inputs] * 3) as responses:
        next(responses)

spec = {"inputs": {"x": ("FP32", [-1])}, "outputs": {"y": ("FP32", [-1])}}
with Server() as server:
    quick = server.load_function("quick", lambda x: x, **spec)
    held = server.load_function("held", slow, **spec)
    several = server.load_function("several", twice, **spec)
    for model in (quick, several):
        model.inputs()  # or the first use would read them
    array = np.ones(5, np.float32)
    gone = threading.Event()
    weakref.finalize(array, gone.set)
    globals()[sys.argv[1]]({"x": array})
    del array
    print(gone.wait(20))
"""


@pytest.mark.parametrize(
    "way",
    ["submit", "timeout", "async_timeout", "closed_stream", "dropped_stream", "closed_map"],
)
def test_what_nobody_asks_for_lets_go_of_its_arrays(way):
    """After a moment, with no further call."""
    assert printed(PROGRAM, way, options=["-W", "error"]) == ["True"]
