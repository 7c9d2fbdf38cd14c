# SPDX-License-Identifier: Apache-2.0
"""
The codec of BYTES: elements to framed memory and back. csrc/tritonffi.h has the framing.

Many short elements go through csrc/bytes.c in one call; for a few, or for long ones, Python's own
join is as fast.
"""

from __future__ import annotations

import math
import reprlib
import struct
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tritonffi._errors import InternalError, InvalidArgumentError, counted
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from tritonffi._native import CData

    Shape: TypeAlias = tuple[int, ...]

_PAGE = 4096
# From so many elements on C frames faster than a loop; up to such a mean length a second copy of
# the payload costs less than an object for each header.
_MANY = 32
_SHORT = 1024
_LONGEST = 2**32 - 1
# From so many elements on, none of them longer than that, an array of fixed width is a faster way.
_ALIKE = 128
_NARROW = 256
# So many elements are unpacked at a time, which bounds the memory that it takes beside theirs.
_CHUNK = 8192

_new = ffi.new_allocator(should_clear_after_alloc=False)
_header = struct.Struct("<I").pack
_header_of = struct.Struct("<I").unpack_from


def pack(elements: list[object], shape: Shape, what: str) -> npt.NDArray[np.uint8] | bytes:
    """
    Frame the elements of a tensor, given in row order.

    Raises:
        TypeError: an element is neither text nor bytes.
        InvalidArgumentError: a text has no UTF-8 form, or an element is too long.
    """
    if len(elements) >= _MANY:
        separated = _pack_separated(elements)
        if separated is not None:
            return separated
    parts: list[bytes] = elements  # type: ignore[assignment]  # as the next lines make sure
    if not _are_bytes(elements):
        parts = [
            element if type(element) is bytes else _as_bytes(element, number, shape, what)
            for number, element in enumerate(elements)
        ]
    framed, packed = _pack_parts(parts)
    if framed is None:
        raise InvalidArgumentError(
            f"{_place(what, packed, shape)}: {len(parts[packed])} bytes are too many, because "
            "the length of a BYTES element has 32 bits"
        )
    return framed


def _pack_parts(parts: list[bytes]) -> tuple[npt.NDArray[np.uint8] | bytes | None, int]:
    """Frame bytes objects; None, and the number of the first that is too long, where one is."""
    count = len(parts)
    if count >= _MANY:
        lengths = np.fromiter(map(len, parts), np.int64, count)
        size = int(lengths.sum())
        if size <= count * _SHORT:
            framed = room(size + 4 * count)
            packed = lib.tffi_bytes_pack(
                b"".join(parts),
                size,
                ffi.from_buffer("int64_t[]", lengths),
                count,
                ffi.from_buffer(framed),
                len(framed),
            )
            return framed if packed == count else None, packed
    try:
        headers = map(_header, map(len, parts))
        return b"".join(chain.from_iterable(zip(headers, parts, strict=True))), count
    except struct.error:
        return None, next(i for i, part in enumerate(parts) if len(part) > _LONGEST)


def _pack_separated(elements: list[object]) -> npt.NDArray[np.uint8] | None:
    """
    Frame many short str, or many short bytes objects, without asking each for its length.

    None where they are neither, one contains a NUL or has no UTF-8 form, or some of them are long.
    """
    texts: list[str] = elements  # type: ignore[assignment]  # as the next lines make sure
    parts: list[bytes] = elements  # type: ignore[assignment]
    count = len(elements)
    step = count // _MANY  # a few stand for all: where they mislead, all is copied once more
    try:
        if isinstance(elements[0], str):
            if max(map(str.__len__, texts[::step])) > _SHORT:
                return None
            joined = "\0".join(texts).encode()
        elif _are_bytes(elements) and max(map(len, parts[::step])) <= _SHORT:
            joined = b"\0".join(parts)
        else:
            return None
    except (TypeError, UnicodeEncodeError):
        return None
    framed = room(len(joined) - (count - 1) + 4 * count)
    whole = lib.tffi_bytes_pack_separated(
        joined, len(joined), b"\0", count, ffi.from_buffer(framed), len(framed)
    )
    return framed if whole else None


def _are_bytes(elements: list[object]) -> bool:
    return list(map(type, elements)).count(bytes) == len(elements)


def _as_bytes(element: object, number: int, shape: Shape, what: str) -> bytes:
    if isinstance(element, np.ndarray) and not element.ndim:
        if np.ma.is_masked(element):
            raise InvalidArgumentError(f"{what}: the array has masked elements; fill them first")
        element = element.item()
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"{_place(what, number, shape)}: {show(element)} has no UTF-8 form: {error.reason}"
            ) from None
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise TypeError(f"{_place(what, number, shape)}: expected str or bytes, got {show(element)}")


