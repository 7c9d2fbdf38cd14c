# SPDX-License-Identifier: Apache-2.0
"""Memory and lifetimes: what is kept, what is given back, and that nothing grows."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path

import _backend
import numpy as np
import pytest
from conftest import counters

from tritonffi import Server, TritonError
from tritonffi._native import ffi, lib

FP32 = {"INPUT0": ("FP32", [-1])}
TENSORS = {"inputs": {"x": ("FP32", [-1])}, "outputs": {"y": ("FP32", [-1])}}


@pytest.fixture
def uncollected():
    """No collection but where a test wants one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def resident_bytes():
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_arrays_outlive_response_model_and_server(tmp_path, backend_directory):
    """They own their memory; the server closes at once all the same."""
    _backend.write_model(tmp_path, "one", FP32)
    with Server(tmp_path, backend_directory=backend_directory) as server:
        array = server.model("one").infer({"INPUT0": np.arange(9000, dtype=np.float32)})["OUTPUT0"]
    del server
    gc.collect()
    assert array.tolist() == list(map(float, range(9000)))


def test_a_buffer_is_counted_until_its_last_view_is_dropped(echo):
    """One output, one buffer; views of views count as one; the last one gives it back."""
    before = counters()["buffers"]
    output = echo.infer({"INPUT0": np.zeros(5000, np.float32)})["OUTPUT0"]
    view = output.reshape(50, 100).T[3:7]
    assert counters()["buffers"] == before + 1
    del output
    assert counters()["buffers"] == before + 1
    del view
    assert counters()["buffers"] == before


def test_a_refused_request_gives_everything_back(server):
    """What Triton refuses leaves nothing, so a stop after it is instant."""
    model = server.model("sequence")
    before = counters()
    for _ in range(10):
        with pytest.raises(TritonError):
            # A sequence model needs a correlation id.
            model.infer({"INPUT0": np.ones((1, 1), np.int32)})
    assert counters() == before


def test_memory_stays_flat(server):
    """After a warm-up, thousands of inferences of mixed kinds leave the process as large as it was.

    The long version is in test_soak.
    """
    echo, text = server.model("echo"), server.model("echo_bytes")
    array = np.arange(1024, dtype=np.float32)

    def some(count):
        for i in range(count):
            echo.infer({"INPUT0": array})
            text.infer({"INPUT0": ["some", "text", "é" * (i % 50)]})
            with pytest.raises(TritonError):
                echo.infer({"INPUT0": array}, parameters={"mode": "error"})
            echo.submit({"INPUT0": array}).cancel()

    some(1500)
    gc.collect()
    before = resident_bytes()
    some(1500)
    gc.collect()
    assert resident_bytes() - before < 2 << 20


def test_closing_while_threads_infer_is_orderly(tmp_path, backend_directory):
    """Eight threads get results until the server closes, then a TritonError; nothing hangs."""
    _backend.write_model(tmp_path, "one", FP32)
    server = Server(tmp_path, backend_directory=backend_directory)
    model = server.model("one")
    started = threading.Barrier(9)
    unexpected = []

    def work():
        count = 0
        try:
            while True:
                model.infer({"INPUT0": [float(count)]})
                count += 1
                if count == 5:
                    started.wait()
        except TritonError:
            pass
        except Exception as error:  # noqa: BLE001 (shown by the assertion)
            unexpected.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    server.close()
    for thread in threads:
        thread.join()
    assert unexpected == []


def test_stale_tokens_are_answered(echo):
    """A token whose inference is over cancels nothing, and no number crashes."""
    inference = echo.submit({"INPUT0": [1.0]})
    inference.result()
    out = ffi.new("tffi_completion **")
    for token in (inference.token, 0, 1, 2**63, 2**64 - 1):
        assert not lib.tffi_inference_cancel(token)
        assert not lib.tffi_inference_is_cancelled(token)
        assert lib.tffi_inference_wait(token, 0, 0, out) == lib.TFFI_WAIT_GONE


@pytest.mark.usefixtures("uncollected")
def test_a_dropped_handle_is_gone_at_once(echo):
    """Nothing that it has made leads back to it."""
    model = echo.server.model("echo")
    model.infer({"INPUT0": [1.0]})
    model.prepare({"INPUT0": np.ones(3, np.float32)})
    seen = weakref.ref(model)
    del model
    assert seen() is None


@pytest.mark.usefixtures("uncollected")
def test_what_was_made_by_a_handle_keeps_the_server():
    """A prepared call goes on without the model and the server's own name."""
    server = Server()
    model = server.load_function("echo", lambda x: x, **TENSORS)
    call = model.prepare({"x": np.ones(2, np.float32)})
    seen = weakref.ref(server)
    del server, model
    assert call.infer({"x": np.float32([1, 2])})["y"].tolist() == [1, 2]
    seen().close()
    del call
    assert seen() is None
