# SPDX-License-Identifier: Apache-2.0
"""Triton's C API from Python, as it is: one server, one model, and one request used five times.

Whoever knows ``tritonserver.h`` finds every step here under its C name: check the version, set
options, start, load, read metadata, make an allocator and a request, submit, wait, read the
response, change the request and submit it again. ``simple.py`` does the same in Python's way.

Two things differ from a program in C. Callbacks are C functions out of ``tritonffi``, because
Triton calls them on threads where Python must not run; they hand over to a waiting Python thread.
And the model is a Python callable, so that the example needs no model file.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tritonffi.capi import FunctionModel, backend_directory, check, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Array = npt.NDArray[np.int32]
    CData = Any  # what cffi gives

MINUTE = 60 * 10**9
CPU = lib.TRITONSERVER_MEMORY_CPU


def made(kind: str, function: Callable[..., CData], *arguments: CData) -> CData:
    """Calls a function that makes an object and returns it through its first argument."""
    out = ffi.new(f"struct TRITONSERVER_{kind} **")
    check(function(out, *arguments))
    return out[0]


def asked(ctype: str, function: Callable[..., CData], *arguments: CData) -> CData:
    """Calls a function that returns a value through its last argument."""
    out = ffi.new(f"{ctype} *")
    check(function(*arguments, out))
    return out[0]


def parsed(message: CData) -> Any:  # noqa: ANN401 - it is JSON
    """Reads a message and deletes it."""
    base, size = ffi.new("const char **"), ffi.new("size_t *")
    try:
        check(lib.TRITONSERVER_MessageSerializeToJson(message, base, size))
        return json.loads(ffi.buffer(base[0], size[0])[:])
    finally:
        check(lib.TRITONSERVER_MessageDelete(message))


# The server


def check_version() -> None:
    """Refuses a library whose API is another one than this package was made for."""
    major, minor = ffi.new("uint32_t *"), ffi.new("uint32_t *")
    check(lib.TRITONSERVER_ApiVersion(major, minor))
    print(f"Triton's API is {major[0]}.{minor[0]}")
    if major[0] != 1:
        raise SystemExit("made for API 1")


@contextmanager
def running_server(folder: Path) -> Iterator[CData]:
    """Starts a server, and stops it in the end."""
    options = made("ServerOptions", lib.TRITONSERVER_ServerOptionsNew)
    (folder / "models" / "simple" / "1").mkdir(parents=True)
    repository = str(folder / "models").encode()
    backends = str(backend_directory(folder / "backends")).encode()
    check(lib.TRITONSERVER_ServerOptionsSetServerId(options, b"simple"))
    check(lib.TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository))
    check(lib.TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends))
    check(
        lib.TRITONSERVER_ServerOptionsSetModelControlMode(
            options, lib.TRITONSERVER_MODEL_CONTROL_EXPLICIT
        )
    )
    check(lib.TRITONSERVER_ServerOptionsSetLogFile(options, os.devnull.encode()))
    check(lib.TRITONSERVER_ServerOptionsSetMetrics(options, False))
    # Triton leaves these two uninitialised.
    check(lib.TRITONSERVER_ServerOptionsSetModelLoadRetryCount(options, 0))
    check(lib.TRITONSERVER_ServerOptionsSetEnablePeerAccess(options, False))
    server = made("Server", lib.TRITONSERVER_ServerNew, options)
    try:
        check(lib.TRITONSERVER_ServerOptionsDelete(options))
        live = asked("bool", lib.TRITONSERVER_ServerIsLive, server)
        ready = asked("bool", lib.TRITONSERVER_ServerIsReady, server)
        print(f"The server is live: {live}, ready: {ready}")
        yield server
    finally:
        check(lib.TRITONSERVER_ServerStop(server))
        check(lib.TRITONSERVER_ServerDelete(server))


# The model


def add_and_subtract(INPUT0: Array, INPUT1: Array) -> dict[str, Array]:  # noqa: N803
    """Is the model."""
    return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}


@contextmanager
def loaded_model(server: CData) -> Iterator[bytes]:
    """Loads the model from nothing but a config, and unloads it in the end."""
    tensor = ("INT32", [4])
    model = FunctionModel(
        "simple",
        add_and_subtract,
        {"INPUT0": tensor, "INPUT1": tensor},
        {"OUTPUT0": tensor, "OUTPUT1": tensor},
        max_batch_size=4,
    )
    model.start()
    name = model.name.encode()
    text = ffi.new("char[]", json.dumps(model.config).encode())
    config = lib.TRITONSERVER_ParameterNew(b"config", lib.TRITONSERVER_PARAMETER_STRING, text)
    try:
        overrides = ffi.new("struct TRITONSERVER_Parameter *[]", [config])
        check(lib.TRITONSERVER_ServerLoadModelWithParameters(server, name, overrides, 1))
        model.loaded()
        yield name
    finally:
        lib.TRITONSERVER_ParameterDelete(config)
        check(lib.TRITONSERVER_ServerUnloadModel(server, name))
        model.close()


def show_model(server: CData, name: bytes) -> None:
    """Prints what Triton says of the model."""
    ready = asked("bool", lib.TRITONSERVER_ServerModelIsReady, server, name, 1)
    print(f"The model is ready: {ready}")
    metadata = parsed(
        asked(
            "struct TRITONSERVER_Message *", lib.TRITONSERVER_ServerModelMetadata, server, name, 1
        )
    )
    for tensor in metadata["inputs"] + metadata["outputs"]:
        print(f"  {tensor['name']} {tensor['datatype']} {tensor['shape']}")


# Inference


class Callbacks(NamedTuple):
    """What a request needs beside its inputs."""

    allocator: CData  # makes the memory for outputs
    handover: CData  # where the callbacks leave what they get


@contextmanager
def prepared_callbacks() -> Iterator[Callbacks]:
    """Makes an allocator and a handover, which serve any number of requests."""
    allocator = made(
        "ResponseAllocator",
        lib.TRITONSERVER_ResponseAllocatorNew,
        ffi.addressof(lib, "tffi_handover_alloc_fn"),
        ffi.addressof(lib, "tffi_handover_release_fn"),
        ffi.NULL,
    )
    handover = lib.tffi_handover_new()
    try:
        yield Callbacks(allocator, handover)
    finally:
        lib.tffi_handover_delete(handover)
        check(lib.TRITONSERVER_ResponseAllocatorDelete(allocator))


@contextmanager
def prepared_request(server: CData, name: bytes, callbacks: Callbacks) -> Iterator[CData]:
    """Makes a request without inputs."""
    request = made("InferenceRequest", lib.TRITONSERVER_InferenceRequestNew, server, name, -1)
    check(
        lib.TRITONSERVER_InferenceRequestSetReleaseCallback(
            request, ffi.addressof(lib, "tffi_handover_request_release_fn"), callbacks.handover
        )
    )
    check(
        lib.TRITONSERVER_InferenceRequestSetResponseCallback(
            request,
            callbacks.allocator,
            ffi.NULL,
            ffi.addressof(lib, "tffi_handover_response_complete_fn"),
            callbacks.handover,
        )
    )
    check(lib.TRITONSERVER_InferenceRequestSetId(request, b"my request"))
    check(lib.TRITONSERVER_InferenceRequestSetCorrelationId(request, 5))
    check(
        lib.TRITONSERVER_InferenceRequestSetFlags(
            request, lib.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        )
    )
    check(lib.TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 5_000_000))
    try:
        yield request
    finally:
        # A request that lives keeps its model, and so the server, from stopping.
        check(lib.TRITONSERVER_InferenceRequestDelete(request))


def show_request(request: CData) -> None:
    """Prints what the request says of itself."""
    request_id = asked("const char *", lib.TRITONSERVER_InferenceRequestId, request)
    flags = asked("uint32_t", lib.TRITONSERVER_InferenceRequestFlags, request)
    sequence = asked("uint64_t", lib.TRITONSERVER_InferenceRequestCorrelationId, request)
    priority = asked("uint64_t", lib.TRITONSERVER_InferenceRequestPriorityUInt64, request)
    timeout = asked("uint64_t", lib.TRITONSERVER_InferenceRequestTimeoutMicroseconds, request)
    print(
        f"Request {ffi.string(request_id).decode()!r}: flags {flags}, correlation id {sequence}, "
        f"priority {priority}, timeout {timeout} us"
    )


def add_input(request: CData, name: bytes, array: Array) -> None:
    """Gives the request a new input over the array's memory."""
    shape = ffi.new("int64_t[]", array.shape)
    check(
        lib.TRITONSERVER_InferenceRequestAddInput(
            request, name, lib.TRITONSERVER_TYPE_INT32, shape, array.ndim
        )
    )
    append_data(request, name, array)