def place(what: str, index: Sequence[int]) -> str:
    """Name an element of a tensor."""
    return f"{what}, element {format_shape(index)}" if index else what


def _place(what: str, number: int, shape: Shape) -> str:
    return place(what, [int(i) for i in np.unravel_index(number, shape)] if shape else ())


def unpack(shape: Shape, owner: object, byte_size: int, what: str) -> npt.NDArray[np.object_]:
    """
    Make the bytes objects of a framed tensor.

    Raises:
        InternalError: the framing is not that of as many elements as the shape has.
    """
    count = math.prod(shape)
    offset = ffi.new("size_t *")
    if count > byte_size // 4:
        # It cannot be right, and a shape alone must not make us ask for memory.
        found = lib.tffi_bytes_scan(owner, byte_size, count, offset, ffi.NULL)
        raise _cut_short(found, shape, byte_size, what)
    array = np.empty(shape, np.object_)
    flat = array.reshape(-1)
    data = ffi.buffer(owner, byte_size)
    lengths = _new("uint32_t[]", min(count, _CHUNK))
    text = _new("char[]", 13 * len(lengths))
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        begin = offset[0]
        found = lib.tffi_bytes_scan(owner, byte_size, stop - start, offset, lengths)
        if found < stop - start:
            raise _cut_short(start + found, shape, byte_size, what)
        rows = _spread(owner, begin, offset[0], lengths, found) if found >= _ALIKE else None
        if rows is None:
            size = lib.tffi_bytes_format(lengths, found, text)
            flat[start:stop] = struct.Struct(ffi.buffer(text, size)[:]).unpack_from(data, begin)
        else:
            flat[start:stop] = rows
    if offset[0] != byte_size:
        raise InternalError(
            f"{what}: BYTES of shape {format_shape(shape)} end after "
            f"{counted(offset[0], 'byte')}, but there are {byte_size}"
        )
    return array


def unpack_padded(
    shape: Shape, owner: object, byte_size: int, room: int, what: str
) -> npt.NDArray[np.object_]:
    """
    Make the bytes objects of a tensor whose elements have the same room each, padded behind them.

    Raises:
        InternalError: an element is longer than that.
    """
    array = np.empty(shape, np.object_)
    flat = array.reshape(-1)
    data = ffi.buffer(owner, byte_size)
    for number, start in enumerate(range(0, byte_size, room)):
        (length,) = _header_of(data, start)
        if length > room - 4:
            raise _cut_short(number, shape, byte_size, what)
        flat[number] = data[start + 4 : start + 4 + length]
    return array


def _spread(
    owner: object, begin: int, end: int, lengths: CData, count: int
) -> npt.NDArray[np.bytes_] | None:
    """
    Copy elements of about the same length to an array of fixed width, of which numpy makes bytes.

    None where they are not that, or where one ends with a NUL: numpy takes it for padding.
    """
    width = int(np.frombuffer(ffi.buffer(lengths), np.uint32, count).max())
    if width > _NARROW or width * count > 2 * (end - begin):
        return None
    rows = np.empty(count, f"S{max(width, 1)}")
    memory = ffi.from_buffer(rows)
    whole = lib.tffi_bytes_spread(owner, begin, lengths, count, rows.itemsize, memory)
    return rows if whole else None


def _cut_short(number: int, shape: Shape, byte_size: int, what: str) -> InternalError:
    return InternalError(
        f"{_place(what, number, shape)}: cut short: there are {byte_size} bytes for BYTES of "
        f"shape {format_shape(shape)}"
    )


def room(size: int) -> npt.NDArray[np.uint8]:
    """Allocate memory, from a page on where it is large: see tffi_buffer in csrc/tritonffi.h."""
    if size < _PAGE:
        return np.empty(size, np.uint8)
    memory = np.empty(size + _PAGE - 1, np.uint8)
    start = -int(ffi.cast("uintptr_t", ffi.from_buffer(memory))) % _PAGE
    return memory[start : start + size]


def format_shape(shape: Sequence[int]) -> str:
    """Write a shape as Triton does: [1,3,224,224]."""
    return f"[{','.join(map(str, shape))}]"


def show(value: object) -> str:
    """Write a value and its type, briefly."""
    try:
        text = reprlib.repr(value.item() if isinstance(value, np.generic) else value)
    except ValueError:  # an integer of thousands of digits
        text = "a huge number"
    return f"{text} ({type(value).__name__})"
