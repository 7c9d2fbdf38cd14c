# SPDX-License-Identifier: Apache-2.0
"""The model config of a function model, and what is refused before Triton sees it."""

import functools

import numpy as np
import pytest

from tritonffi import InvalidArgumentError, UnsupportedError
from tritonffi._function_config import check_model_name, function_config

X = {"x": ("FP32", [-1])}
Y = {"y": ("BYTES", [2, 3])}
DEEP = functools.reduce(lambda inner, _: [inner], range(20_000), [])


def test_the_config_holds_what_was_declared_and_the_defaults():
    """One instance on the CPU; the token is the function's."""
    made = function_config("m", X, Y, 8, {"dynamic_batching": {}})
    assert made.with_token(7) == {
        "name": "m",
        "backend": "tritonffi",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_STRING", "dims": [2, 3]}],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "dynamic_batching": {},
        "parameters": {"tritonffi.token": {"string_value": "7"}},
    }
    assert made.is_batching
    assert made.instances == 1


def test_the_users_parameters_and_input_settings_are_merged():
    """What the user adds stands beside what is declared."""
    made = function_config(
        "m",
        X,
        Y,
        0,
        {
            "parameters": {"k": {"string_value": "v"}},
            "input": [{"name": "x", "optional": True, "reshape": {"shape": [2, -1]}}],
        },
    )
    config = made.with_token(7)
    assert config["parameters"] == {
        "k": {"string_value": "v"},
        "tritonffi.token": {"string_value": "7"},
    }
    assert config["input"][0]["optional"] is True
    assert made.inputs[0].optional
    assert made.inputs[0].shape == (2, -1)
    assert not made.is_batching


@pytest.mark.parametrize(
    ("groups", "instances"),
    [
        ([{"count": 3}], 3),
        ([{"count": 2}, {"kind": "KIND_CPU"}], 3),
        ([{"count": 2, "kind": "KIND_GPU", "gpus": [0, 1]}], 4),
        ([], 1),
    ],
)
def test_the_instances_of_all_groups_are_counted(groups, instances):
    """Each instance is one worker."""
    assert function_config("m", X, Y, 0, {"instance_group": groups}).instances == instances


@pytest.mark.parametrize(
    ("samples", "calls"),
    [
        ([], 0),
        ([{"batch_size": 1}], 1),
        ([{"batch_size": 8, "count": 0}], 1),
        ([{"batch_size": 1, "count": 3}, {"batch_size": 2}], 4),
        ([{"batch_size": 0, "count": 3}, {}], 0),
    ],
)
def test_the_calls_of_the_warm_up_are_counted_as_triton_does(samples, calls):
    """A sample without rows is skipped; one without a count runs once."""
    assert function_config("m", X, Y, 8, {"model_warmup": samples}).warm_up_calls == calls


def test_sequence_controls_are_inputs_of_the_function():
    """They come after the declared ones, with the data type of their values."""
    controls = [
        {
            "name": "START",
            "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}],
        },
        {
            "name": "ID",
            "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}],
        },
    ]
    made = function_config("m", X, Y, 1, {"sequence_batching": {"control_input": controls}})
    assert [(declared.name, declared.datatype, declared.shape) for declared in made.inputs] == [
        ("x", "FP32", (-1,)),
        ("START", "FP32", (1,)),
        ("ID", "UINT64", (1,)),
    ]


def test_the_version_policy_may_be_what_it_is_anyway():
    """As a config that was copied says."""
    policy = {"latest": {"num_versions": 1}}
    made = function_config("m", X, Y, 0, {"version_policy": policy})
    assert made.config["version_policy"] == policy


def test_numpy_integers_are_dimensions():
    """Whatever is an index is one; the config has plain ints."""
    made = function_config("m", {"x": ("FP32", (np.int64(4),))}, Y, 0, None)
    assert made.config["input"][0]["dims"] == [4]
    assert type(made.config["input"][0]["dims"][0]) is int


@pytest.mark.parametrize("name", ["m", "a.b", "with space", "größe", "-", "..."])
def test_a_plain_name_is_taken(name):
    """Whatever can be a folder can be a model."""
    assert check_model_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "x" * 256])
def test_a_name_that_is_no_plain_folder_is_refused(name):
    """It would leave the repository, or be nothing."""
    with pytest.raises(InvalidArgumentError, match="one plain component of a path"):
        check_model_name(name)


