# SPDX-License-Identifier: Apache-2.0
"""The C API itself: the callbacks that hand over to Python, on the raw functions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tritonffi import CancelledError, InvalidArgumentError
from tritonffi.capi import backend_directory, check, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _backend import Gate

    from tritonffi import Server
    from tritonffi._library import Library

MINUTE = 60 * 10**9


class Raw:
    """A raw request to a model of the shared server, and its handover."""

    def __init__(self, server: Server, model: bytes) -> None:
        """Makes them; the inputs come later."""
        self.server = server._lifecycle.native
        self.handover = lib.tffi_handover_new()
        self.allocator = ffi.new("struct TRITONSERVER_ResponseAllocator **")
        check(
            lib.TRITONSERVER_ResponseAllocatorNew(
                self.allocator,
                ffi.addressof(lib, "tffi_handover_alloc_fn"),
                ffi.addressof(lib, "tffi_handover_release_fn"),
                ffi.NULL,
            )
        )
        self.request = ffi.new("struct TRITONSERVER_InferenceRequest **")
        check(lib.TRITONSERVER_InferenceRequestNew(self.request, self.server, model, -1))
        check(
            lib.TRITONSERVER_InferenceRequestSetReleaseCallback(
                self.request[0],
                ffi.addressof(lib, "tffi_handover_request_release_fn"),
                self.handover,
            )
        )
        check(
            lib.TRITONSERVER_InferenceRequestSetResponseCallback(
                self.request[0],
                self.allocator[0],
                ffi.NULL,
                ffi.addressof(lib, "tffi_handover_response_complete_fn"),
                self.handover,
            )
        )
        self.kept: list[object] = []

    def add(self, name: bytes, datatype: int, array: np.ndarray) -> None:
        """An input over the array."""
        self.kept.append(array)
        shape = ffi.new("int64_t[]", array.shape)
        check(
            lib.TRITONSERVER_InferenceRequestAddInput(
                self.request[0], name, datatype, shape, array.ndim
            )
        )
        check(
            lib.TRITONSERVER_InferenceRequestAppendInputData(
                self.request[0],
                name,
                ffi.from_buffer(array),
                array.nbytes,
                lib.TRITONSERVER_MEMORY_CPU,
                0,
            )
        )

    def submit(self) -> None:
        """Submits it."""
        check(lib.TRITONSERVER_ServerInferAsync(self.server, self.request[0], ffi.NULL))

    def response(self, timeout_ns: int = MINUTE) -> tuple[int, object, int]:
        """What the wait says, the response and its flags."""
        response = ffi.new("struct TRITONSERVER_InferenceResponse **")
        flags = ffi.new("uint32_t *")
        result = lib.tffi_handover_response(self.handover, timeout_ns, response, flags)
        return result, response[0], flags[0]

    def released(self, timeout_ns: int = MINUTE) -> tuple[int, object]:
        """What the wait says, and the request that came back."""
        request = ffi.new("struct TRITONSERVER_InferenceRequest **")
        result = lib.tffi_handover_request(self.handover, timeout_ns, request)
        return result, request[0]

    def close(self) -> None:
        """Deletes all of it."""
        check(lib.TRITONSERVER_InferenceRequestDelete(self.request[0]))
        lib.tffi_handover_delete(self.handover)
        check(lib.TRITONSERVER_ResponseAllocatorDelete(self.allocator[0]))


@pytest.fixture
def stream(server: Server) -> Iterator[Raw]:
    """A request to the decoupled model."""
    raw = Raw(server, b"stream")
    yield raw
    raw.close()


@pytest.fixture
def echo_request(server: Server) -> Iterator[Raw]:
    """A request to the model that echoes."""
    raw = Raw(server, b"echo")
    yield raw
    raw.close()


def index_of(response: object) -> int:
    """The number that the model `stream` gives a response, its output INDEX."""
    name, datatype = ffi.new("char **"), ffi.new("TRITONSERVER_DataType *")
    shape, rank = ffi.new("int64_t **"), ffi.new("uint64_t *")
    base, size = ffi.new("void **"), ffi.new("size_t *")
    memory, number = ffi.new("TRITONSERVER_MemoryType *"), ffi.new("int64_t *")
    userp = ffi.new("void **")
    for index in range(2):
        check(
            lib.TRITONSERVER_InferenceResponseOutput(
                response, index, name, datatype, shape, rank, base, size, memory, number, userp
            )
        )
        if ffi.string(name[0]) == b"INDEX":
            return int(ffi.cast("int32_t *", base[0])[0])
    raise AssertionError("no INDEX")


def test_each_response_of_a_decoupled_model_is_fetched_in_order(stream: Raw) -> None:
    """Three responses, the last with the final flag, and then the request."""
    stream.add(b"INPUT0", lib.TRITONSERVER_TYPE_INT32, np.array([7], np.int32))
    stream.add(b"COUNT", lib.TRITONSERVER_TYPE_INT32, np.array([3], np.int32))
    stream.submit()
    seen = []
    for _ in range(3):
        result, response, flags = stream.response()
        assert result == lib.TFFI_WAIT_READY
        seen.append((index_of(response), flags))
        check(lib.TRITONSERVER_InferenceResponseDelete(response))
    assert seen == [(0, 0), (1, 0), (2, lib.TRITONSERVER_RESPONSE_COMPLETE_FINAL)]
    assert stream.released() == (lib.TFFI_WAIT_READY, stream.request[0])


def test_a_bare_final_flag_is_handed_over_without_a_response(stream: Raw) -> None:
    """No response at all is one call of the callback, with NULL."""
    stream.add(b"INPUT0", lib.TRITONSERVER_TYPE_INT32, np.array([7], np.int32))
    stream.add(b"COUNT", lib.TRITONSERVER_TYPE_INT32, np.array([0], np.int32))
    stream.submit()
    assert stream.response() == (
        lib.TFFI_WAIT_READY,
        ffi.NULL,
        lib.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    )
    assert stream.released() == (lib.TFFI_WAIT_READY, stream.request[0])


def test_the_waits_end_at_their_time(echo_request: Raw) -> None:
    """At once with 0, and not before the time given."""
    start = time.monotonic()
    assert echo_request.response(0) == (lib.TFFI_WAIT_TIMEOUT, ffi.NULL, 0)
    assert echo_request.released(0) == (lib.TFFI_WAIT_TIMEOUT, ffi.NULL)
    assert echo_request.response(50_000_000)[0] == lib.TFFI_WAIT_TIMEOUT
    assert time.monotonic() - start >= 0.05


def test_a_wait_without_end_is_woken(echo_request: Raw, gate: Gate) -> None:
    """By the callback on Triton's thread, while this one sleeps in C."""
    check(
        lib.TRITONSERVER_InferenceRequestSetStringParameter(
            echo_request.request[0], b"hold", b"start"
        )
    )
    echo_request.add(b"INPUT0", lib.TRITONSERVER_TYPE_FP32, np.ones(3, np.float32))
    echo_request.submit()
    gate.wait()
    assert echo_request.response(0)[0] == lib.TFFI_WAIT_TIMEOUT
    gate.open()
    result, response, _ = echo_request.response(-1)
    assert result == lib.TFFI_WAIT_READY
    check(lib.TRITONSERVER_InferenceResponseDelete(response))
    assert echo_request.released(-1)[0] == lib.TFFI_WAIT_READY


