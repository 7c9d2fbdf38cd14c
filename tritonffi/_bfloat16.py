# SPDX-License-Identifier: Apache-2.0
"""BF16, which numpy does not know: the upper half of an FP32, as uint16 or by `ml_dtypes`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]


@cache
def bfloat16() -> np.dtype[np.generic] | None:
    """Return numpy's dtype for BF16, where its package is installed."""
    try:
        import ml_dtypes  # noqa: PLC0415 -- optional, and not wanted before a BF16 tensor comes
    except ImportError:
        return None
    dtype: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def widened(array: Array) -> npt.NDArray[np.float32]:
    """Return BF16 values, or the bits of some, as FP32, which holds each of them exactly."""
    return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_bfloat16(array: Array) -> Array:
    """Return the bits of BF16 values: the upper half of an FP32, rounded, ties to even."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore", under="ignore"):
        single = flat.astype(np.float32)
    bits = single.view(np.uint32)
    # What lies in the middle may have come there by rounding to FP32: then it is no tie.
    middle = np.flatnonzero((bits << 16) == np.uint32(2**31))
    if middle.size:
        given, taken = np.abs(flat[middle]), np.abs(single[middle])
        bits[middle] += given > taken
        bits[middle] -= given < taken
    half = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> 16
    half[np.isnan(single)] = 0x7FC0  # whose bits could round up to an infinity
    return half.astype(np.uint16).reshape(array.shape)