def append_data(request: CData, name: bytes, array: Array) -> None:
    """Gives data to an input. Triton reads the array itself, so it must live and keep still."""
    data = ffi.from_buffer(array)
    check(
        lib.TRITONSERVER_InferenceRequestAppendInputData(request, name, data, array.nbytes, CPU, 0)
    )


def infer(server: CData, request: CData, callbacks: Callbacks) -> dict[str, Array]:
    """Submits the request, waits, and returns copies of the outputs."""
    check(lib.TRITONSERVER_ServerInferAsync(server, request, ffi.NULL))
    response, flags = ffi.new("struct TRITONSERVER_InferenceResponse **"), ffi.new("uint32_t *")
    if lib.tffi_handover_response(callbacks.handover, MINUTE, response, flags):
        raise SystemExit("no response within a minute")
    try:
        check(lib.TRITONSERVER_InferenceResponseError(response[0]))
        count = asked("uint32_t", lib.TRITONSERVER_InferenceResponseOutputCount, response[0])
        return dict(output(response[0], index) for index in range(count))
    finally:
        check(lib.TRITONSERVER_InferenceResponseDelete(response[0]))
        # The request is ours again, to change or to delete, only when Triton has released it.
        released = ffi.new("struct TRITONSERVER_InferenceRequest **")
        if lib.tffi_handover_request(callbacks.handover, MINUTE, released):
            raise SystemExit("the request was not released within a minute")


