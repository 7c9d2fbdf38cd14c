# SPDX-License-Identifier: Apache-2.0
"""
The inputs of a batch as arrays, and who frees their memory.

C has gathered the requests' data into memory of the batch's own (csrc/gather.c). An array over it
owns it from the first moment, so that no view can outlive it. After the call nobody has kept one
mostly: then the memory is C's again, to be freed without a call of its own, for which this thread
would let go of the GIL and have to wait for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias

from tritonffi._native import ffi, lib
from tritonffi._tensor import from_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tritonffi._function_config import Declared
    from tritonffi._native import CData
    from tritonffi._tensor import Array

#: Of each array: its tensor, the buffer of that, and what owns the buffer meanwhile.
Owners: TypeAlias = "list[tuple[CData, CData, CData]]"

_release = lib.tffi_buffer_release_data


def read_inputs(batch: CData, inputs: Sequence[Declared], owners: Owners) -> dict[str, Array]:
    """
    Make arrays over the gathered inputs, which take the memory over from the batch.

    Args:
        batch: A ``tffi_batch *`` that runs.
        inputs: What the model takes.
        owners: Gets what `give_back` wants.

    Returns:
        The arrays by name, without those that the requests do not have.
    """
    arrays: dict[str, Array] = {}
    tensors = batch.inputs
    for index, declared in enumerate(inputs):
        tensor = tensors[index]
        buffer = tensor.buffer
        if not buffer:
            continue
        size = tensor.byte_size
        owner = ffi.gc(tensor.data, _release, size)
        tensor.buffer = ffi.NULL
        owners.append((tensor, buffer, owner))
        shape = tuple(ffi.unpack(tensor.shape, tensor.dim_count)) if tensor.dim_count else ()
        arrays[declared.name] = from_tensor(
            tensor.datatype, shape, owner, size, f"input {declared.name!r}", writable=False
        )
    return arrays


def give_back(owners: Owners) -> None:
    """Give the batch back what no array needs any more."""
    while owners:
        tensor, buffer, owner = owners.pop()
        if sys.getrefcount(owner) == _ALONE:
            ffi.gc(owner, None)
            tensor.buffer = buffer


def _alone() -> int:
    """Return what `give_back` counts where nobody else has the owner."""
    owners = [(None, None, ffi.new("char *"))]
    _, _, owner = owners.pop()
    return sys.getrefcount(owner)


_ALONE = _alone()
