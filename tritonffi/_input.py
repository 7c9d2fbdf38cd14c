# SPDX-License-Identifier: Apache-2.0
"""Inputs that are more than one array in CPU memory: several pieces, raw bytes, other memory.

`pieces_of` takes such a value apart into what C appends to the request one after the other. All
other values, which is nearly all, are `_tensor`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tritonffi._bytes import format_shape
from tritonffi._call import encode
from tritonffi._enums import MemoryType
from tritonffi._errors import InvalidArgumentError, counted
from tritonffi._lent import borrow, is_elsewhere
from tritonffi._lists import ARRAY_PROTOCOLS, offers
from tritonffi._native import ffi
from tritonffi._numbers import whole
from tritonffi._tensor import element_type, to_tensor

if TYPE_CHECKING:
    from tritonffi._native import CData
    from tritonffi._spec import TensorSpec

_BYTES_LIKE = (bytes, bytearray, memoryview)
_TOO_LONG = 2**63


class Chunks:
    """The value of an input whose data lie in several pieces, which need not be joined for it.

    Args:
        parts: Arrays as any input takes them, which follow one another along the first axis, and
            are alike in the others. With `shape` also pieces of bytes, of any size.
        shape: The shape of the whole; without it, that of the parts along the first axis.
        host_policies: Other data of the same size for the instances that have a host policy, by
            the name of that policy (such as ``gpu_0``): parts in memory that is near to them.

    Example: ``model.infer({"frames": Chunks([first_half, second_half])})``

    C: ``TRITONSERVER_InferenceRequestAppendInputData``,
    ``TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy``
    """

    __slots__ = ("host_policies", "parts", "shape")

    def __init__(
        self,
        parts: Sequence[object],
        *,
        shape: Sequence[int] | None = None,
        host_policies: Mapping[str, Sequence[object]] | None = None,
    ) -> None:
        self.parts = _sequence(parts, "Chunks")
        self.shape = None if shape is None else _shape(shape)
        if host_policies is not None and not isinstance(host_policies, Mapping):
            raise TypeError(
                f"Chunks: host_policies must be a mapping, not {type(host_policies).__name__}"
            )
        self.host_policies = {
            policy: _sequence(parts, f"Chunks: host policy {policy!r}")
            for policy, parts in (host_policies or {}).items()
        }

    def __repr__(self) -> str:
        return f"<Chunks: {counted(len(self.parts), 'part')}>"


class Raw:
    """The bytes of a model's only input, with nothing said of their type and shape.

    Triton takes both from the model: one axis may be of any length, the batch is one, and of BYTES
    there is one element. It stands for the input, or for all of the inputs.

    Args:
        parts: The bytes; several follow one another.

    Example: ``model.infer(Raw(jpeg))``

    C: ``TRITONSERVER_InferenceRequestAddRawInput``
    """

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes | bytearray | memoryview) -> None:
        for part in parts:
            if not isinstance(part, _BYTES_LIKE):
                raise TypeError(f"Raw takes bytes, not {type(part).__name__}")
        self.parts = parts

    def __repr__(self) -> str:
        size = sum(memoryview(part).nbytes for part in self.parts)
        return f"<Raw: {counted(size, 'byte')}>"


class Piece(NamedTuple):
    """A ``tffi_piece``; `data` keeps the memory."""

    data: CData
    byte_size: int
    memory_type: MemoryType = MemoryType.CPU
    memory_type_id: int = 0
    host_policy: bytes | None = None


class Pieces(NamedTuple):
    """What an input is made of; of a raw one `shape` is what Triton will find."""

    shape: tuple[int, ...]
    pieces: list[Piece]
    is_raw: bool = False


def pieces_of(value: object, spec: TensorSpec, what: str, *, batching: bool) -> Pieces | None:
    """Take apart what is more than an array in CPU memory.

    Args:
        value: The value of an input.
        spec: The input.
        what: Whose value it is, for messages.
        batching: Whether the first axis is the batch.

    Returns:
        The pieces; None: it is an ordinary value.

    Raises:
        TypeError: Nothing can be made of it.
        InvalidArgumentError: It does not fit the input.
        UnavailableError: It is in GPU memory, and there is no CUDA driver.
    """
    if isinstance(value, Chunks):
        return _chunks(value, spec.datatype, what)
    if isinstance(value, Raw):
        return _raw(value, spec, what, batching=batching)
    lent = _borrow(value, spec.datatype, what)
    if lent is not None:
        shape, piece = lent
        return Pieces(shape, [piece])
    return None


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape that is one, and fits into Triton's 64 bits."""
    try:
        sizes = tuple(whole(size, "a size") for size in shape)
    except TypeError:
        raise TypeError(f"Chunks: a shape is ints, not {shape!r}") from None
    if not all(0 <= size < _TOO_LONG for size in sizes):
        raise InvalidArgumentError(f"Chunks: this is no shape: {format_shape(sizes)}")
    return sizes


def _sequence(parts: object, what: str) -> tuple[object, ...]:
    if isinstance(parts, (str, *_BYTES_LIKE, np.ndarray)) or not isinstance(parts, Sequence):
        raise TypeError(f"{what}: expected a list of parts, not {type(parts).__name__}")
    return tuple(parts)


