# SPDX-License-Identifier: Apache-2.0
"""What a round does, and its arrays: all that a peer in another environment needs, but numpy."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODEL = "identity"
PAGE = 4096


@dataclass(frozen=True)
class Load:
    """
    What a round does; c_loop.c says what the numbers mean, in its order.

    Attributes:
        model: The model, or the beginning of the models' names.
        models: 0, or how many models there are, numbered from 0.
        inputs: Tensors of a request.
        bytes: Of each tensor.
        batched: 1: the tensors have a batch axis of one.
        threads: Threads of the client.
        in_flight: Inferences at a time, all threads together.
        count: Inferences.
    """

    model: str = MODEL
    models: int = 0
    inputs: int = 1
    bytes: int = PAGE
    batched: int = 0
    threads: int = 1
    in_flight: int = 1
    count: int = 1

    def line(self) -> str:
        """What to write to a child that is to do the round."""
        return " ".join(map(str, astuple(self)))

    @classmethod
    def parse(cls, line: str) -> Load:
        """The opposite of `line`."""
        model, *numbers = line.split()
        return cls(model, *map(int, numbers))

    def array(self) -> NDArray[np.float32]:
        """An array for one of the inputs."""
        array = page_aligned(self.bytes)
        return array[None] if self.batched else array


def page_aligned(byte_size: int) -> NDArray[np.float32]:
    """
    Ones on a page boundary, like the C loop's: a copy from a badly placed array is far slower.

    Args:
        byte_size: A multiple of 4.
    """
    memory = np.empty(byte_size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    array = memory[start : start + byte_size].view(np.float32)
    array.fill(1)
    return array
