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

from tritonffi import InternalError, Server, UnsupportedError
from tritonffi._reader import ModelReader

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


ECHO = {
    "backend": "tffitest",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
}


@pytest.fixture
def wrap(server):
    """Loads ensembles of one model, of which they have the input and the output."""
    names = {}

    def load(name, part, **more):
        maps = {"input_map": {"INPUT0": "INPUT0"}, "output_map": {"OUTPUT0": "OUTPUT0"}}
        steps = {"step": [{"model_name": part, "model_version": -1, **maps}]}
        more = {"platform": "ensemble", "ensemble_scheduling": steps, **more}
        names[name] = server.load(name, {**ECHO, "backend": "", **more})
        return names[name]

    yield load
    for name in reversed(names):
        server.unload(name)


def answer(model, *row):
    """Ask a model."""
    return model.infer({"INPUT0": row})["OUTPUT0"].tolist()


def step(load, name, function, **options):
    """Load a function as a step of ensembles, by itself without a cache."""
    keywords = {"inputs": {"INPUT0": FIXED}, "outputs": {"OUTPUT0": FIXED}, "config": {}}
    load(function, name=name, **{**keywords, **options})


WORDS = (
    "^ensemble '{}': config: 'response_cache': its part 'f' is a function: Triton's cache would go "
    "on with its answers when another one is loaded in its place; give 'response_cache' to the "
    "parts$"
).format


def test_an_ensemble_with_a_cache_has_no_functions(load, wrap, server):
    """It has one version, with whatever its parts are loaded."""
    step(load, "f", lambda x: x + 1)
    with pytest.raises(UnsupportedError, match=WORDS("e")):
        wrap("e", "f", **CACHED)
    inner = wrap("inner", "f")
    with pytest.raises(UnsupportedError, match=WORDS("e")):
        wrap("e", "inner", **CACHED)
    assert "e" not in [model.name for model in server.models()]
    assert answer(inner, 1.0, 2.0) == [2, 3]
    outer = wrap("outer", "inner", response_cache={"enable": False})
    assert answer(outer, 1.0, 2.0) == [2, 3]
    step(load, "f", lambda x: x + 100)
    assert answer(outer, 1.0, 2.0) == [101, 102]
    with pytest.raises(UnsupportedError, match=WORDS("inner")):
        wrap("inner", "f", **CACHED)
    # What was refused has changed nothing.
    assert answer(outer, 1.0, 2.0) == [101, 102]


def test_without_a_cache_the_field_says_nothing(caplog):
    """Triton ignores it there: each answer is a fresh one, and nothing is refused or warned of."""
    spec = {"inputs": {"INPUT0": ("FP32", [-1, -1])}, "outputs": {"OUTPUT0": ("FP32", [-1, -1])}}
    tensor = {"data_type": "TYPE_FP32", "dims": [-1, -1]}
    maps = {"input_map": {"INPUT0": "INPUT0"}, "output_map": {"OUTPUT0": "OUTPUT0"}}
    whole = {
        "platform": "ensemble",
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
        "ensemble_scheduling": {"step": [{"model_name": "f", "model_version": -1, **maps}]},
        **CACHED,
    }
    with Server() as server:
        for more in (1, 100):
            server.load_function("f", lambda x, more=more: x + more, **spec)
            model = server.load("e", whole)
            assert answer(model, [1.0, 2.0]) == [[1 + more, 2 + more]]
        server.load_function("f", lambda x: x * 3, **spec)
        assert answer(model, [1.0, 2.0]) == [[3, 6]]
    assert "response cache" not in caplog.text


def test_parts_that_ensembles_share_are_read_once(load, server, monkeypatch):
    """However many ways lead there, which double with each level."""
    step(load, "f", lambda x: x + 1)
    asked = []
    read = ModelReader._own_spec

    def counted(reader):
        asked.append(reader._name)
        return read(reader)

    def whole(first, second):
        pairs = ((first, "INPUT0", "between"), (second, "between", "OUTPUT0"))
        steps = [
            {
                "model_name": part,
                "model_version": -1,
                "input_map": {"INPUT0": takes},
                "output_map": {"OUTPUT0": gives},
            }
            for part, takes, gives in pairs
        ]
        return {
            **ECHO,
            "backend": "",
            "platform": "ensemble",
            "ensemble_scheduling": {"step": steps},
        }

    names = ["e1", "o1", "e2", "o2", "e3", "o3"]
    try:
        server.load("e1", whole("f", "f"))
        server.load("o1", whole("f", "f"))
        for depth in (2, 3):
            for kind in "eo":
                server.load(f"{kind}{depth}", whole(f"e{depth - 1}", f"o{depth - 1}"))
        monkeypatch.setattr(ModelReader, "_own_spec", counted)
        assert answer(server.model("e3"), 1.0, 2.0) == [9, 10]
        assert sorted(asked) == ["e1", "e2", "e3", "f", "o1", "o2"]
    finally:
        for name in reversed(names):
            server.unload(name)


def test_an_ensemble_of_a_repository_has_neither(load, server, tmp_path):
    """Here with a part that is an ensemble of functions."""
    step(load, "f", lambda x: x + 1)
    tensor = "{{ name: '{}' data_type: TYPE_FP32 dims: 2 }}".format
    for name, part, enable in (("all", "part", "t"), ("part", "f", "false")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(
            f"platform: 'ensemble' response_cache {{ enable: {enable} }} "
            f"input {tensor('INPUT0')} output {tensor('OUTPUT0')} "
            f"ensemble_scheduling {{ step {{ model_name: '{part}' model_version: -1 "
            "input_map { key: 'INPUT0' value: 'INPUT0' } "
            "output_map { key: 'OUTPUT0' value: 'OUTPUT0' } } }"
        )
    server.register_repository(tmp_path)
    try:
        with pytest.raises(UnsupportedError, match=WORDS("all")):
            server.load("all")
        assert answer(server.load("part"), 1.0, 2.0) == [2, 3]
        server.unload("part")
    finally:
        server.unregister_repository(tmp_path)


def test_a_function_in_the_place_of_a_part_gets_no_answers_of_the_part(load, wrap, server):
    """In whatever order the models come; also where the ensemble is a part."""
    server.load("f", ECHO)
    try:
        cached = wrap("cached", "f", **CACHED)
        models = [cached, wrap("outer", "cached")]
        for model in models * 2:
            assert answer(model, 1.0, 2.0) == [1, 2]
        assert cached.statistics().cache_hit.count == 3
        step(load, "f", lambda x: x + 1)
        for model in models:
            with pytest.raises(UnsupportedError, match=WORDS("cached")):
                answer(model, 1.0, 2.0)
            with pytest.raises(UnsupportedError, match=WORDS("cached")):
                next(iter(model.map([{"INPUT0": [1.0, 2.0]}])))
        server.load("f", ECHO)
        for model in models:
            assert answer(model, 3.0, 4.0) == [3, 4]
    finally:
        server.unload("f")


def test_an_ensemble_may_have_parts_with_a_cache(load, wrap):
    """A function that is loaded anew answers itself, and only once what is asked again."""
    for more in (1, 100):
        calls = []

        def add(x, calls=calls, more=more):
            calls.append(x.tolist())
            return x + more

        step(load, "f", add, config=CACHED)
        model = wrap("e", "f")
        for _ in range(3):
            assert answer(model, 1.0, 2.0) == [1 + more, 2 + more]
        assert calls == [[1, 2]]
