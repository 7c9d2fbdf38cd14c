# SPDX-License-Identifier: Apache-2.0
"""Prepared calls: checked once, made many times."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import _backend
import numpy as np
import pytest

from tritonffi import InvalidArgumentError, ModelControlMode, Request, Server, Trace

TWO = {"INPUT0": ("FP32", [-1]), "INPUT1": ("INT32", [2])}


@pytest.fixture
def server(tmp_path, backend_directory):
    """A server with models of one and of two inputs, one that batches, and one of BYTES."""
    models = tmp_path / "models"
    _backend.write_model(models, "one", {"INPUT0": ("FP32", [-1])})
    _backend.write_model(models, "two", TWO)
    _backend.write_model(models, "text", {"INPUT0": ("BYTES", [-1])})
    with Server(
        models,
        backend_directory=backend_directory,
        model_control_mode=ModelControlMode.EXPLICIT,
        startup_models=["*"],
    ) as server:
        yield server


def row(*numbers):
    """Return an input for `one`."""
    return {"INPUT0": np.array(numbers, np.float32)}


@pytest.mark.parametrize(
    "use",
    [
        lambda call, items: [call.infer(item) for item in items],
        lambda call, items: [i.result() for i in [call.submit(item) for item in items]],
        lambda call, items: list(call.map(items, in_flight=3)),
        lambda call, items: [asyncio.run(call.async_infer(item)) for item in items],
    ],
    ids=["infer", "submit", "map", "async_infer"],
)
def test_each_call_has_the_data_of_its_own_arrays(server, use):
    """And what was said when it was prepared goes with each of them."""
    call = server.model("one").prepare(row(0, 0), request_id="an id", outputs=["OUTPUT0"])
    responses = use(call, [row(i, -i) for i in range(9)])
    assert [r["OUTPUT0"].tolist() for r in responses] == [[i, -i] for i in range(9)]
    assert {r.request_id for r in responses} == {"an id"}


def test_parameters_go_with_every_call(server):
    """Also with those whose C structs are made later, for threads."""
    call = server.model("one").prepare(row(0), request_id="an id", parameters={"report": True})
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(call.infer(row(5)).parameters))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [call.infer(row(1)).parameters] * 4
    assert found[0]["id"] == "an id"


def test_as_completed(server):
    """In whichever order, each once."""
    call = server.model("one").prepare(row(0))
    responses = call.map((row(i) for i in range(50)), in_flight=7, ordered=False)
    assert sorted(r["OUTPUT0"].item() for r in responses) == list(range(50))


def test_a_mapping_of_any_kind_and_order_will_do(server):
    """Names say which array is which."""
    call = server.model("two").prepare(
        {"INPUT0": np.zeros(3, np.float32), "INPUT1": np.zeros(2, np.int32)}
    )
    ints, floats = np.array([7, 8], np.int32), np.array([1, 2, 3], np.float32)
    response = call.infer({"INPUT1": ints, "INPUT0": floats})
    assert response["OUTPUT0"].tolist() == [1, 2, 3]
    assert response["OUTPUT1"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        (row(1, 2, 3), InvalidArgumentError, r"for FP32\[2\] in C order, not .* float32 of shape"),
        ({"INPUT0": np.zeros(2)}, InvalidArgumentError, "not for an array of float64"),
        (
            {"INPUT0": np.zeros(4, np.float32)[::2]},
            InvalidArgumentError,
            "in C order, and this array is not",
        ),
        ({"INPUT0": [1.0, 2.0]}, TypeError, "takes numpy arrays, here FP32.*, not list"),
        ({}, InvalidArgumentError, "input 'INPUT0' is missing"),
        ({**row(1, 2), "INPUT9": 1}, InvalidArgumentError, "there is no input 'INPUT9'"),
        (Request(row(1, 2)), TypeError, "takes a mapping of arrays, not Request"),
        (5, TypeError, "takes a mapping of arrays, not int"),
    ],
)
def test_what_is_not_alike_is_refused(server, inputs, kind, message):
    """The message says for what it was prepared; the call can be made again."""
    call = server.model("one").prepare(row(0, 0))
    for method in (call.infer, call.submit, lambda item: next(call.map([item]))):
        with pytest.raises(kind, match=rf"model 'one'.*{message}"):
            method(inputs)
    errors = list(call.map([row(1, 1), inputs, row(2, 2)], return_errors=True))
    assert [type(e) for e in errors[1:2]] == [kind]
    assert errors[2]["OUTPUT0"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("model", "inputs", "keywords", "expected"),
    [
        ("text", {"INPUT0": [b"a"]}, {}, (InvalidArgumentError, "not BYTES like this")),
        ("one", {"INPUT1": np.zeros(2)}, {}, (InvalidArgumentError, "there is no input")),
        ("one", row(), {"outputs": ["x"]}, (InvalidArgumentError, "there is no output 'x'")),
        ("one", row(1), {"out": row(1)}, (InvalidArgumentError, "out= serves one inference")),
        ("one", row(1), {"trace": Trace}, (InvalidArgumentError, "trace= serves one inference")),
        ("one", [1], {}, (TypeError, "inputs must be a mapping")),
        ("one", row(1), {"time_out": 2}, (TypeError, "time_out")),
    ],
)
def test_what_cannot_be_prepared(server, model, inputs, keywords, expected):
    """It is told at once, before any inference."""
    kind, message = expected
    if keywords.get("trace"):
        keywords = {"trace": Trace()}
    with pytest.raises(kind, match=message):
        server.model(model).prepare(inputs, **keywords)


def test_a_reload_is_noticed(server, tmp_path):
    """The call goes on where it fits what the model takes now, or else says why not."""
    call = server.model("one").prepare(row(0, 0))
    _backend.write_model(tmp_path / "models", "one", {"INPUT0": ("FP32", [2])})
    server.load("one")
    assert call.infer(row(1, 2))["OUTPUT0"].tolist() == [1, 2]
    _backend.write_model(tmp_path / "models", "one", {"INPUT0": ("FP32", [3])})
    server.load("one")
    with pytest.raises(InvalidArgumentError, match=r"expected shape \[3\], got \[2\]"):
        call.infer(row(1, 2))


def test_the_timeout_is_each_calls_own(server, gate):
    """It begins with the call."""
    call = server.model("one").prepare(row(0), timeout=0.05, parameters={"hold": "start"})
    pending = [call.submit(row(i)) for i in range(2)]
    for inference in pending:
        with pytest.raises(TimeoutError, match=r"no result within 0.05 s"):
            inference.result()
    gate.open()


def test_a_prepared_call_keeps_no_example(server):
    """Nor does it look at what becomes of the keywords' own objects."""
    example = row(0)
    seen = weakref.ref(example["INPUT0"])
    parameters = {"text": "before"}
    call = server.model("one").prepare(example, parameters=parameters)
    del example
    gc.collect()
    assert seen() is None
    parameters["text"] = "after"
    pending = [call.submit(row(i)) for i in range(3)]
    for inference in pending:
        assert inference.result().parameters["text"] == "before"
