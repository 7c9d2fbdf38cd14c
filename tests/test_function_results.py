# SPDX-License-Identifier: Apache-2.0
"""What callables may return beside outputs, and how requests are cut into calls."""

from __future__ import annotations

import numpy as np
import pytest
from _functions import BATCHED, Held, row, statistics

from tritonffi import InternalError, Result

PARAMETERS = {
    "text": "größe",
    "empty": "",
    "low": -(2**63),
    "high": 2**63 - 1,
    "yes": True,
    "no": False,
    "real": -1.5e300,
}


@pytest.mark.parametrize("outputs", [lambda x: {"y": x}, lambda x: x])
def test_a_result_may_have_parameters(load, outputs):
    """Of every type, beside outputs in each form."""
    response = load(lambda x: Result(outputs(x), PARAMETERS)).infer({"x": row(3)[0]})
    assert response["y"].tolist() == [3]
    assert response.parameters == PARAMETERS
    assert {name: type(value) for name, value in response.parameters.items()} == {
        name: type(value) for name, value in PARAMETERS.items()
    }


def test_a_result_without_parameters_is_its_outputs(load):
    """Nothing is added."""
    response = load(lambda x: Result({"y": x})).infer({"x": row(3)[0]})
    assert response["y"].tolist() == [3]
    assert response.parameters == {}


def test_parameters_are_for_all_requests_of_a_batch_or_for_each(load):
    """One mapping, or one for each request; some may be empty."""
    held = Held()

    def function(x, context):
        held(x)
        if x[0, 0] < 0:
            return Result(x, {"all": len(x)})
        return Result(
            x,
            [
                {} if r.rows.start == 1 else {"from": r.rows.start, "n": 1.5}
                for r in context.requests
            ],
        )

    model = load(function, **BATCHED)
    for sign, expected in (
        (-1, [{"all": 6}] * 3),
        (1, [{"from": 0, "n": 1.5}, {}, {"from": 3, "n": 1.5}]),
    ):
        held.may_go.clear()
        first = model.submit({"x": row(0)})
        held.wait()
        inputs = [np.full((n, 1), sign * n, np.float32) for n in (1, 2, 3)]
        pending = [model.submit({"x": x}) for x in inputs]
        held.may_go.set()
        first.result()
        held.wait()
        responses = [inference.result() for inference in pending]
        assert [response.parameters for response in responses] == expected
        for x, response in zip(inputs, responses, strict=True):
            np.testing.assert_array_equal(response["y"], x, strict=True)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"k": None}, "TypeError: the response: parameter 'k' must be a str, bool, int or float"),
        ({"k": 2**63}, "the response: parameter 'k' does not fit into 64 bits"),
        ({1: "v"}, "TypeError: the response: the name of a parameter must be a str, not int"),
        ({"k": "a\0b"}, "the response: parameter 'k' must not contain NUL"),
        ([{}, {}], "parameters for 2 responses, where the batch has 1 request"),
        ([], "parameters for 0 responses, where the batch has 1 request"),
        (["k"], "TypeError: parameters must be a mapping, not str"),
        ("k", "TypeError: parameters must be a mapping, not str"),
        (None, "TypeError: parameters must be a mapping, not NoneType"),
    ],
)
def test_wrong_parameters_are_an_error_in_words(load, parameters, text):
    """Nothing of the result is sent."""
    model = load(lambda x: Result(x, parameters))
    with pytest.raises(InternalError) as caught:
        model.infer({"x": row(1)[0]})
    assert text in str(caught.value)
    assert statistics(model)["fail"] == 1


def test_requests_need_not_be_stacked(load):
    """With `batch=False` each request is a call with its own rows, also out of Triton's batch."""
    held = Held()
    seen = []

    def function(x, context):
        held(x)
        seen.append((context.request.request_id, x.shape, context.request.rows))
        return Result(x, {"id": context.request.request_id})

    model = load(function, batch=False, **BATCHED)
    first = model.submit({"x": row(0, 0)})
    held.wait()
    pending = [
        model.submit({"x": np.full((n, 2), n, np.float32)}, request_id=f"{n}") for n in (2, 1, 3)
    ]
    held.may_go.set()
    first.result()
    for n, inference in zip((2, 1, 3), pending, strict=True):
        response = inference.result()
        np.testing.assert_array_equal(response["y"], np.full((n, 2), n, np.float32), strict=True)
        assert response.parameters == {"id": f"{n}"}
    assert seen == [
        ("", (1, 2), slice(0, 1)),
        ("2", (2, 2), slice(0, 2)),
        ("1", (1, 2), slice(0, 1)),
        ("3", (3, 2), slice(0, 3)),
    ]
    assert statistics(model)["sizes"] == {1: 2, 2: 1, 3: 1}


def test_one_request_of_a_call_may_fail_without_the_others(load):
    """With `batch=False` an exception is the error of one request alone."""
    held = Held()

    def function(x):
        held(x)
        if (x < 0).any():
            raise ValueError("negative")
        return x

    model = load(function, batch=False, **BATCHED)
    first = model.submit({"x": row(1)})
    held.wait()
    pending = [model.submit({"x": row(value)}) for value in (2, -3, 4)]
    held.may_go.set()
    assert first.result()["y"].item() == 1
    assert pending[0].result()["y"].item() == 2
    with pytest.raises(InternalError, match="ValueError: negative"):
        pending[1].result()
    assert pending[2].result()["y"].item() == 4
    held.calls.clear()


def test_batch_is_true_or_false(load):
    """Other values are a TypeError."""
    with pytest.raises(TypeError, match="model 'function': batch must be a bool, not int"):
        load(lambda x: x, batch=0)
    load.names.clear()
