# SPDX-License-Identifier: Apache-2.0
"""Triton's response cache, which looks at less than makes a response: no wrong answer comes of it.

The key that Triton stores a response under is the model's name, its version, and the inputs' names
and bytes.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
from _functions import NAME, Loader

from tritonffi import InternalError, UnsupportedError

CACHED = {"response_cache": {"enable": True}}
FIXED = ("FP32", [2])


@pytest.fixture
def load(server):
    """Loads callables of `x` that return `y` and `z` as models whose responses are cached."""
    loader = Loader(server)

    def load(function, **options):
        given = {"x": FIXED, "outputs": {"y": FIXED, "z": FIXED}, "config": CACHED, **options}
        return loader(function, **given)

    yield load
    loader.unload()


def both(x):
    """Give the input and its double."""
    return {"y": x, "z": x * 2}


def test_a_failure_does_not_become_an_answer(load, server):
    """Triton stores a response without outputs for it, and gives that to all who ask again."""

    def fail(x):
        raise ValueError("not these")

    model = load(fail)
    with pytest.raises(InternalError, match="ValueError: not these"):
        model.infer({"x": [1.0, 2.0]})
    for keywords in ({}, {"outputs": ["y"]}, {"labels": {"y": 1}}):
        with pytest.raises(InternalError, match="no outputs; where a request failed before"):
            model.infer({"x": [1.0, 2.0]}, **keywords)
    out = np.zeros(2, np.float32)
    with pytest.raises(InternalError, match="no outputs; where a request failed before"):
        model.infer({"x": [1.0, 2.0]}, out={"y": out})
    assert server.model(NAME).statistics().cache_hit.count == 4


def test_a_request_for_few_outputs_leaves_none_out_for_others(load):
    """What one asks for is stored for all, so all are asked for."""
    model = load(both)
    assert model.infer({"x": [1.0, 3.0]}, outputs=["y"])["y"].tolist() == [1, 3]
    assert model.infer({"x": [1.0, 3.0]}, outputs=["z"])["z"].tolist() == [2, 6]
    response = model.infer({"x": [1.0, 3.0]})
    assert {name: array.tolist() for name, array in response.items()} == {"y": [1, 3], "z": [2, 6]}
    assert model.statistics().cache_hit.count == 2


@pytest.mark.parametrize("unloads", [False, True])
def test_a_new_function_does_not_answer_for_the_old_one(load, server, unloads):
    """It has a version of its own; and one that is not cached keeps the last number."""
    for factor in (1, 10, 100):
        model = load(lambda x, factor=factor: {"y": x * factor, "z": x})
        for _ in range(2):
            response = model.infer({"x": [1.0, 4.0]})
            assert response["y"].tolist() == [factor, 4 * factor]
        if unloads:
            server.unload(NAME)
    last = response.model_version
    assert load(both, config={}).infer({"x": [1.0, 4.0]}).model_version == last
    assert [m.version for m in server.models() if m.name == NAME and m.state == "READY"] == [last]


@pytest.mark.parametrize(
    ("dims", "max_batch_size"), [([-1, -1], 0), ([-1], 4), ([-1, 2], 4), ([2, -1, -1], 0)]
)
def test_inputs_of_which_the_bytes_do_not_tell_the_shape_are_refused(load, dims, max_batch_size):
    """Four numbers in a row and two rows of two would be the same to the cache."""
    with pytest.raises(UnsupportedError, match="does not look at shapes"):
        load(both, x=("FP32", dims), max_batch_size=max_batch_size)


def test_one_dimension_may_be_free(load):
    """Then the bytes tell the shape."""
    model = load(both, x=FIXED, max_batch_size=8)
    for rows in (1, 2, 4, 2, 1):
        shape = (rows, 2)
        assert model.infer({"x": np.zeros(shape, np.float32)})["y"].shape == shape


def test_other_models_are_warned_of(server, caplog):
    """Nobody but their maker can say whether shapes of the same bytes ever come to them."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1, -1]}
    config = {
        "backend": "tffitest",
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
        **CACHED,
    }
    model = server.load("free", config)
    try:
        with caplog.at_level(logging.WARNING, "tritonffi"):
            for _ in range(2):
                model.infer({"INPUT0": [[1.0, 2.0]]})
        (record,) = (r for r in caplog.records if r.name == "tritonffi")
        assert "does not look at shapes: " in record.getMessage()
        assert "'INPUT0'" in record.getMessage()
    finally:
        server.unload("free")