def test_responses_that_nobody_fetched_are_deleted_with_the_handover(stream: Raw) -> None:
    """Their buffers too: the fixture of every test counts them."""
    stream.add(b"INPUT0", lib.TRITONSERVER_TYPE_INT32, np.zeros(2048, np.int32))
    stream.add(b"COUNT", lib.TRITONSERVER_TYPE_INT32, np.array([4], np.int32))
    stream.submit()
    assert stream.released()[0] == lib.TFFI_WAIT_READY
    _, response, _ = stream.response()
    check(lib.TRITONSERVER_InferenceResponseDelete(response))


def test_a_refused_request_stays_the_callers(echo_request: Raw) -> None:
    """It may be mended and submitted again; nothing was handed over."""
    with pytest.raises(InvalidArgumentError):
        echo_request.submit()
    assert echo_request.response(0)[0] == lib.TFFI_WAIT_TIMEOUT
    assert echo_request.released(0)[0] == lib.TFFI_WAIT_TIMEOUT
    echo_request.add(b"INPUT0", lib.TRITONSERVER_TYPE_FP32, np.ones(3, np.float32))
    echo_request.submit()
    _, response, _ = echo_request.response()
    check(lib.TRITONSERVER_InferenceResponseDelete(response))
    assert echo_request.released()[0] == lib.TFFI_WAIT_READY


