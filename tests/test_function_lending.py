# SPDX-License-Identifier: Apache-2.0
"""
What is copied between requests and functions, counted, and what lent memory is when it is kept.

A large input of a single request of this process is lent: the array that the function gets lies
over the array that was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import threading
import weakref

import numpy as np
import pytest
from _ensemble import ensemble
from _functions import FP32, Held, Loader, batching, identity

import tritonffi
from tritonffi import Chunks, FunctionCopies, Raw, Server

MEGABYTE = 1 << 20
FLOATS = MEGABYTE // 4
#: The largest that is copied in any case.
SMALL = (64 << 10) // 4 - 1
STACKING = {"max_batch_size": 8, "config": {"dynamic_batching": batching(4)}}


def large(value=1, floats=FLOATS):
    """A large array."""
    return np.full(floats, value, np.float32)


@contextlib.contextmanager
def counting(**expected):
    """Hold what the block has copied to what it should have."""
    before = dataclasses.astuple(tritonffi.function_copies())
    yield
    after = dataclasses.astuple(tritonffi.function_copies())
    counted = FunctionCopies(*(now - was for now, was in zip(after, before, strict=True)))
    assert counted == dataclasses.replace(FunctionCopies(0, 0, 0, 0, 0), **expected)


class Warnings(logging.Handler):
    """What functions are told, to be waited for."""

    def __init__(self):
        """Take warnings and what is worse."""
        super().__init__(logging.WARNING)
        self.came = threading.Semaphore(0)
        self.texts = []

    def emit(self, record):
        """Keep one."""
        self.texts.append(record.getMessage())
        self.came.release()


@pytest.fixture
def told():
    """The warnings of functions during the test."""
    handler = Warnings()
    logger = logging.getLogger("tritonffi.functions")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def double(x):
    """Work for a function."""
    return {"y": x * 2}


@pytest.mark.parametrize("options", [{}, STACKING, {**STACKING, "batch": False}])
def test_the_input_of_a_single_request_is_not_copied(load, options):
    """1 MB, in models without batch axis, with it, and with one request to a call."""
    model = load(double, **options)
    x = large(3).reshape((1, FLOATS) if options else FLOATS)
    with counting(lent_inputs=1, outputs=1, output_bytes=MEGABYTE):
        response = model.infer({"x": x})
    np.testing.assert_array_equal(response["y"], x * 2, strict=True)


def test_the_inputs_of_a_batch_are_copied_once(load):
    """Each into the memory of the batch, and each output into that of its response."""
    sizes = []

    def function(x):
        sizes.append(len(x))
        return x * 2

    model = load(function, **STACKING)
    inputs = [large(i)[None] for i in range(4)]
    with counting(inputs=4, input_bytes=4 * MEGABYTE, outputs=4, output_bytes=4 * MEGABYTE):
        responses = [inference.result() for inference in [model.submit({"x": x}) for x in inputs]]
    assert sizes == [4]
    for x, response in zip(inputs, responses, strict=True):
        np.testing.assert_array_equal(response["y"], x * 2, strict=True)


def test_a_small_input_is_copied(load):
    """It is the function's to keep, and does not change with what was sent."""
    kept = []
    model = load(lambda x: kept.append(x) or x)
    x = large(1, SMALL)
    with counting(inputs=1, input_bytes=x.nbytes, outputs=1, output_bytes=x.nbytes):
        model.infer({"x": x})
    x[:] = 2
    assert kept.pop().max() == 1


def test_each_input_is_looked_at_by_itself(server):
    """A large one is lent, a small one is copied, one of no bytes is neither."""
    names = ("large", "small", "empty")
    model = server.load_function(
        "function",
        lambda large, small, empty: large[:1] + small[:1] + len(empty),
        inputs=dict.fromkeys(names, FP32),
        outputs={"y": FP32},
    )
    inputs = {"large": large(), "small": large(1, 10), "empty": large(1, 0)}
    with counting(inputs=1, input_bytes=40, lent_inputs=1, outputs=1, output_bytes=4):
        assert model.infer(inputs)["y"].tolist() == [2]
    server.unload("function")


