# SPDX-License-Identifier: Apache-2.0
"""
What is in lists of numbers, nested at will, before numpy makes an array of them.

numpy promotes what it finds to one dtype and drops masks, so its array does not tell any more what
the leaves were. They are looked at here, at the speed of C where all are Python's own numbers.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from tritonffi._errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Shape = tuple[int, ...]

ARRAY_PROTOCOLS = ("__array_interface__", "__array_struct__", "__array__")
#: What reading an array of somebody else's raises where that fails. Anything else is passed on as
#: it is: a signal handler's exception is none of the array's.
READING_ERRORS = (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError)
PLAIN_NUMBERS = frozenset((bool, int, float))
NESTED = (list, tuple, range)
# The most dimensions that numpy has; before numpy 2 there are fewer, and they have a name.
DEEPEST: int = getattr(np, "MAXDIMS", 64)

_LISTS = frozenset(NESTED)
# So many leaves are worth a quick look at all of them at once.
_MANY = 32


def too_deep(what: str) -> InvalidArgumentError:
    """Say that lists have more levels than numpy has dimensions: without end, perhaps."""
    return InvalidArgumentError(
        f"{what}: lists nested more than {DEEPEST} deep, or one that contains itself"
    )


def leaf_types(value: object, what: str) -> set[type]:
    """
    Return the types of a value's leaves; `int` may stand for bools too, and `float` for both.

    Raises:
        InvalidArgumentError: the lists are too deep.
    """
    found: set[type] = set()
    level: list[object] = [value]
    for _ in range(DEEPEST + 1):
        types = set(map(type, level))
        if types <= PLAIN_NUMBERS:
            return found | types
        lists: list[list[object]] = level  # type: ignore[assignment]  # after the next lines
        if not types <= _LISTS:
            nested = [kind for kind in types if issubclass(kind, NESTED)]
            found |= types.difference(nested)
            if not nested:
                return found
            lists = [item for item in level if isinstance(item, NESTED)]  # type: ignore[misc]
        number = _kind_of_numbers(lists)
        if number is not None:
            return found | {number}
        if len(lists) > 1:  # each once: one that contains itself twice would double every time
            lists = list(dict(zip(map(id, lists), lists, strict=True)).values())
        level = list(chain.from_iterable(lists))
    raise too_deep(what)


def _kind_of_numbers(lists: list[list[object]]) -> type | None:
    """
    Return `int` or `float` where many items seem all to be Python's own numbers of at most that.

    Their sum tells it: one of floats, ints and bools is a float or an int, and takes less time
    than to ask each for its type. Whatever numpy or another library of arrays adds has a type of
    its own; a number that is none of Python's own, like a Fraction, makes numpy's array one of
    objects.
    """
    first = lists[0]
    if len(lists) * len(first) < _MANY or type(first[0]) not in PLAIN_NUMBERS:
        return None
    numbers: Iterable[float] = chain.from_iterable(lists)  # type: ignore[arg-type]  # as it seems
    try:
        with np.errstate(all="ignore"):
            kind = type(sum(numbers))
    except Exception:  # noqa: BLE001 -- whatever an item does when it is added, it is no number
        return None
    return kind if kind in PLAIN_NUMBERS else None


def leaves(value: object, index: Shape = ()) -> Iterator[tuple[Shape, object]]:
    """Give every leaf with its index, in row order."""
    if isinstance(value, NESTED):
        for i, item in enumerate(value):
            yield from leaves(item, (*index, i))
    else:
        yield index, value


def check_first_path(value: object, what: str) -> None:
    """
    Refuse lists, and arrays in them, that are too deep where one follows their first items.

    Raises:
        InvalidArgumentError: they are.
    """
    depth = 0
    while depth <= DEEPEST:
        if isinstance(value, np.ndarray):
            if not value.ndim or not value.size:
                return
            depth += value.ndim
            value = value.item(0)
        elif isinstance(value, (list, tuple)) and value:
            depth += 1
            value = value[0]
        else:
            return
    raise too_deep(what)


def offers(value: object, *protocols: str) -> bool:
    """Whether an object has one of some attributes, or one that cannot be read."""
    try:
        return any(getattr(value, name, None) is not None for name in protocols)
    except READING_ERRORS:  # whoever reads it tells
        return True


def offers_array(value: object) -> bool:
    """Whether an object has one of the protocols of arrays."""
    if offers(value, *ARRAY_PROTOCOLS, "__dlpack__"):
        return True
    try:
        memoryview(value)  # type: ignore[arg-type]  # asked, not known
    except (BufferError, TypeError):
        return False
    return True
