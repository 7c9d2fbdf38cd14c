# SPDX-License-Identifier: Apache-2.0
"""
How a callable gets the inputs of a function model.

It is decided once, when the model is made. The inputs come

- by name, if each input can be passed as a keyword: ``def add(a, b)``, or ``def add(**inputs)``;
- all in one dict, if it wants one argument and that is called `inputs`, or there are several
  inputs: ``def add(inputs)``;
- in the declared order, if it wants as many arguments as there are inputs, or takes ``*arrays``.
  That is the way for names that are no identifiers, such as ``input.1``, and for callables that
  show no signature. It is refused where an input would get into a parameter with the name of
  another one.

Parameters with a default are never filled by their place. An optional input that a request does not
have is left out of a dict, and where the callable has a default for it; otherwise it is None.
"""

from __future__ import annotations

import inspect
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, TypeAlias

from tritonffi._errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tritonffi._function_config import Declared
    from tritonffi._tensor import Array

Call: TypeAlias = "Callable[[dict[str, Array]], object]"

_PLACES = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_OTHER_KINDS: tuple[tuple[Callable[[object], bool], str], ...] = (
    (inspect.isgeneratorfunction, "a generator function"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.iscoroutinefunction, "a coroutine function"),
)


def caller(function: Callable[..., object], inputs: Sequence[Declared], model: str) -> Call:
    """
    Return what calls the function with the arrays of one batch.

    Args:
        function: The user's.
        inputs: What the model takes, in order.
        model: "model 'x'", for errors.

    Raises:
        TypeError: It is not callable, or does not take these inputs.
        UnsupportedError: It does not return its results.
    """
    if not callable(function):
        raise TypeError(f"{model}: the function must be callable, not {type(function).__name__}")
    for is_of_kind, kind in _OTHER_KINDS:
        if is_of_kind(function):
            raise UnsupportedError(
                f"{model}: the function is {kind}; it must return its results when it is called"
            )
    names = [declared.name for declared in inputs]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in ones often show none
        return _by_place(function, names)
    if _binds(signature, (), dict.fromkeys(names)):
        return _by_name(function, signature, inputs)
    places = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in _PLACES and parameter.default is parameter.empty
    ]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    wants_one = len(places) == 1 and not takes_any and _binds(signature, places)
    if wants_one and (len(names) > 1 or places == ["inputs"]):
        return function
    fits = len(places) == len(names) or (takes_any and len(places) < len(names))
    mixed_up = [
        f"{name!r} would become {place!r}"
        for name, place in zip(names, places, strict=False)
        if place != name and place in names
    ]
    if fits and not mixed_up and _binds(signature, names):
        return _by_place(function, names)
    given = ", ".join(map(repr, names)) or "no inputs"
    why = f" ({', '.join(mixed_up)})" if mixed_up else ""
    raise TypeError(
        f"{model}: the function takes {signature}, but the model has {given}{why}: it must take "
        "its inputs by name, or all in one dict, or as many arguments as there are inputs"
    )


def _by_name(
    function: Callable[..., object], signature: Signature, inputs: Sequence[Declared]
) -> Call:
    nones: Mapping[str, None] = {
        declared.name: None
        for declared in inputs
        if declared.optional
        and declared.name in signature.parameters
        and signature.parameters[declared.name].default is Parameter.empty
    }
    if nones:
        return lambda arrays: function(**{**nones, **arrays})
    return lambda arrays: function(**arrays)


def _by_place(function: Callable[..., object], names: Sequence[str]) -> Call:
    return lambda arrays: function(*map(arrays.get, names))


def _binds(
    signature: Signature, positional: Sequence[object], named: Mapping[str, object] | None = None
) -> bool:
    try:
        signature.bind(*positional, **(named or {}))
    except TypeError:
        return False
    return True