@pytest.mark.parametrize(
    "way", ["submit", "prepared", "map", "async", "async map", "pieces", "raw"]
)
def test_every_way_to_infer_lends(load, way):
    """Also bytes of which the model knows the type; but not an input in several pieces."""
    model = load(double)
    x = large()

    async def in_loop():
        if way == "async":
            return await model.async_infer({"x": x})
        return await anext(model.async_map([{"x": x}]))

    copied = {"inputs": 1, "input_bytes": MEGABYTE} if way == "pieces" else {}
    lent = 0 if copied else 1
    with counting(lent_inputs=lent, outputs=1, output_bytes=MEGABYTE, **copied):
        if way == "submit":
            response = model.submit({"x": x}).result()
        elif way == "prepared":
            response = model.prepare({"x": x}).infer({"x": x})
        elif way == "map":
            (response,) = model.map([{"x": x}])
        elif way == "pieces":
            response = model.infer({"x": Chunks([x[:100], x[100:]])})
        elif way == "raw":
            response = model.infer(Raw(memoryview(x).cast("B")))
        else:
            response = asyncio.run(in_loop())
    assert response["y"].tolist() == [2] * FLOATS


def test_a_step_of_an_ensemble_copies(server):
    """Its request is Triton's own, about whose memory nothing is known here."""
    server.load_function(
        "step",
        lambda INPUT0: INPUT0 * 2,  # noqa: N803
        inputs={"INPUT0": FP32},
        outputs={"OUTPUT0": FP32},
        max_batch_size=8,
    )
    model = ensemble(server, "chain", ["step"])
    with counting(inputs=1, input_bytes=MEGABYTE, outputs=1, output_bytes=MEGABYTE):
        assert model.infer({"X": large()[None]})["Y"][0, :2].tolist() == [2, 2]
    server.unload("chain")
    server.unload("step")


def test_text_is_lent_to_be_unpacked(load):
    """The function gets bytes objects, which are its own."""
    kept = []
    text = ("BYTES", [-1])
    model = load(lambda x: kept.append(x) or x[:1], x=text, y=text)
    with counting(lent_inputs=1, outputs=1, output_bytes=4 + 100):
        model.infer({"x": [b"a" * 100] * 1000})
    assert kept.pop().tolist() == [b"a" * 100] * 1000


def test_what_is_sent_is_let_go_with_the_result(load):
    """The function has not kept it, so nobody has."""
    model = load(double)
    x = large()
    reference = weakref.ref(x)
    model.infer({"x": x})
    del x
    assert reference() is None


@pytest.mark.parametrize("options", [{}, STACKING])
def test_lent_memory_cannot_be_written_to(load, options):
    """The caller's array is as it was."""

    def function(x):
        x[...] = 0
        return x

    def insistent(x):
        x.flags.writeable = True
        return function(x)

    x = large().reshape((1, FLOATS) if options else FLOATS)
    for broken, words in (
        (function, "read-only"),
        (insistent, "cannot set WRITEABLE flag"),
    ):
        with pytest.raises(tritonffi.InternalError, match=words):
            load(broken, **options).infer({"x": x})
        assert x.min() == 1


def test_a_kept_array_keeps_the_memory(load, told):
    """Whatever else lets go of it; the one who keeps it is told, and gets copies from then on."""
    kept = []
    model = load(lambda x: kept.append(x[1:]) or x[:1])
    x = large(5)
    reference = weakref.ref(x)
    model.infer({"x": x})
    assert told.came.acquire(timeout=30)
    del x
    gc.collect()
    assert reference() is not None
    load.unload()
    assert kept[0].tolist() == [5] * (FLOATS - 1)
    kept.clear()
    assert reference() is None
    (text,) = told.texts
    assert text == (
        "model 'function', input 'x': the function has kept the array, which is memory of the one "
        "who sent it and may change; from now on it gets copies"
    )


