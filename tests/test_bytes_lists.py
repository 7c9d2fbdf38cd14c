# SPDX-License-Identifier: Apache-2.0
"""Arrays in lists of texts: those without axes are texts, and empty ones have a shape."""

from __future__ import annotations

import numpy as np
import pytest

from tritonffi._enums import DataType
from tritonffi._errors import InvalidArgumentError
from tritonffi._tensor import from_tensor, to_tensor

WHAT = "model 'm', input 'x'"
BYTES = int(DataType.BYTES)
RAGGED = ": lists of different lengths, or lists beside single values"


@pytest.mark.parametrize(
    ("value", "shape", "elements"),
    [
        ([np.array("a"), np.array("b")], (2,), [b"a", b"b"]),
        ([np.array(b"a"), "b", np.array("c\0", object)], (3,), [b"a", b"b", b"c\0"]),
        (["a"] * 40 + [np.array("b")], (41,), [b"a"] * 40 + [b"b"]),
        ([["a", np.array("b")]], (1, 2), [b"a", b"b"]),
    ],
)
def test_arrays_without_axes_are_single_texts(value, shape, elements):
    """As they are alone, and in lists of numbers."""
    pointer, got, size = to_tensor(value, "BYTES", WHAT)
    assert got == shape
    assert from_tensor(BYTES, got, pointer, size, WHAT).reshape(-1).tolist() == elements


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([np.empty((0, 3), object)], (1, 0, 3)),
        ([np.empty((2, 0, 3), "U1"), np.empty((2, 0, 3), "S1")], (2, 2, 0, 3)),
        ([[np.empty((2, 0), object), [[], []]]], (1, 2, 2, 0)),
        ([np.empty((0, 3), object), np.empty((0, 4), object)], None),
        ([np.empty((0, 3), object), []], None),
        ([[], np.empty((0, 3), object)], None),
        ([np.empty((0, 3), object), "a"], None),
        ([np.empty((0, 3), object), np.array([["a", "b", "c"]])], None),
    ],
)
def test_empty_arrays_in_lists_keep_their_shape(value, shape):
    """All of it: what has no elements has no first one that would tell it."""
    if shape is None:
        with pytest.raises(InvalidArgumentError) as caught:
            to_tensor(value, "BYTES", WHAT)
        assert str(caught.value) == WHAT + RAGGED
    else:
        assert to_tensor(value, "BYTES", WHAT)[1:] == (shape, 0)
