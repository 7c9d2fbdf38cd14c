# SPDX-License-Identifier: Apache-2.0
"""Tensors of more than 2 GiB, and of more than 2**31 elements: nowhere are there only 32 bits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tritonffi import Chunks, memory_pool

LENGTH = 2**31 + 4097
# Where the numbers stand that come back.
PLACES = [0, 2**31 - 1, 2**31, LENGTH - 1]
NEEDED_GB = 8


@pytest.fixture(scope="module", autouse=True)
def _enough_memory():
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    available = int(re.search(r"MemAvailable: +(\d+) kB", text)[1]) >> 20
    if available < NEEDED_GB:
        pytest.skip(f"these need {NEEDED_GB} GB of memory, and {available} are free")
    limit = memory_pool.limit
    yield
    memory_pool.limit = 0
    memory_pool.limit = limit


@pytest.fixture(scope="module")
def large():
    """An array of zeros, which take no memory, and four numbers."""
    array = np.zeros(LENGTH, np.uint8)
    array[PLACES] = [1, 2, 3, 4]
    return array


def test_a_large_tensor_goes_there_and_back(server, large):
    """In pieces, one of which is longer than 31 bits count, into memory of the caller's."""
    out = np.empty(LENGTH, np.uint8)
    value = Chunks([large[: 2**31 + 1], large[2**31 + 1 :]])
    response = server.model("echo_uint8").infer({"INPUT0": value}, out={"OUTPUT0": out})
    assert response["OUTPUT0"] is out
    assert out[PLACES].tolist() == [1, 2, 3, 4]


def test_a_function_takes_and_gives_a_large_tensor(server, large):
    """Its input is one array, and its result one output."""
    spec = ("UINT8", [-1])
    model = server.load_function(
        "large", lambda a: {"b": a}, inputs={"a": spec}, outputs={"b": spec}
    )
    output = model.infer({"a": large})["b"]
    assert output.shape == (LENGTH,)
    assert output[PLACES].tolist() == [1, 2, 3, 4]
    server.unload("large")


def test_a_string_may_be_longer_than_31_bits_count(server):
    """Its length is a number of 32 bits without a sign."""
    long = bytes(2**31 + 5)
    output = server.model("echo_bytes").infer({"INPUT0": [b"x", long, b"y"]})["OUTPUT0"]
    assert [len(value) for value in output] == [1, len(long), 1]
    assert output[2] == b"y"
