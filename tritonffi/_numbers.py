# SPDX-License-Identifier: Apache-2.0
"""What is taken for an integer, and how one is written in a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tritonffi._errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# numpy counts spans of time among its integers. Taken as one it would lose its unit.
_TIMES = (np.timedelta64, np.datetime64)


def is_integer(value: object) -> TypeIs[int | np.integer]:
    """Whether a value is an int or an integer of numpy's: a bool is none, and neither is a time."""
    return (
        isinstance(value, (int, np.integer))
        and not isinstance(value, bool)
        and not isinstance(value, _TIMES)
    )


def plain(value: object) -> object:
    """Return what a scalar of numpy's is in Python; a time, or anything else, stays as it is."""
    if isinstance(value, np.generic) and not isinstance(value, _TIMES):
        return value.item()
    return value


def shown(number: object) -> str:
    """Write a number; Python refuses to write an integer of thousands of digits."""
    try:
        return str(number)
    except ValueError:
        return "a number of thousands of digits"


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
    if type(value) is not int and not is_integer(value):
        raise TypeError(f"{what} must be {wanted}, not {type(value).__name__}")
    if not 0 <= value < 2**64:
        raise InvalidArgumentError(f"{what} must be between 0 and 2**64 - 1, not {shown(value)}")
