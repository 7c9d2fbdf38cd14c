# SPDX-License-Identifier: Apache-2.0
"""What is taken for a number, and how one is written in a message."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from tritonffi._errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# numpy counts spans of time among its integers. Taken as one it would lose its unit.
_TIMES = (np.timedelta64, np.datetime64)
_PLAIN = frozenset((bool, int, float, str))


def is_integer(value: object) -> TypeIs[int | np.integer]:
    """Whether a value is an int or an integer of numpy's: a bool is none, and neither is a time."""
    return (
        isinstance(value, (int, np.integer))
        and not isinstance(value, bool)
        and not isinstance(value, _TIMES)
    )


def plain(value: object) -> object:
    """
    Return what a scalar of numpy's, or one of a class of its own, is in Python.

    The members of enums are of such classes. What their methods say is not asked: ``str`` of one
    may be its name, and a comparison may be anything. A time, or anything else, stays as it is.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and not isinstance(value, _TIMES):
        return value.item()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    return float.__float__(value) if isinstance(value, float) else value


def shown(number: object) -> str:
    """Write a number; Python refuses to write an integer of thousands of digits."""
    try:
        return str(number)
    except ValueError:
        return "a number of thousands of digits"


def whole(value: object, what: str, wanted: str = "an int") -> int:
    """Return an integer, of numpy's or of a class of its own, as one of Python's.

    Args:
        value: Whatever was given.
        what: Which argument it is, for messages.
        wanted: What it is to be, in those words.

    Raises:
        TypeError: It is no integer.
    """
    if type(value) is int:
        return value
    if not is_integer(value):
        raise TypeError(f"{what} must be {wanted}, not {type(value).__name__}")
    return operator.index(value)


def check_whole(value: object, what: str, wanted: str = "an int") -> None:
    """Refuse what is no integer of 64 bits without a sign.

    Args:
        value: Whatever was given.
        what: Which argument it is, for messages.
        wanted: What it is to be, in those words.

    Raises:
        TypeError: It is no integer.
        InvalidArgumentError: It is negative, or too large.
    """
    number = value if type(value) is int else whole(value, what, wanted)
    if not 0 <= number < 2**64:
        raise InvalidArgumentError(f"{what} must be between 0 and 2**64 - 1, not {shown(number)}")
