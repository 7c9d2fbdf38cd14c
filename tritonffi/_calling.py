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

A parameter of the name `context`, unless an input is called so, gets the batch's `Context` as a
keyword, whichever way the inputs come: ``def add(a, b, context)``, ``def add(inputs, *, context)``.
(Not if `functools.partial` has given it something already.)

Parameters with a default are never filled by their place. An optional input that a request does not
have is left out of a dict, and where the callable has a default for it; otherwise it is None.
"""

from __future__ import annotations

import functools
import inspect
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tritonffi._function_config import Declared
    from tritonffi._function_context import Context
    from tritonffi._tensor import Array

Call: TypeAlias = "Callable[[dict[str, Array], dict[str, Context]], object]"

_CONTEXT = "context"
_PLACES = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORDS = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Calling(NamedTuple):
    """
    How a callable is called.

    Attributes:
        call: Calls it with the arrays of one batch, and what else goes in as keywords: the context,
            or nothing.
        wants_context: Whether it has a parameter for the context.
    """

    call: Call
    wants_context: bool


def caller(function: Callable[..., object], inputs: Sequence[Declared], model: str) -> Calling:
    """
    Find out how the function is called with the arrays of one batch.

    Args:
        function: The user's.
        inputs: What the model takes, in order.
        model: "model 'x'", for errors.

    Raises:
        TypeError: It does not take these inputs.
    """
    names = [declared.name for declared in inputs]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in ones often show none
        return Calling(_by_place(function, names), wants_context=False)
    shown = signature
    context = signature.parameters.get(_CONTEXT)
    is_free = not (isinstance(function, functools.partial) and _CONTEXT in function.keywords)
    wants_context = (
        _CONTEXT not in names and context is not None and context.kind in _KEYWORDS and is_free
    )
    if wants_context:
        others = [p for name, p in signature.parameters.items() if name != _CONTEXT]
        signature = signature.replace(parameters=others)
    call = _call(function, inputs, signature)
    why = ""
    if isinstance(call, str):
        why = call
    elif not wants_context or _leaves_room(shown, signature, names):
        return Calling(call, wants_context)
    given = ", ".join(map(repr, names)) or "no inputs"
    raise TypeError(
        f"{model}: the function takes {shown}, but the model has {given}{why}: it must take "
        "its inputs by name, or all in one dict, or as many arguments as there are inputs"
    )


def _call(
    function: Callable[..., object], inputs: Sequence[Declared], signature: Signature
) -> Call | str:
    """Return what calls a function of this signature, or why it does not take the inputs."""
    names = [declared.name for declared in inputs]
    if _binds(signature, (), dict.fromkeys(names)):
        return _by_name(function, signature, inputs)
    places = _places(signature)
    if _wants_one(signature, names):
        return lambda arrays, context: function(arrays, **context)
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    fits = len(places) == len(names) or (takes_any and len(places) < len(names))
    mixed_up = [
        f"{name!r} would become {place!r}"
        for name, place in zip(names, places, strict=False)
        if place != name and place in names
    ]
    if fits and not mixed_up and _binds(signature, names):
        return _by_place(function, names)
    return f" ({', '.join(mixed_up)})" if mixed_up else ""


def _places(signature: Signature) -> list[str]:
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in _PLACES and parameter.default is parameter.empty
    ]


def _wants_one(signature: Signature, names: Sequence[str]) -> bool:
    """Tell whether the function gets all inputs in one dict."""
    places = _places(signature)
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    wants_one = len(places) == 1 and not takes_any and _binds(signature, places)
    return wants_one and (len(names) > 1 or places == ["inputs"])


def _leaves_room(shown: Signature, signature: Signature, names: Sequence[str]) -> bool:
    """Tell whether no input that comes by its place gets into the parameter of the context."""
    if _binds(signature, (), dict.fromkeys(names)):
        return True
    places = [None] if _wants_one(signature, names) else names
    return _binds(shown, places, {_CONTEXT: None})


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
        return lambda arrays, context: function(**{**nones, **arrays}, **context)
    return lambda arrays, context: function(**arrays, **context)


def _by_place(function: Callable[..., object], names: Sequence[str]) -> Call:
    return lambda arrays, context: function(*map(arrays.get, names), **context)


def _binds(
    signature: Signature, positional: Sequence[object], named: Mapping[str, object] | None = None
) -> bool:
    try:
        signature.bind(*positional, **(named or {}))
    except TypeError:
        return False
    return True
