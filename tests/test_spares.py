# SPDX-License-Identifier: Apache-2.0
"""
Requests of Triton's that serve again: what they may not change is who answers, and what.

Each scenario is a process of its own, for where Triton's python backend is loaded none serves
again, and other tests load it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import _backend
import numpy as np
import pytest
from _ensemble import ensemble
from test_python_backend import runs, write  # noqa: F401 - a fixture

from tritonffi import (
    CancelledError,
    ModelControlMode,
    NotFoundError,
    Server,
    TritonError,
    UnavailableError,
    _fetch,
)
from tritonffi._native import ffi, lib
from tritonffi.capi import check

FP32 = ("FP32", [-1])
SCENARIOS = {}


def scenario(function):
    """Have this done in a process of its own, with a server over the models `one` and `slow`."""
    SCENARIOS[function.__name__] = function
    return function


def spares():
    """How many requests wait to serve again."""
    counters = ffi.new("tffi_counters *")
    lib.tffi_counters_read(counters)
    return counters.spares


def infer(model, *values, **keywords):
    """Infer and return the values that came back."""
    response = model.infer({"INPUT0": np.array(values, np.float32)}, **keywords)
    return response["OUTPUT0"].tolist()


def warm(model):
    """Infer until a request waits."""
    for i in range(3):
        assert infer(model, i, i + 1) == [i, i + 1]
    assert spares() == 1


@scenario
def one_after_the_other(server, gate):
    """Each answer is that of its own data, and one request is enough."""
    model = server.model("one")
    for i in range(200):
        assert infer(model, i, -i) == [i, -i]
    assert spares() == 1


@scenario
def many_in_flight(server, gate):
    """As many wait in the end as were in flight, and no answer is another's."""
    model = server.model("one")
    arrays = [np.full(3, i, np.float32) for i in range(500)]
    inputs = [{"INPUT0": array} for array in arrays]
    for _ in range(2):
        for i, response in enumerate(model.map(inputs, in_flight=8)):
            assert response["OUTPUT0"].tolist() == [i, i, i]
    assert 1 <= spares() <= 8
    call = model.prepare(inputs[0])
    for i, response in enumerate(call.map(inputs, in_flight=8)):
        assert response["OUTPUT0"].tolist() == [i, i, i]
    del call
    gc.collect()
    assert spares() <= 8


@scenario
def other_shapes(server, gate):
    """What is not alike gets a request of its own, and lets the others go."""
    model = server.model("one")
    for values in ([1.0], [1.0], [1.0, 2.0], [2.0, 1.0], [5.0], [], [], [7.0]):
        assert infer(model, *values) == values
    assert spares() == 0
    assert infer(model, 8.0) == [8.0]
    assert spares() == 1


@scenario
def other_keywords(server, gate):
    """A request that says more than its inputs is for one inference, and leaves nothing behind."""
    model = server.model("one")
    warm(model)
    array = {"INPUT0": np.zeros(2, np.float32)}
    said = model.infer(array, request_id="mine", parameters={"report": True}).parameters
    assert said["id"] == "mine"
    assert spares() == 1
    assert model.infer(array).parameters == {}
    call = model.prepare(array, request_id="all", parameters={"report": True})
    for _ in range(3):
        assert call.infer(array).parameters["id"] == "all"
    assert spares() == 2


@scenario
def failures(server, gate):
    """A model's error is the answer of one inference, a cancelled request does not serve again."""
    call = server.model("one").prepare(
        {"INPUT0": np.zeros(1, np.float32)}, parameters={"mode": "error", "error_text": "no"}
    )
    for _ in range(5):
        with pytest.raises(TritonError, match="no"):
            call.infer({"INPUT0": np.ones(1, np.float32)})
    assert spares() == 1
    held = server.model("one").prepare(
        {"INPUT0": np.zeros(1, np.float32)}, parameters={"hold": "start"}
    )
    for _ in range(3):
        inference = held.submit({"INPUT0": np.ones(1, np.float32)})
        gate.wait()
        inference.cancel()
        gate.release()
        with pytest.raises(TritonError):
            inference.result()
        assert spares() == 1
    inference = held.submit({"INPUT0": np.full(1, 5, np.float32)})
    gate.wait()
    gate.release()
    assert inference.result()["OUTPUT0"].tolist() == [5.0]
    assert spares() == 2