def _borrow(value: object, datatype: str, what: str) -> tuple[tuple[int, ...], Piece] | None:
    """Take what numpy cannot read, for its place, or as BF16, which it does not know.

    Returns:
        The shape, and the memory; None: numpy can.
    """
    if isinstance(value, np.ndarray):
        return None
    is_here = not is_elsewhere(value)
    if is_here and not (datatype == "BF16" and offers(value, "__dlpack_device__")):
        return None
    try:
        lent = borrow(value, what)
    except (TypeError, InvalidArgumentError) as error:
        if not is_here or not offers(value, *ARRAY_PROTOCOLS):
            raise
        try:  # its array may do: numpy's own DLPack has no BF16 either
            data, shape, byte_size = to_tensor(value, datatype, what)
        except (TypeError, InvalidArgumentError):
            raise error from error.__cause__
        return shape, Piece(data, byte_size)
    if lent.datatype != datatype and (datatype, lent.datatype) != ("BF16", "UINT16"):
        raise InvalidArgumentError(f"{what}: expected {datatype}, got an array of {lent.datatype}")
    return lent.shape, Piece(lent.data, lent.byte_size, lent.memory_type, lent.memory_type_id)


def _piece_of_bytes(part: bytes | bytearray | memoryview, what: str) -> Piece:
    try:
        return Piece(ffi.from_buffer(part), memoryview(part).nbytes)
    except BufferError:
        raise InvalidArgumentError(f"{what} is not contiguous") from None


def _raw(raw: Raw, spec: TensorSpec, what: str, *, batching: bool) -> Pieces:
    pieces = [_piece_of_bytes(part, f"{what}: Raw") for part in raw.parts]
    size = sum(piece.byte_size for piece in pieces)
    row = element_type(spec.datatype)
    dims = spec.shape[1:] if batching else spec.shape
    length = 1
    if row.storage is not None:
        known = math.prod(dim for dim in dims if dim >= 0) * row.size
        if -1 in dims and known > 0:
            length = size // known
        if size != known * length:
            raise InvalidArgumentError(
                f"{what}: {size} raw bytes do not make a {row.name} of shape {format_shape(dims)}"
            )
    shape = tuple(length if dim < 0 else dim for dim in dims)
    return Pieces((1, *shape) if batching else shape, pieces, is_raw=True)


def _chunks(chunks: Chunks, datatype: str, what: str) -> Pieces:
    shape, pieces = _join(chunks.parts, chunks.shape, datatype, what)
    size = sum(piece.byte_size for piece in pieces)
    for policy, parts in chunks.host_policies.items():
        whose = f"{what}, host policy {policy!r}"
        other_shape, others = _join(parts, chunks.shape, datatype, whose)
        other_size = sum(piece.byte_size for piece in others)
        if (other_shape, other_size) != (shape, size):
            raise InvalidArgumentError(
                f"{whose}: expected {counted(size, 'byte')} for shape {format_shape(shape)} as "
                f"without a policy, got {other_size} for {format_shape(other_shape)}"
            )
        name = encode(policy, f"{what}: a host policy")
        pieces += [piece._replace(host_policy=name) for piece in others]
    return Pieces(shape, pieces)


def _join(
    parts: Sequence[object], shape: tuple[int, ...] | None, datatype: str, what: str
) -> tuple[tuple[int, ...], list[Piece]]:
    """Describe parts that follow one another, and the shape that they have together."""
    size = element_type(datatype).size
    pieces, shapes = [], []
    for i, part in enumerate(parts):
        whose = f"{what}, part {i}"
        if size > 0 and isinstance(part, _BYTES_LIKE):
            if shape is None:
                raise InvalidArgumentError(f"{whose} is bytes: say the shape of the whole")
            pieces.append(_piece_of_bytes(part, whose))
        elif (lent := _borrow(part, datatype, whose)) is not None:
            shapes.append(lent[0])
            pieces.append(lent[1])
        else:
            data, part_shape, byte_size = to_tensor(part, datatype, whose)
            pieces.append(Piece(data, byte_size))
            shapes.append(part_shape)
    if shape is None:
        return _joined_shape(shapes, what), pieces
    # Of BYTES the elements can be counted, of the others the bytes.
    expected = math.prod(shape) * (size or 1)
    got = sum(piece.byte_size for piece in pieces) if size else sum(map(math.prod, shapes))
    if got != expected:
        raise InvalidArgumentError(
            f"{what}: the parts have {counted(got, 'byte' if size else 'element')}, but {datatype} "
            f"of shape {format_shape(shape)} takes {expected}"
        )
    return shape, pieces


def _joined_shape(shapes: Sequence[tuple[int, ...]], what: str) -> tuple[int, ...]:
    if not shapes:
        raise InvalidArgumentError(f"{what}: there are no parts, so say the shape")
    first = shapes[0]
    for i, shape in enumerate(shapes):
        if not shape:
            raise InvalidArgumentError(f"{what}, part {i}: a scalar has no axis to follow others")
        if shape[1:] != first[1:]:
            raise InvalidArgumentError(
                f"{what}, part {i}: shape {format_shape(shape)} does not go with "
                f"{format_shape(first)}: only the first axis may differ"
            )
    return (sum(shape[0] for shape in shapes), *first[1:])