def test_a_name_that_is_no_text_is_refused():
    """A TypeError, before C is called."""
    with pytest.raises(TypeError, match="must be a str, not bytes"):
        check_model_name(b"m")
    with pytest.raises(ValueError, match="NUL"):
        check_model_name("a\0b")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"inputs": [("x", "FP32")]}, TypeError, "inputs must be a dict"),
        ({"inputs": {1: ("FP32", [1])}}, TypeError, "name of an input must be a str, not int"),
        ({"inputs": {"": ("FP32", [1])}}, InvalidArgumentError, "input must not be empty"),
        ({"inputs": {"x": "FP32"}}, TypeError, "input 'x': expected (data type, dimensions)"),
        ({"inputs": {"x": ("FP32",)}}, TypeError, "input 'x': expected (data type, dimensions)"),
        ({"inputs": {"x": (np.float32, [1])}}, TypeError, "expected (data type, dimensions)"),
        ({"inputs": {"x": ("FP32", 1)}}, TypeError, "expected (data type, dimensions)"),
        ({"inputs": {"x": ("FP32", "1")}}, TypeError, "expected (data type, dimensions)"),
        ({"inputs": {"x": ("FP32", [1.0])}}, TypeError, "dimensions must be ints"),
        ({"inputs": {"x": ("FP33", [1])}}, InvalidArgumentError, "input 'x': no data type 'FP33'"),
        ({"inputs": {"x": ("FP32", [])}}, InvalidArgumentError, "without dimensions; take [1]"),
        ({"inputs": {"x": ("FP32", [0])}}, InvalidArgumentError, "at least 1, or -1"),
        ({"outputs": {"y": ("FP32", [-2])}}, InvalidArgumentError, "output 'y': a dimension"),
        ({"outputs": {}}, InvalidArgumentError, "needs at least one output"),
        ({"max_batch_size": -1}, InvalidArgumentError, "max_batch_size must be 0 to"),
        ({"max_batch_size": 2**31}, InvalidArgumentError, "max_batch_size must be 0 to"),
        ({"max_batch_size": True}, TypeError, "max_batch_size must be an int, not bool"),
        ({"max_batch_size": 8.0}, TypeError, "max_batch_size must be an int, not float"),
        ({"config": []}, TypeError, "config must be a dict, not list"),
        ({"config": {"a": object()}}, TypeError, "config must be of JSON's types"),
        ({"config": {"a": DEEP}}, TypeError, "config must be of JSON's types"),
        ({"config": {"backend": "python"}}, InvalidArgumentError, "'backend' is not for config"),
        ({"config": {"max_batch_size": 4}}, InvalidArgumentError, "'max_batch_size' is not for"),
        ({"config": {"instanceGroup": []}}, InvalidArgumentError, "written as in config.pbtxt"),
        ({"config": {"instance_group": {}}}, TypeError, "'instance_group' must be a list"),
        ({"config": {"instance_group": [{"count": 0}]}}, InvalidArgumentError, "at least 1"),
        ({"config": {"parameters": []}}, TypeError, "'parameters' must be a dict"),
        (
            {"config": {"model_warmup": [{"name": "w", "batch_size": 2}]}},
            InvalidArgumentError,
            "model_warmup 'w': batch_size: 2: expected at most 1: max_batch_size is 0",
        ),
        (
            {"config": {"model_warmup": [{"batch_size": "1"}]}},
            TypeError,
            "batch_size and count must be ints, not '1'",
        ),
        (
            {"config": {"parameters": {"tritonffi.token": {"string_value": "1"}}}},
            InvalidArgumentError,
            "'tritonffi.token' is not for config",
        ),
        ({"config": {"input": [{"name": "q"}]}}, InvalidArgumentError, "no input 'q' is declared"),
        (
            {"config": {"output": [{"name": "y", "dims": [1]}]}},
            InvalidArgumentError,
            "output 'y': 'dims' is declared already",
        ),
        ({"config": {"batch_input": []}}, UnsupportedError, "'batch_input' asks for"),
        *[
            (
                {"config": {"version_policy": policy}},
                UnsupportedError,
                "'version_policy': a function",
            )
            for policy in ({"all": {}}, {"specific": {"versions": [1]}}, {}, None)
        ],
        (
            {"config": {"version_policy": {"latest": {"num_versions": 2}}}},
            UnsupportedError,
            "'version_policy': a function has one version at a time, the latest",
        ),
        (
            {"config": {"model_transaction_policy": {"decoupled": True}}},
            InvalidArgumentError,
            "a function that returns gives one response to a request",
        ),
        (
            {"config": {"sequence_batching": {"state": [{}]}}},
            UnsupportedError,
            "keeps the state of its sequences itself",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_words(changes, error, message):
    """The error names the model, and what is wrong with it."""
    arguments = {"inputs": X, "outputs": Y, "max_batch_size": 0, "config": None, **changes}
    with pytest.raises(error) as caught:
        function_config("m", **arguments)
    assert "model 'm'" in str(caught.value)
    assert message in str(caught.value)
