# SPDX-License-Identifier: Apache-2.0
"""
Functions that fork, and whose child returns as if it were the parent.

The child has the thread alone that has forked. It answers nothing, waits for nobody, and ends as
the child of any other thread does: with 0.
"""

from __future__ import annotations

import pytest
from _program import printed

PROGRAM = """
import asyncio, logging, os, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons, about forks beside threads
import tritonffi

children = []

def fork():
    child = os.fork()
    if child:
        children.append(child)
    return child

def ended(child):
    # Within 10 s, or it is killed.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "it hung"

FP32 = ("FP32", [-1])
CALLABLE
with tritonffi.Server() as server:
    model = server.load_function("f", f, inputs={"x": FP32}, outputs={"y": FP32})
    for value in (1.0, 2.0):
        print([response["y"].tolist() for response in model.stream({"x": [value]}, timeout=30)])
    server.unload("f")
    print(*map(ended, children))
"""

ONCE = ["[[1.0]]", "[[2.0]]"]
TWICE = ["[[1.0], [1.0]]", "[[2.0], [2.0]]"]


@pytest.mark.parametrize(
    ("function", "responses", "children"),
    [
        pytest.param("def f(x): fork(); return x", ONCE, 2, id="a function"),
        pytest.param("def f(x): return x if fork() else None", ONCE, 2, id="a wrong result"),
        pytest.param(
            "def f(x, context): fork(); context.is_cancelled(); return x", ONCE, 2, id="a context"
        ),
        pytest.param("def f(x): yield x; fork(); yield x", TWICE, 2, id="a generator"),
        pytest.param(
            "async def f(x): await asyncio.sleep(0); fork(); return x", ONCE, 2, id="a coroutine"
        ),
        pytest.param(
            "async def f(x):\n if not fork(): await asyncio.sleep(99)\n return x",
            ONCE,
            2,
            id="a coroutine that goes on to wait",
        ),
        pytest.param("async def f(x): yield x; fork(); yield x", TWICE, 2, id="an async generator"),
        pytest.param(
            "async def g(x): return x\ndef f(x): fork(); return g(x)",
            ONCE,
            2,
            id="what returns a coroutine",
        ),
        pytest.param(
            "class f:\n def __init__(self): fork()\n def __call__(self, x): return x",
            ONCE,
            1,
            id="a class",
        ),
        pytest.param(
            "class f:\n def finalize(self): fork()\n def __call__(self, x): return x",
            ONCE,
            1,
            id="a finalizer",
        ),
    ],
)
@pytest.mark.usefixtures("library")
def test_a_child_that_returns_from_a_function_ends(function, responses, children):
    """It answers nothing; the parent's calls go on as if there were none."""
    out = printed(PROGRAM.replace("CALLABLE", function))
    assert out == [*responses, " ".join("0" * children)]


@pytest.mark.usefixtures("library")
def test_what_a_child_raises_is_told_in_its_log():
    """There is nobody else to be told."""
    function = """
logging.basicConfig(format="%(message)s", stream=sys.stdout)
def f(x):
    if not fork():
        try:
            raise KeyError("in the child") from None
        finally:
            logging.getLogger("tritonffi.functions").addFilter(without_traceback)
    return x
def without_traceback(record):
    record.exc_info = None
    os.write(1, (record.getMessage() + "\\n").encode())
    return False
"""
    out = "\n".join(printed(PROGRAM.replace("CALLABLE", function)))
    # Two processes write, and one may come between another's line and its end.
    assert out.count("model 'f': KeyError: 'in the child'") == 2
    assert [out.count(line) for line in [*ONCE, "0 0"]] == [1] * (len(ONCE) + 1)