@scenario
def unload_and_load(server, gate):
    """A model goes at once, and what is loaded next answers."""
    model = server.model("one")
    for unload in (Server.unload, unload_raw):
        warm(model)
        unload(server, "one")
        assert spares() == 0
        assert state_of(server, "one") == "UNAVAILABLE"
        with pytest.raises((NotFoundError, UnavailableError)):
            infer(model, 1.0, 2.0)
        server.load("one")
    warm(model)
    (REPOSITORY / "one/2").mkdir()
    server.load("one")
    assert spares() == 0
    assert model.infer({"INPUT0": np.ones(2, np.float32)}).model_version == 2


@scenario
def load_of_another_config(server, gate):
    """A load in place of what is loaded: whoever infers afterwards gets the new one's answer."""
    model = server.model("one")
    config = model.config()
    for text in ("first", "second"):
        warm(model)
        config["parameters"] = {
            "mode": {"string_value": "error"},
            "error_text": {"string_value": text},
        }
        server.load("one", config=config)
        with pytest.raises(TritonError, match=text):
            infer(model, 1.0, 2.0)
        config["parameters"] = {}
        server.load("one", config=config)


@scenario
def poll(server, gate):
    """So it is where the repository is looked through."""
    server.close()
    with Server(
        REPOSITORY, backend_directory=BACKENDS, model_control_mode=ModelControlMode.POLL
    ) as polling:
        model = polling.model("one")
        warm(model)
        (REPOSITORY / "one/2").mkdir()
        polling.poll()
        assert model.infer({"INPUT0": np.ones(2, np.float32)}).model_version == 2


@scenario
def in_flight_beside_a_load(server, gate):
    """What was made before a load has ended does not serve after it."""
    model = server.model("one")
    call = model.prepare({"INPUT0": np.zeros(2, np.float32)}, parameters={"hold": "start"})
    inferences = [call.submit({"INPUT0": np.full(2, i, np.float32)}) for i in range(3)]
    gate.wait()
    server.load("other")
    assert server.unload("other") is None
    gate.open()
    for i, inference in enumerate(inferences):
        assert inference.result()["OUTPUT0"].tolist() == [i, i]
    assert spares() == 0
    assert call.infer({"INPUT0": np.ones(2, np.float32)})["OUTPUT0"].tolist() == [1, 1]
    assert spares() == 1


@scenario
def those_that_leave_marks(server, gate):
    """Ensembles, sequences and cached answers take a request for each inference."""
    chain = ensemble(server, "chain", ["one", "one"], max_batch_size=0)
    for i in range(20):
        assert chain.infer({"X": np.full(2, i, np.float32)})["Y"].tolist() == [i, i]
    assert spares() == 0
    server.unload("chain")  # its scheduler counts what is in flight, and waits for none
    assert state_of(server, "chain") == "UNAVAILABLE"
    sequences = server.model("sequences")
    call = sequences.prepare(
        {"INPUT0": np.zeros((1, 2), np.float32)},
        correlation_id=7,
        sequence_start=True,
        sequence_end=True,
    )
    for i in range(5):
        array = np.full((1, 2), i, np.float32)
        assert call.infer({"INPUT0": array})["OUTPUT0"].tolist() == [[i, i]]
    assert spares() == 0
    cached = server.model("cached")
    for i in (1, 2, 1, 2, 1, 2):
        assert infer(cached, i, i) == [i, i]
    assert spares() == 0


@scenario
def the_order_is_preserved(server, gate):
    """Who is cancelled in the queue answers as himself, and not in the place of who was before."""
    model = server.model("ordered")
    array = {"INPUT0": np.ones((1, 3), np.float32)}
    for _ in range(5):
        for response in model.map([array] * 40, in_flight=20):
            assert response["OUTPUT0"].tolist() == [[1, 1, 1]]
        held = [model.submit(array, parameters={"hold": "start"}) for _ in range(3)]
        gate.wait()
        queued = [model.submit(array) for _ in range(20)]
        for inference in queued:
            inference.cancel()
        gate.open()
        assert [inference.result()["OUTPUT0"].tolist() for inference in held] == [[[1, 1, 1]]] * 3
        for inference in queued:
            with suppress(CancelledError):
                assert inference.result()["OUTPUT0"].tolist() == [[1, 1, 1]]
        gate.close()
    assert spares() == 0


