# SPDX-License-Identifier: Apache-2.0
"""How callables get their inputs: by name, in one dict, or by place. No server is needed."""

import functools
import operator

import numpy as np
import pytest

from tritonffi._calling import caller
from tritonffi._function_config import Declared


def declared(*names, optional=()):
    """Inputs of these names."""
    return [Declared(name, "FP32", 11, (1,), name in optional) for name in names]


def call(function, arrays, optional=()):
    """Call a function with the inputs that it would get; `optional` are those left out."""
    inputs = declared(*arrays, *optional, optional=optional)
    return caller(function, inputs, "model 'm'").call(dict(arrays), {})


AB = {"a": 1, "b": 2}
DOTTED = {"input.1": 1, "input.2": 2}


class Adder:
    """A callable object with methods of all kinds."""

    def __call__(self, a, b):
        """By name."""
        return (a, b)

    def method(self, b, a):
        """By name, in another order."""
        return (a, b)


@pytest.mark.parametrize(
    ("function", "arrays", "expected"),
    [
        (lambda a, b: (a, b), AB, (1, 2)),
        (lambda b, a: (a, b), AB, (1, 2)),
        (lambda a, b, scale=3: (a, b, scale), AB, (1, 2, 3)),
        (lambda *, a, b: (a, b), AB, (1, 2)),
        (lambda **inputs: inputs, AB, AB),
        (lambda a, **others: (a, others), AB, (1, {"b": 2})),
        (Adder(), AB, (1, 2)),
        (Adder().method, AB, (1, 2)),
        (functools.partial(lambda scale, a, b: (scale, a, b), 3), AB, (3, 1, 2)),
        (functools.partial(lambda a, b, scale: (scale, a, b), scale=3), AB, (3, 1, 2)),
        (lambda **inputs: inputs, DOTTED, DOTTED),
        (lambda inputs: inputs, {"x": 1}, {"x": 1}),
        (lambda inputs: inputs, {"inputs": 1}, 1),
    ],
)
def test_inputs_come_by_name_where_the_function_takes_their_names(function, arrays, expected):
    """Keywords win over everything else, whatever the order and the kind of callable."""
    assert call(function, arrays) == expected


@pytest.mark.parametrize("function", [lambda inputs: inputs, lambda x: x, lambda x, scale=2: x])
def test_a_function_of_one_argument_gets_several_inputs_in_a_dict(function):
    """The dict has all inputs under their names, which need not be identifiers."""
    assert call(function, DOTTED) == DOTTED
    assert call(function, AB) == AB


@pytest.mark.parametrize(
    ("function", "arrays", "expected"),
    [
        (lambda x: x, {"input.1": 1}, 1),
        (lambda x, y: (x, y), DOTTED, (1, 2)),
        (lambda x, y, scale=3: (x, y, scale), DOTTED, (1, 2, 3)),
        (lambda *arrays: arrays, DOTTED, (1, 2)),
        (lambda first, *rest: (first, rest), DOTTED, (1, (2,))),
        (operator.sub, DOTTED, -1),
        (np.subtract, AB, -1),
        (max, AB, 2),
    ],
)
def test_other_names_come_in_the_declared_order(function, arrays, expected):
    """As many arguments as inputs, or any number of them, are filled by place."""
    assert call(function, arrays) == expected


def test_a_model_without_inputs_calls_a_function_without_arguments():
    """Nothing is passed."""
    assert call(lambda: 7, {}) == 7


@pytest.mark.parametrize(
    ("function", "arrays", "reason"),
    [
        (lambda: 0, AB, "takes ()"),
        (lambda a, b, c: 0, AB, "takes (a, b, c)"),
        (lambda b, x: 0, AB, "'a' would become 'b'"),
        (lambda x, *, scale: 0, {"y": 1}, "takes (x, *, scale)"),
        (lambda a: 0, {}, "no inputs"),
        (lambda context, x: 0, {"input.1": 1}, "takes (context, x)"),
        (lambda context, /, x: 0, {"x": 1}, "takes (context, /, x)"),
    ],
)
def test_a_function_that_does_not_take_the_inputs_is_refused(function, arrays, reason):
    """The error shows the signature and the inputs, and inputs are never mixed up."""
    with pytest.raises(TypeError, match="model 'm': the function takes") as caught:
        call(function, arrays)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("function", "arrays", "expected"),
    [
        (lambda a, b, context: (a, b, context), AB, (1, 2, "context")),
        (lambda context, b, a: (a, b, context), AB, (1, 2, "context")),
        (lambda inputs, context: (inputs, context), DOTTED, (DOTTED, "context")),
        (lambda context, inputs: (inputs, context), {"inputs": 1}, (1, "context")),
        (lambda x, y, context: (x, y, context), DOTTED, (1, 2, "context")),
        (lambda x, y, *, context=None: (x, y, context), DOTTED, (1, 2, "context")),
        (lambda *arrays, context: (arrays, context), DOTTED, ((1, 2), "context")),
        (lambda context: context, {}, "context"),
    ],
)
def test_a_parameter_of_that_name_gets_the_context(function, arrays, expected):
    """As a keyword, beside the inputs."""
    call, wants_context = caller(function, declared(*arrays), "model 'm'")
    assert wants_context
    assert call(dict(arrays), {"context": "context"}) == expected


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (lambda a, b: 0, AB),
        (lambda **inputs: 0, AB),
        (lambda context: 0, {"context": 1}),
        (lambda *context: 0, DOTTED),
        (functools.partial(lambda a, b, context: 0, context=3), AB),
        (max, AB),
    ],
)
def test_other_callables_get_no_context(function, arrays):
    """An input of that name is one, and keywords of any name are inputs."""
    assert not caller(function, declared(*arrays), "model 'm'").wants_context


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: (a, b), (1, None)),
        (lambda a, b=5: (a, b), (1, 5)),
        (lambda **inputs: inputs, {"a": 1}),
        (lambda inputs: inputs, {"a": 1}),
        (lambda x, y: (x, y), (1, None)),
    ],
)
def test_an_optional_input_that_is_missing_is_none_or_left_out(function, expected):
    """The function's own default holds where it has one."""
    assert call(function, {"a": 1}, optional=("b",)) == expected
