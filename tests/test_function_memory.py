# SPDX-License-Identifier: Apache-2.0
"""
Memory that comes to a function model from elsewhere: in parts, or on a GPU.

tritonffi itself sends neither, so these requests are made of the raw C API, with callbacks written
in Python. Do not do so yourself: a busy Python thread holds up the thread of Triton's that calls.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from _functions import Loader, identity, statistics

from tritonffi import function_copies
from tritonffi._native import ffi, lib
from tritonffi.capi import check

CPU = lib.TRITONSERVER_MEMORY_CPU
GPU = lib.TRITONSERVER_MEMORY_GPU
PARTS = [np.arange(n, dtype=np.float32) for n in (3, 5, 0, 1)]


class RawRequest:
    """One request of the C API to a model with an FP32 input `x` and output `y`."""

    def __init__(self, server, model_name, output_memory=CPU):
        """Make the callbacks; the output memory is CPU memory, but need not say so."""
        self.server = server._lifecycle.native
        self.model_name = model_name.encode()
        self.output_memory = output_memory
        self.memory = []
        self.answer = None
        self.pending = threading.Semaphore(0)
        self.callbacks = [
            ffi.callback("TRITONSERVER_ResponseAllocatorAllocFn_t", self.alloc),
            ffi.callback("TRITONSERVER_ResponseAllocatorReleaseFn_t", lambda *_: ffi.NULL),
            ffi.callback("TRITONSERVER_InferenceResponseCompleteFn_t", self.complete),
            ffi.callback("TRITONSERVER_InferenceRequestReleaseFn_t", self.release),
        ]

    def alloc(self, _allocator, _name, size, _type, _id, _userp, data, userp, kind, kind_id):
        """Give memory, of whatever kind it is said to be."""
        self.memory.append(ffi.new("char[]", size + 1))
        data[0], userp[0] = self.memory[-1], ffi.NULL
        kind[0], kind_id[0] = self.output_memory, 0
        return ffi.NULL

    def complete(self, response, _flags, _userp):
        """Read the answer: the error's text, or the array."""
        error = lib.TRITONSERVER_InferenceResponseError(response)
        if error:
            self.answer = ffi.string(lib.TRITONSERVER_ErrorMessage(error)).decode()
            lib.TRITONSERVER_ErrorDelete(error)
        else:
            self.answer = np.frombuffer(ffi.buffer(self.memory[-1])[:-1], np.float32)
        check(lib.TRITONSERVER_InferenceResponseDelete(response))
        self.pending.release()

    def release(self, request, _flags, _userp):
        """Delete the request."""
        check(lib.TRITONSERVER_InferenceRequestDelete(request))
        self.pending.release()

    def send(self, parts, memory=CPU):
        """Send the input in parts, and return the answer."""
        alloc_fn, release_fn, complete_fn, request_release_fn = self.callbacks
        allocator = ffi.new("struct TRITONSERVER_ResponseAllocator **")
        request = ffi.new("struct TRITONSERVER_InferenceRequest **")
        check(lib.TRITONSERVER_ResponseAllocatorNew(allocator, alloc_fn, release_fn, ffi.NULL))
        check(lib.TRITONSERVER_InferenceRequestNew(request, self.server, self.model_name, -1))
        shape = ffi.new("int64_t[]", [sum(map(len, parts))])
        kind = lib.TRITONSERVER_TYPE_FP32
        check(lib.TRITONSERVER_InferenceRequestAddInput(request[0], b"x", kind, shape, 1))
        for part in parts:
            data = ffi.from_buffer(part)
            check(
                lib.TRITONSERVER_InferenceRequestAppendInputData(
                    request[0], b"x", data, part.nbytes, memory, 0
                )
            )
        check(
            lib.TRITONSERVER_InferenceRequestSetReleaseCallback(
                request[0], request_release_fn, ffi.NULL
            )
        )
        check(
            lib.TRITONSERVER_InferenceRequestSetResponseCallback(
                request[0], allocator[0], ffi.NULL, complete_fn, ffi.NULL
            )
        )
        check(lib.TRITONSERVER_ServerInferAsync(self.server, request[0], ffi.NULL))
        for _ in ("response", "release"):
            assert self.pending.acquire(timeout=30)
        check(lib.TRITONSERVER_ResponseAllocatorDelete(allocator[0]))
        return self.answer


@pytest.fixture
def model(server):
    """A function that returns what it gets."""
    loader = Loader(server)
    yield loader(identity)
    loader.unload()


def test_an_input_in_several_parts_arrives_as_one(server, model):
    """The parts are put one behind the other."""
    answer = RawRequest(server, "function").send(PARTS)
    np.testing.assert_array_equal(answer, np.concatenate(PARTS), strict=True)


def test_an_input_that_others_sent_is_copied(server, model):
    """Nobody here holds its memory, once Triton has given the request back."""
    before = function_copies()
    part = np.arange(1 << 18, dtype=np.float32)
    answer = RawRequest(server, "function").send([part])
    np.testing.assert_array_equal(answer, part, strict=True)
    after = function_copies()
    assert after.input_bytes - before.input_bytes == part.nbytes
    assert after.lent_inputs == before.lent_inputs


def test_an_input_on_a_gpu_is_refused(server, model):
    """Before anything reads it; the error names the input."""
    answer = RawRequest(server, "function").send(PARTS, GPU)
    assert answer == (
        "model 'function', input 'x': it lies in GPU memory, and a Python function reads CPU memory"
    )
    assert statistics(model)["fail"] == 1
    assert statistics(model)["executions"] == 0


def test_output_memory_on_a_gpu_is_refused(server, model):
    """Before anything writes to it; the call does not count as an execution."""
    answer = RawRequest(server, "function", output_memory=GPU).send(PARTS)
    assert answer == (
        "model 'function', output 'y': its memory is on a GPU, and a Python function writes CPU "
        "memory"
    )
    assert statistics(model)["fail"] == 1
    assert statistics(model)["executions"] == 0


def test_output_memory_on_a_gpu_ends_a_stream(server):
    """The response is not sent, the generator is closed, and the error is the only answer."""
    closed = []

    def twice(x):
        try:
            yield x
            yield x
        finally:
            closed.append("closed")

    loader = Loader(server)
    model = loader(twice)
    answer = RawRequest(server, "function", output_memory=GPU).send(PARTS)
    assert answer.endswith(
        "output 'y': its memory is on a GPU, and a Python function writes CPU memory"
    )
    assert closed == ["closed"]
    assert statistics(model)["fail"] == 1
    assert {i: r.fail.count for i, r in model.statistics().responses.items()} == {0: 1}
    loader.unload()