@scenario
def a_raw_load_of_another_config(server, gate):
    """What a model is like is read anew whoever has loaded it: now its answers are cached."""
    model = server.model("one")
    warm(model)
    extra = "response_cache { enable: true }"
    _backend.write_model(REPOSITORY, "one", {"INPUT0": FP32}, extra=extra)
    check(lib.TRITONSERVER_ServerLoadModel(server._lifecycle.native, b"one"))
    for i in (5, 6, 5, 6, 7):
        assert infer(model, i, i) == [i, i]
    assert spares() == 0


@scenario
def nobody_asks_any_more(server, gate):
    """They go with the handle on the model, and with the server, which is closed at once."""
    model = server.model("one")
    warm(model)
    del model
    gc.collect()
    assert spares() == 0
    model = server.model("one")
    warm(model)
    server.close(timeout=5)
    assert spares() == 0


@scenario
def threads_beside_loads(server, gate):
    """Any thread's answers are its own, whatever is loaded meanwhile."""
    wrong = []
    stop = threading.Event()

    def work(number):
        model = server.model("one")
        i = 0
        while not stop.is_set():
            i += 1
            try:
                if infer(model, number, i) != [number, i]:
                    wrong.append((number, i))
            except (NotFoundError, UnavailableError):
                pass

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        server.load("other")
        server.unload("one")
        server.load("one")
        server.unload("other")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    server.unload("one")
    assert spares() == 0
    assert state_of(server, "one") == "UNAVAILABLE"


CONTROLLER = """
        if value[0] == 0:
            pb_utils.unload_model("one")
        else:
            pb_utils.load_model("one")
        return value
"""


@scenario
def a_model_that_unloads_another(server, gate):
    """The python backend tells nobody, so where it is loaded no request serves again."""
    model = server.model("one")
    warm(model)
    write(REPOSITORY, "controller", "FP32", CONTROLLER.strip())
    controller = server.load("controller")
    assert spares() == 0
    for i in range(5):
        assert infer(model, i, i) == [i, i]
    assert spares() == 0
    controller.infer({"IN": np.zeros(1, np.float32)})
    assert state_of(server, "one") == "UNAVAILABLE"
    with pytest.raises((NotFoundError, UnavailableError)):
        infer(model, 1.0, 2.0)
    controller.infer({"IN": np.ones(1, np.float32)})
    assert infer(model, 1.0, 2.0) == [1.0, 2.0]


def unload_raw(server, name):
    """By the C API, past the server."""
    check(lib.TRITONSERVER_ServerUnloadModel(server._lifecycle.native, name.encode()))


def state_of(server, name):
    """What Triton says of the model, once it is not about to go."""
    while True:
        states = {entry.state for entry in server.models() if entry.name == name}
        assert len(states) == 1, states
        state = states.pop()
        if state != "UNLOADING":
            return state


PYTHON = a_model_that_unloads_another.__name__


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - {PYTHON}))
def test_requests_serve_again(name, library, tmp_path, backend):
    """The scenario of this name."""
    run_alone(name, library, tmp_path, backend)


def test_none_serves_again_beside_the_python_backend(runs, library, tmp_path, backend):  # noqa: F811
    """A model of its may load and unload others."""
    run_alone(PYTHON, library, tmp_path, backend)


def run_alone(name, library, folder, backend):
    """Run a scenario in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, name, folder / "models", backend, _fetch.default_directory()],
        env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")


if __name__ == "__main__":
    NAME = sys.argv[1]
    REPOSITORY, BACKEND, FETCHED = map(Path, sys.argv[2:])
    BACKENDS = BACKEND.parent.parent
    _fetch.default_directory = lambda: FETCHED
    for each in ("one", "other"):
        _backend.write_model(REPOSITORY, each, {"INPUT0": FP32})
    _backend.write_model(
        REPOSITORY, "cached", {"INPUT0": FP32}, extra="response_cache { enable: true }"
    )
    _backend.write_model(
        REPOSITORY,
        "ordered",
        {"INPUT0": FP32},
        max_batch_size=1,
        extra="dynamic_batching { preserve_ordering: true }",
    )
    _backend.write_model(
        REPOSITORY,
        "sequences",
        {"INPUT0": FP32},
        max_batch_size=4,
        extra="sequence_batching { max_sequence_idle_microseconds: 1000000 }",
    )
    with Server(
        REPOSITORY,
        backend_directory=BACKENDS,
        startup_models=["one", "cached", "ordered", "sequences"],
        cache_config={"local": {"size": 1 << 20}},
    ) as own:
        GATE = _backend.Gate(BACKEND)
        SCENARIOS[NAME](own, GATE)