def test_a_request_tells_what_was_set(echo_request: Raw) -> None:
    """By number or text, whichever was set last; the two widths of a priority are one value."""
    request = echo_request.request[0]

    def asked(ctype: str, function: object) -> object:
        out = ffi.new(f"{ctype} *")
        check(function(request, out))
        return out[0]

    check(lib.TRITONSERVER_InferenceRequestSetCorrelationId(request, 2**64 - 1))
    assert asked("uint64_t", lib.TRITONSERVER_InferenceRequestCorrelationId) == 2**64 - 1
    check(lib.TRITONSERVER_InferenceRequestSetCorrelationIdString(request, b"one"))
    text = asked("const char *", lib.TRITONSERVER_InferenceRequestCorrelationIdString)
    assert ffi.string(text) == b"one"
    # Models without priority levels take none.
    for set_priority in (
        lib.TRITONSERVER_InferenceRequestSetPriority,
        lib.TRITONSERVER_InferenceRequestSetPriorityUInt64,
    ):
        check(set_priority(request, 3))
        assert asked("uint32_t", lib.TRITONSERVER_InferenceRequestPriority) == 0
        assert asked("uint64_t", lib.TRITONSERVER_InferenceRequestPriorityUInt64) == 0
    check(lib.TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 2**40))
    timeout = asked("uint64_t", lib.TRITONSERVER_InferenceRequestTimeoutMicroseconds)
    assert timeout == 2**40


def test_a_request_in_flight_knows_that_it_was_cancelled(echo_request: Raw, gate: Gate) -> None:
    """As long as it is Triton's."""
    request = echo_request.request[0]
    cancelled = ffi.new("bool *")
    check(lib.TRITONSERVER_InferenceRequestSetStringParameter(request, b"hold", b"start"))
    echo_request.add(b"INPUT0", lib.TRITONSERVER_TYPE_FP32, np.ones(3, np.float32))
    echo_request.submit()
    gate.wait()
    check(lib.TRITONSERVER_InferenceRequestIsCancelled(request, cancelled))
    assert not cancelled[0]
    check(lib.TRITONSERVER_InferenceRequestCancel(request))
    check(lib.TRITONSERVER_InferenceRequestIsCancelled(request, cancelled))
    assert cancelled[0]
    gate.open()
    _, response, _ = echo_request.response()
    with pytest.raises(CancelledError):
        check(lib.TRITONSERVER_InferenceResponseError(response))
    check(lib.TRITONSERVER_InferenceResponseDelete(response))
    assert echo_request.released()[0] == lib.TFFI_WAIT_READY


def test_buffer_attributes_tell_what_was_set(library: Library) -> None:
    """The handle is 64 bytes that are copied."""
    out = ffi.new("struct TRITONSERVER_BufferAttributes **")
    check(lib.TRITONSERVER_BufferAttributesNew(out))
    attributes = out[0]
    handle = ffi.new("char[64]", bytes(range(64)))
    check(lib.TRITONSERVER_BufferAttributesSetByteSize(attributes, 2**40))
    check(lib.TRITONSERVER_BufferAttributesSetMemoryType(attributes, lib.TRITONSERVER_MEMORY_GPU))
    check(lib.TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 3))
    check(lib.TRITONSERVER_BufferAttributesSetCudaIpcHandle(attributes, handle))
    size, number = ffi.new("size_t *"), ffi.new("int64_t *")
    memory, back = ffi.new("TRITONSERVER_MemoryType *"), ffi.new("void **")
    check(lib.TRITONSERVER_BufferAttributesByteSize(attributes, size))
    check(lib.TRITONSERVER_BufferAttributesMemoryType(attributes, memory))
    check(lib.TRITONSERVER_BufferAttributesMemoryTypeId(attributes, number))
    check(lib.TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, back))
    assert (size[0], memory[0], number[0]) == (2**40, lib.TRITONSERVER_MEMORY_GPU, 3)
    assert back[0] != handle
    assert bytes(ffi.buffer(back[0], 64)) == bytes(range(64))
    check(lib.TRITONSERVER_BufferAttributesDelete(attributes))


def test_a_message_is_made_of_json(library: Library) -> None:
    """And gives it back, as long as it lives."""
    out = ffi.new("struct TRITONSERVER_Message **")
    text = b'{"a":[1,2.5,"x"]}'
    check(lib.TRITONSERVER_MessageNewFromSerializedJson(out, text, len(text)))
    base, size = ffi.new("const char **"), ffi.new("size_t *")
    check(lib.TRITONSERVER_MessageSerializeToJson(out[0], base, size))
    assert bytes(ffi.buffer(base[0], size[0])) == text
    check(lib.TRITONSERVER_MessageDelete(out[0]))


def test_nothing_is_deleted_where_there_is_nothing() -> None:
    """As with free()."""
    lib.tffi_handover_delete(ffi.NULL)


def test_the_backend_directory_has_the_backend_of_functions(tmp_path: Path) -> None:
    """And whatever came with the library."""
    folder = backend_directory(tmp_path / "backends")
    assert (folder / "tritonffi" / "libtriton_tritonffi.so").is_symlink()
