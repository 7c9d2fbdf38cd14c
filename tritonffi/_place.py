# SPDX-License-Identifier: Apache-2.0
"""One input of the C structs that `_template` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tritonffi._bytes import format_shape
from tritonffi._errors import InvalidArgumentError
from tritonffi._input import pieces_of
from tritonffi._native import ffi, lib
from tritonffi._tensor import PLAIN, element_type, is_stored_as, to_tensor

if TYPE_CHECKING:
    from tritonffi._input import Pieces
    from tritonffi._native import CData
    from tritonffi._spec import ModelSpec

_ndarray = np.ndarray


class Place:
    """One input of a template.

    Attributes:
        name: Of the input.
        tensor: Its ``tffi_tensor *``.
        storage: The dtype of arrays that are taken as they are; None: there is none.
        shape: That is written now.
        alike: The shape of which an array can be taken with nothing written but its address; None:
            what was written last was no such array.
        what: The model and the input, for messages.
    """

    __slots__ = (
        "_dims",
        "alike",
        "datatype",
        "name",
        "shape",
        "spec",
        "storage",
        "tensor",
        "what",
    )

    def __init__(self, spec: ModelSpec, name: str, tensor: CData) -> None:
        row = element_type(spec.inputs[name].datatype)
        self.name = name
        self.spec = spec.inputs[name]
        self.tensor = tensor
        self.storage = row.storage
        self.datatype = row.name
        self.shape: tuple[int, ...] = ()
        self.alike: tuple[int, ...] | None = None
        self.what = f"model {spec.name!r}, input {name!r}"
        self._dims: object = None
        tensor.datatype = int(row.datatype)
        tensor.memory_type = lib.TRITONSERVER_MEMORY_CPU

    def write(self, value: object) -> CData:
        """Write a value of any kind that makes one tensor; returns its address, which keeps it."""
        pointer, shape, size = to_tensor(value, self.datatype, self.what)
        self.tensor.byte_size = size
        self._write_shape(shape)
        self.alike = None if self.storage is None else shape
        return pointer

    def take_apart(self, value: object, *, batching: bool) -> Pieces | None:
        """Write the shape of a value that comes in pieces; None: it is not such a value."""
        pieces = pieces_of(value, self.spec, self.what, batching=batching)
        if pieces is not None:
            self.tensor.byte_size = 0
            self._write_shape(pieces.shape)
            self.alike = None
        return pieces

    def _write_shape(self, shape: tuple[int, ...]) -> None:
        if shape != self.shape or self._dims is None:
            self._dims = self.tensor.shape = ffi.new("int64_t[]", shape or (0,))
            self.tensor.dim_count = len(shape)
            self.shape = shape

    def takes(self, value: object) -> bool:
        """Return whether a value is an array like the last one, and can be read as it is."""
        return (
            isinstance(value, _ndarray)
            and value.shape == self.alike
            and value.flags.num & PLAIN == PLAIN
            and is_stored_as(value.dtype, self.datatype)
        )

    def unlike(self, value: object) -> InvalidArgumentError | TypeError:
        """Return what is wrong with a value that is to be just like the last array."""
        expected = f"{self.datatype}{list(self.shape)} in C order"
        if not isinstance(value, _ndarray):
            return TypeError(
                f"{self.what}: a prepared call takes numpy arrays, here {expected}, not "
                f"{type(value).__name__}"
            )
        if value.shape == self.shape and is_stored_as(value.dtype, self.datatype):
            return InvalidArgumentError(
                f"{self.what}: the call was prepared for {expected}, and this array is not"
            )
        return InvalidArgumentError(
            f"{self.what}: the call was prepared for {expected}, not for an array of "
            f"{value.dtype} of shape {format_shape(value.shape)}"
        )
