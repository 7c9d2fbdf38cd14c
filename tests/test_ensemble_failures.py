# SPDX-License-Identifier: Apache-2.0
"""Ensembles of which a step fails while others run: Triton answers, and keeps the request for ever.

Each in a process of its own, for what is kept stays counted.
"""

from __future__ import annotations

import textwrap

import pytest
from _program import printed

PROGRAM = """
import asyncio, logging, sys, threading, time
import numpy as np
import tritonffi
from tritonffi import CancelledError, InternalError, Server, TritonError
from tritonffi import _functions, _loaded, _python_backend, _rest

# How long what never comes is waited for.
_python_backend.PATIENCE_S = 0.5
_rest._OTHERS_S = _loaded._KEPT_S = _functions._JOIN_TIMEOUT = 0.2

logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stdout)
logging.getLogger("tritonffi.functions").setLevel(logging.CRITICAL)
SPEC = {"inputs": {"x": ("FP32", [-1])}, "outputs": {"y": ("FP32", [-1])}}
may_go, entered = threading.Event(), threading.Event()

def slow(x):
    entered.set()
    may_go.wait(60)
    return x

def bad(x):
    entered.wait(60)
    raise ValueError("no")

def tensor(name):
    return {"name": name, "data_type": "TYPE_FP32", "dims": [-1]}

def step(model, given, gives):
    maps = {"input_map": {"x": given}, "output_map": {"y": gives}}
    return {"model_name": model, "model_version": -1, **maps}

def words(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

server = Server()
server.load_function("slow", slow, **SPEC)
server.load_function("bad", bad, **SPEC)
both = server.load("both", {
    "platform": "ensemble",
    "input": [tensor("x")],
    "output": [tensor("y"), tensor("z")],
    "ensemble_scheduling": {"step": [step("slow", "x", "y"), step("bad", "x", "z")]},
})
ONE = {"x": np.ones(1, np.float32)}
"""
FAILED = "model 'both': in ensemble 'both', model 'bad': ValueError: no"
LEFT = (
    "tritonffi: a server is left behind, unloaded but not stopped: Triton cannot stop it after "
    "requests of 'both' that failed while a step was running"
)
WHY = (
    "A request of it failed while one of its steps was running, and Triton does not give such a "
    "request back (triton-inference-server/core#483)"
)


def run(*parts):
    """What a program prints once the ensemble is there; it ends in time, and silently with 0."""
    return printed(PROGRAM + "".join(map(textwrap.dedent, parts)), options=["-W", "error"])


@pytest.mark.parametrize(
    "call",
    [
        "both.infer(ONE)",
        "both.submit(ONE).result()",
        "both.prepare(ONE).infer(ONE)",
        "list(both.map([ONE]))",
        "list(both.map([ONE], ordered=False))",
        "list(both.stream(ONE))",
        "asyncio.run(both.async_infer(ONE))",
        "asyncio.run(a_map())",
        "asyncio.run(a_stream())",
    ],
)
def test_the_error_is_told_while_another_step_runs(call):
    """It does not wait for the request; and the server closes, which Triton cannot stop."""
    said, closed, left = run(f"""
        async def a_map():
            return [response async for response in both.async_map([ONE])]

        async def a_stream():
            return [response async for response in both.async_stream(ONE)]

        print(words(lambda: {call}))
        may_go.set()
        begun = time.monotonic()
        server.close()
        print("closed", time.monotonic() - begun < 10)
    """)
    assert said == f"InternalError: {FAILED}"
    assert sorted([closed, left]) == sorted(["closed True", LEFT])


def test_the_inference_says_what_it_is():
    """Done, with an error, and not over: its inputs are still Triton's to read."""
    assert run("""
        inference = both.submit(ONE)
        print(inference.wait(), inference.done(), inference.is_over, inference.pins is not None)
        print(words(inference.result) == words(inference.result))
        may_go.set()
        print(server.model("slow").infer(ONE)["y"].tolist())
        server.close()
    """) == ["True True False True", "True", "[1.0]", LEFT]


def test_a_cancelled_ensemble_is_told_and_closes_too():
    """The step that is running goes on to its end; the next one is not begun."""
    lines = run("""
        batched = {**SPEC, "max_batch_size": 4, "config": {"dynamic_batching": {}}}
        begun, cancelled = threading.Event(), threading.Event()

        def first(x):
            begun.set()
            cancelled.wait(60)
            return x

        server.load_function("first", first, **batched)
        server.load_function("second", lambda x: x, **batched)
        server.load_function("beside", slow, **batched)
        chain = server.load("chain", {
            "platform": "ensemble",
            "max_batch_size": 4,
            "input": [tensor("x")],
            "output": [tensor("y"), tensor("z")],
            "ensemble_scheduling": {"step": [
                step("beside", "x", "y"), step("first", "x", "m"), step("second", "m", "z"),
            ]},
        })
        inference = chain.submit({"x": np.ones((1, 1), np.float32)})
        begun.wait(60), entered.wait(60)
        inference.cancel()
        cancelled.set()
        print(words(lambda: inference.result(30)).partition(":")[0])
        may_go.set()
        start = time.monotonic()
        server.close()
        print("closed", time.monotonic() - start < 10)
    """)
    assert lines[0] == "CancelledError"
    assert "closed True" in lines


def test_an_unload_of_the_ensemble_says_why_it_does_not_end():
    """It would wait for ever."""
    said, *_ = run("""
        words(lambda: both.infer(ONE))
        may_go.set()
        print(words(lambda: server.unload("both")))
        server.close()
    """)
    assert said == f"InternalError: model 'both': it does not unload. {WHY}"


# Its answer is there, and nobody has taken it, before this goes on.
UNREAD = """
    def arrived(inference):
        while not inference.queue.ready[0]:
            time.sleep(0.001)

    def held():
        inference = both.submit(ONE)
        arrived(inference)
        return inference

    def dropped():
        arrived(both.submit(ONE))

    def closed_stream():
        with both.stream(ONE) as stream:
            arrived(stream._feed)

    def dropped_stream():
        stream = both.stream(ONE)
        arrived(stream._feed)

    def left_stream():
        async def leave():
            stream = both.async_stream(ONE)
            arrived(stream._feed)
            await stream.aclose()

        asyncio.run(leave())
"""
UNREAD_WAYS = ["held", "dropped", "closed_stream", "dropped_stream", "left_stream"]


@pytest.mark.parametrize("way", UNREAD_WAYS)
def test_an_answer_that_nobody_reads_holds_up_no_close(way):
    """As where it was read: some seconds and a warning, not the whole time and an error."""
    lines = run(
        UNREAD,
        f"""
        kept = {way}()
        may_go.set()
        begun = time.monotonic()
        server.close()
        print("closed", time.monotonic() - begun < 10)
    """,
    )
    assert sorted(lines) == sorted(["closed True", LEFT])


@pytest.mark.parametrize("way", UNREAD_WAYS)
def test_an_unload_says_why_where_nobody_has_read_the_answer(way):
    """With a time to wait, and without one."""
    timed, endless, _ = run(
        UNREAD,
        f"""
        kept = {way}()
        may_go.set()
        print(words(lambda: server.unload("both", timeout=0.3)))
        print(words(lambda: server.unload("both")))
        server.close()
    """,
    )
    assert timed == f"TimeoutError: model 'both': still not unloaded after 0.3 s. {WHY}"
    assert endless == f"InternalError: model 'both': it does not unload. {WHY}"