def output(response: CData, index: int) -> tuple[str, Array]:
    """Returns name and data of an output; both live in the response, so the data is copied."""
    name, datatype = ffi.new("const char **"), ffi.new("TRITONSERVER_DataType *")
    shape, rank = ffi.new("const int64_t **"), ffi.new("uint64_t *")
    base, size = ffi.new("const void **"), ffi.new("size_t *")
    memory, number, userp = (
        ffi.new("TRITONSERVER_MemoryType *"),
        ffi.new("int64_t *"),
        ffi.new("void **"),
    )
    check(
        lib.TRITONSERVER_InferenceResponseOutput(
            response, index, name, datatype, shape, rank, base, size, memory, number, userp
        )
    )
    if datatype[0] != lib.TRITONSERVER_TYPE_INT32 or memory[0] != CPU:
        raise SystemExit("not the type or the memory that was to come")
    data = np.frombuffer(ffi.buffer(base[0], size[0]), np.int32)
    return ffi.string(name[0]).decode(), data.reshape(ffi.unpack(shape[0], rank[0])).copy()


def compare(title: str, outputs: dict[str, Array], a: Array, b: Array) -> None:
    """Prints the outputs, and fails where one is not what the model should make of `a` and `b`."""
    print(f"{title}:")
    expected = {"OUTPUT0": a + b, "OUTPUT1": a - b}
    for name, array in outputs.items():
        print(f"  {name} = {array.tolist()}")
        np.testing.assert_array_equal(array, expected[name])


def main() -> None:
    """Runs all of it."""
    check_version()
    with (
        tempfile.TemporaryDirectory() as name,
        running_server(Path(name)) as server,
        loaded_model(server) as model,
        prepared_callbacks() as callbacks,
        prepared_request(server, model, callbacks) as request,
    ):
        show_model(server, model)

        count = np.arange(4, dtype=np.int32)[None]
        ones = np.ones_like(count)
        add_input(request, b"INPUT0", count)
        add_input(request, b"INPUT1", ones)
        check(lib.TRITONSERVER_InferenceRequestAddRequestedOutput(request, b"OUTPUT0"))
        check(lib.TRITONSERVER_InferenceRequestAddRequestedOutput(request, b"OUTPUT1"))
        show_request(request)
        compare("First", infer(server, request, callbacks), count, ones)

        count[0, 0] = 27  # the request reads the array itself
        compare("Other values in the same memory", infer(server, request, callbacks), count, ones)

        check(lib.TRITONSERVER_InferenceRequestRemoveAllInputData(request, b"INPUT0"))
        append_data(request, b"INPUT0", ones)
        compare("Other memory for INPUT0", infer(server, request, callbacks), ones, ones)

        check(lib.TRITONSERVER_InferenceRequestRemoveInput(request, b"INPUT1"))
        add_input(request, b"INPUT1", count)
        check(lib.TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, b"OUTPUT0"))
        compare("Another INPUT1, one output", infer(server, request, callbacks), ones, count)

        check(lib.TRITONSERVER_InferenceRequestRemoveAllInputs(request))
        check(lib.TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request))
        rows = np.concatenate([count, 2 * count, 3 * count])
        add_input(request, b"INPUT0", rows)
        add_input(request, b"INPUT1", rows)
        compare("A batch of three, all outputs", infer(server, request, callbacks), rows, rows)


if __name__ == "__main__":
    main()
