# SPDX-License-Identifier: Apache-2.0
"""How much output memory is held, and how much is kept for the next outputs."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tritonffi import InvalidArgumentError, memory_pool

LARGE = np.zeros(1 << 16, np.float32)


@pytest.fixture(autouse=True)
def limit():
    """The limit is for the whole process, so it is set back; nothing is idle at first."""
    before = memory_pool.limit
    memory_pool.limit = 0
    memory_pool.limit = 1 << 20
    yield 1 << 20
    memory_pool.limit = before


def test_idle_memory_is_kept_up_to_the_limit(echo, limit):
    """And given back when the limit is lowered."""
    outputs = [echo.infer({"INPUT0": LARGE})["OUTPUT0"] for _ in range(8)]
    assert memory_pool.idle_bytes == 0
    outputs.clear()
    assert memory_pool.idle_bytes == limit
    memory_pool.limit = LARGE.nbytes
    assert memory_pool.idle_bytes == LARGE.nbytes
    memory_pool.limit = 0
    assert memory_pool.idle_bytes == 0
    assert memory_pool.limit == 0


def test_idle_memory_is_used_again(echo):
    """The next output of the size has the same address."""
    first = echo.infer({"INPUT0": LARGE})["OUTPUT0"]
    address = first.ctypes.data
    del first
    assert echo.infer({"INPUT0": LARGE})["OUTPUT0"].ctypes.data == address


def test_what_was_used_last_is_kept(echo, limit):
    """Else sizes that came once would take the room of those that come now."""
    small = [echo.infer({"INPUT0": LARGE})["OUTPUT0"] for _ in range(4)]
    small.clear()
    assert memory_pool.idle_bytes == limit
    large = echo.infer({"INPUT0": np.zeros(limit // 4, np.float32)})["OUTPUT0"]
    address = large.ctypes.data
    del large
    assert memory_pool.idle_bytes == limit
    again = echo.infer({"INPUT0": np.zeros(limit // 4, np.float32)})["OUTPUT0"]
    assert again.ctypes.data == address
    assert memory_pool.idle_bytes == 0


def test_what_is_above_the_limit_is_not_kept(echo, limit):
    """And takes nothing out."""
    echo.infer({"INPUT0": LARGE})
    echo.infer({"INPUT0": np.zeros(limit, np.float32)})
    assert memory_pool.idle_bytes == LARGE.nbytes


def test_an_array_holds_one_buffer(echo):
    """Views of it hold the same one; with the last it is idle."""
    gc.collect()
    buffers, used = memory_pool.buffers, memory_pool.used_bytes
    view = echo.infer({"INPUT0": LARGE})["OUTPUT0"][::2]
    assert memory_pool.buffers == buffers + 1
    assert memory_pool.used_bytes == used + LARGE.nbytes
    assert f"{used + LARGE.nbytes} bytes used" in repr(memory_pool)
    del view
    assert (memory_pool.buffers, memory_pool.used_bytes) == (buffers, used)


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, InvalidArgumentError),
        (2**64, InvalidArgumentError),
        ("1M", TypeError),
        (1e6, TypeError),
    ],
)
def test_a_limit_that_cannot_be_is_refused(size, error, limit):
    """And changes nothing."""
    with pytest.raises(error, match="the limit must be"):
        memory_pool.limit = size
    assert memory_pool.limit == limit