def test_who_keeps_arrays_gets_copies(load, told):
    """What comes after the warning does not change with what was sent."""
    kept = []
    model = load(lambda x: kept.append(x) or x[:1])
    x = large()
    model.infer({"x": x})
    assert told.came.acquire(timeout=30)
    with counting(inputs=1, input_bytes=MEGABYTE, outputs=1, output_bytes=4):
        model.infer({"x": x})
    x[:] = 2
    assert [array[0] for array in kept] == [2, 1]
    kept.clear()


def test_a_result_that_is_the_input_is_not_kept(load, told):
    """It is copied into the response, and gone then."""
    model = load(identity)
    other = load(double, name="other")
    with counting(lent_inputs=3, outputs=3, output_bytes=3 * MEGABYTE):
        for i in range(3):
            assert model.infer({"x": large(i)})["y"][0] == i
    other.infer({"x": [1]})
    load.unload()  # returns when the workers have left
    assert told.texts == []


def test_a_failed_call_keeps_nothing(load, told):
    """The traceback in the log does not count."""

    def function(x):
        raise ValueError(len(x))

    model = load(function)
    x = large()
    reference = weakref.ref(x)
    with pytest.raises(tritonffi.InternalError, match="ValueError"):
        model.infer({"x": x})
    del x
    load.unload()
    gc.collect()  # of the exception here
    assert reference() is None
    assert [text for text in told.texts if "kept" in text] == []


def test_a_generator_reads_it_to_its_end(load, told):
    """The request is not given back before, so that nobody can write to what is read."""

    def function(x):
        for i in range(3):
            yield x[i : i + 1]

    model = load(function)
    with counting(lent_inputs=1, outputs=3, output_bytes=12):
        values = [
            response["y"].item()
            for response in model.stream({"x": np.arange(FLOATS, dtype=np.float32)})
        ]
    assert values == [0, 1, 2]
    load.unload()
    assert told.texts == []


def test_a_coroutine_reads_it_to_its_end(load):
    """In a thread of its own."""

    async def function(x):
        await asyncio.sleep(0)
        return x[:2] * 2

    model = load(function)
    with counting(lent_inputs=1, outputs=1, output_bytes=8):
        assert model.infer({"x": large()})["y"].tolist() == [2, 2]


def test_a_cancelled_call_reads_on(load):
    """The memory stays the function's as long as it runs."""
    held = Held()
    model = load(held)
    inference = model.submit({"x": large(7)})
    held.wait()
    inference.cancel()
    assert held.calls[0].min() == 7
    held.may_go.set()
    assert inference.result()["y"].min() == 7
    held.calls.clear()


def test_a_server_that_closes_leaves_it_readable():
    """The request is answered for the function that goes on, but the memory stays."""
    held = Held()
    with Server(exit_timeout=60) as server:
        model = Loader(server)(held)
        x = large(7)
        reference = weakref.ref(x)
        inference = model.submit({"x": x})
        held.wait()
        (worker,) = (t for t in threading.enumerate() if t.name.startswith("tritonffi: function"))
        del x
    with pytest.raises(tritonffi.ClosedError):
        inference.result()
    del inference
    assert held.calls[0].min() == 7
    held.may_go.set()
    worker.join(30)
    assert held.calls.pop().max() == 7
    gc.collect()
    assert reference() is None


def test_a_forgotten_inference_is_lent_to_its_end(load):
    """Who drops the inference and the array drops nothing of what the function reads."""
    held = Held()
    model = load(held)
    model.submit({"x": large(7)})
    held.wait()
    gc.collect()
    assert held.calls[0].min() == 7
    held.may_go.set()
    load.unload()
    held.calls.clear()
