# SPDX-License-Identifier: Apache-2.0
"""
Arrays to tensors and back, with the table of data types. `_bytes` has the codec of BYTES.

`to_tensor` is the first step of the way of the data (told in csrc/tritonffi.h), `from_tensor` the
last. A tensor on its way in is a plain tuple: a cffi pointer that holds the memory for as long as
it lives itself, the shape, and the size in bytes.

What a model's input takes, and what is done about it:

- an array whose dtype is the model's: as it is, without a copy. One that is strided, reversed,
  broadcast, in Fortran order, byte-swapped or not aligned is copied, once. Any other dtype is an
  error, never a cast. BF16 is `ml_dtypes.bfloat16`, or `uint16` that holds the bits.
- what offers an array (`__array_interface__`, `__array__`, `__dlpack__` in CPU memory, the buffer
  protocol): the same, over the memory that it offers.
- Python numbers, numpy scalars, and lists or tuples of them, nested at will: they become what the
  model wants where every value can. Floats round to the nearest value, as Python's own do, but
  must not overflow; integers must be in range, and must be exact where they become floats; a bool
  is 0 or 1 to a number, but nothing else is a bool; a float is never an integer. An array in a list
  must have the model's dtype, as one that is alone.
- BYTES: str (as UTF-8), bytes, bytearray and memoryview, alone, in lists, and in arrays of objects,
  of numpy's S and U types, and of StringDType. An S or U array holds what numpy says that it holds:
  its items without the padding. Elsewhere every NUL counts. An output is an array of bytes objects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tritonffi._bfloat16 import bfloat16, round_bfloat16, widened
from tritonffi._bytes import format_shape, pack, place, room, show, unpack
from tritonffi._enums import DataType
from tritonffi._errors import InternalError, InvalidArgumentError, counted
from tritonffi._lists import (
    ARRAY_PROTOCOLS,
    DEEPEST,
    NESTED,
    PLAIN_NUMBERS,
    READING_ERRORS,
    check_first_path,
    leaf_types,
    leaves,
    offers,
    offers_array,
    too_deep,
)
from tritonffi._native import ffi
from tritonffi._numbers import is_integer

Array: TypeAlias = npt.NDArray[np.generic]
Shape: TypeAlias = tuple[int, ...]
Tensor: TypeAlias = tuple[object, Shape, int]

# Bits of numpy's `flags.num`: the memory is in C order, and aligned for its type.
PLAIN = 0x0001 | 0x0100

_from_buffer = ffi.from_buffer
_buffer = ffi.buffer
_ndarray = np.ndarray
_NOTHING = bytearray()
# numpy 1.22 has it under the private name only.
_from_dlpack = getattr(np, "from_dlpack" if hasattr(np, "from_dlpack") else "_from_dlpack")
_NUMBERS = (int, float, np.bool_, np.number)
_ROWS = frozenset((list, tuple))
_WANTED = {"BF16": "bfloat16 or uint16", "BYTES": "object, S or U"}
_RAGGED = "lists of different lengths, or lists beside single values"


@dataclass(frozen=True, slots=True)
class ElementType:
    """
    One of Triton's data types.

    Attributes:
        name: Triton's word in metadata, "FP32".
        datatype: the value in the C API.
        dtype: the dtype of arrays: object for BYTES, uint16 for BF16 where there is no better.
        storage: the dtype of the memory; None for BYTES, whose elements have no fixed size.
        size: bytes of an element; 0 for BYTES.
        low: the least, and
        high: the greatest of the integers that all have an exact value.
        kind: "b", "i", "f" or "O", as numpy's, but for BF16 "f" and for unsigned integers "i".
    """

    name: str
    datatype: DataType
    dtype: np.dtype[np.generic]
    storage: np.dtype[np.generic] | None
    size: int
    low: int
    high: int
    kind: str

    @property
    def config_name(self) -> str:
        """Triton's word in a model's config, "TYPE_FP32"."""
        return "TYPE_STRING" if self.storage is None else f"TYPE_{self.name}"


def _row(name: str, scalar: type[np.generic], exact_bits: int = 0) -> ElementType:
    dtype = np.dtype(scalar)
    kind = "f" if exact_bits else dtype.kind.replace("u", "i")
    low, high = -(2**exact_bits), 2**exact_bits
    if kind == "i":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    storage = None if kind == "O" else dtype
    size = 0 if storage is None else dtype.itemsize
    return ElementType(name, DataType[name], dtype, storage, size, low, high, kind)


ELEMENT_TYPES = (
    _row("BOOL", np.bool_),
    _row("UINT8", np.uint8),
    _row("UINT16", np.uint16),
    _row("UINT32", np.uint32),
    _row("UINT64", np.uint64),
    _row("INT8", np.int8),
    _row("INT16", np.int16),
    _row("INT32", np.int32),
    _row("INT64", np.int64),
    _row("FP16", np.float16, exact_bits=11),
    _row("FP32", np.float32, exact_bits=24),
    _row("FP64", np.float64, exact_bits=53),
    _row("BYTES", np.object_),
    _row("BF16", np.uint16, exact_bits=8),
)
_BY_NAME = {name: row for row in ELEMENT_TYPES for name in (row.name, row.config_name)}
_BY_VALUE = {int(row.datatype): row for row in ELEMENT_TYPES}
_BF16 = _BY_NAME["BF16"]


def element_type(name: str) -> ElementType:
    """
    Return the row of a data type, by its name in metadata ("FP32") or in a config ("TYPE_FP32").

    Raises:
        InvalidArgumentError: there is no such type.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        known = ", ".join(row.name for row in ELEMENT_TYPES)
        raise InvalidArgumentError(f"no data type {name!r}; there are {known}") from None


def to_tensor(value: object, datatype: str, what: str) -> Tensor:
    """
    Turn a value into a tensor of the data type, without a copy where its memory will do.

    Args:
        value: an array, a number, a text, a list of them: see the module's text.
        datatype: Triton's name for the type that is wanted.
        what: whose value it is, for messages: "model 'm', input 'x'".

    Returns:
        Pointer, shape and size in bytes. The memory is held until the pointer is dropped.

    Raises:
        TypeError: the value, or an element of it, is nothing that a tensor is made of.
        InvalidArgumentError: an array of another dtype, a number that the type cannot hold, a text
            without a UTF-8 form, lists of different lengths.
    """
    try:
        row = _BY_NAME[datatype]
    except KeyError:
        row = element_type(datatype)
    if type(value) is _ndarray and value.dtype is row.storage and value.flags.num & PLAIN == PLAIN:
        return _from_buffer(value), value.shape, value.nbytes
    if row.storage is None:
        shape, elements = _elements(value, row, what)
        framed = pack(elements, shape, what)
        return _from_buffer(framed), shape, len(framed)
    if isinstance(value, range):
        value = list(value)
    if isinstance(value, (list, tuple, int, float)):
        array = _from_python(value, row, what)
    else:
        array = _as_array(value, row, what)
        if isinstance(value, np.generic) and not _is_of(array.dtype, row):
            array = _from_python(value, row, what)
        else:
            array = _exact(array, row, what)
    if array.dtype != row.storage or array.flags.num & PLAIN != PLAIN:
        array = _copy(array, row.storage)
    return _from_buffer(array), array.shape, array.nbytes


def from_tensor(
    datatype: int, shape: Shape, owner: object, byte_size: int, what: str, *, writable: bool = True
) -> Array:
    """
    Make the array of a tensor over its memory; that of BYTES is unpacked into bytes objects.

    Args:
        datatype: the value of the data type in the C API.
        shape: the dimensions; all are known.
        owner: a cffi pointer to the data, which holds it: the array keeps the owner. NULL will do
            for no bytes.
        byte_size: how many bytes there are.
        what: whose value it is, for messages.
        writable: whether the array can be written to.

    Raises:
        InternalError: the size is not that of the shape, or the framing of BYTES is broken.
    """
    row = _BY_VALUE[datatype]
    array: Array | None
    if row.storage is None:
        array = unpack(shape, owner, byte_size, what)
    else:
        memory = _buffer(owner, byte_size) if byte_size else _NOTHING
        if byte_size and not writable:  # which an ndarray over it could be told to become
            memory = np.frombuffer(memoryview(memory).toreadonly(), np.uint8)
        try:
            array = _ndarray(shape, row.storage, memory)
        except (TypeError, ValueError):
            array = None
        if array is None or array.nbytes != byte_size:
            size = math.prod(shape) * row.size
            if size == byte_size:  # none, but lengths that numpy cannot multiply
                raise InternalError(f"{what}: numpy has no array of shape {format_shape(shape)}")
            raise InternalError(
                f"{what}: {row.name} of shape {format_shape(shape)} takes "
                f"{counted(size, 'byte')}, but there are {byte_size}"
            )
        if row is _BF16 and (dtype := bfloat16()) is not None:
            array = array.view(dtype)
    if not writable:
        array.setflags(write=False)
    return array


def plain_storage(datatype: int, shape: Shape, byte_size: int) -> np.dtype[np.generic] | None:
    """
    Return the dtype with which an ndarray over the memory is all that `from_tensor` would make.

    None where there is more to do: BYTES, BF16, no bytes, or a size that is not the shape's.
    """
    row = _BY_VALUE[datatype]
    if row.storage is None or row is _BF16 or not byte_size:
        return None
    return row.storage if math.prod(shape) * row.size == byte_size else None


def check_shape(shape: Shape, expected: Shape, what: str) -> None:
    """
    Hold a shape against the one that metadata give, in which -1 stands for any size.

    Raises:
        InvalidArgumentError: they do not go together.
    """
    if shape == expected:
        return
    if len(shape) == len(expected):
        for size, wanted in zip(shape, expected, strict=True):
            if wanted not in (size, -1):
                break
        else:
            return
    raise InvalidArgumentError(
        f"{what}: wrong shape: expected {format_shape(expected)}, got {format_shape(shape)}"
    )


def _as_array(value: object, row: ElementType, what: str) -> Array:
    """Return the array that an object is or offers, over its own memory where that goes."""
    try:
        if isinstance(value, np.ndarray) or offers(value, *ARRAY_PROTOCOLS):
            array: Array = np.asanyarray(value)  # with its mask, if it has one
        elif offers(value, "__dlpack__"):
            array = _from_dlpack(value)
        else:
            array = np.asarray(memoryview(value))  # type: ignore[arg-type]  # asked, not known
    except READING_ERRORS as error:
        if not offers_array(value):
            raise TypeError(
                f"{what}: expected an array, list or scalar for {row.name}, "
                f"got {type(value).__name__}"
            ) from None
        raise TypeError(
            f"{what}: this {type(value).__name__} cannot be read as an array: {error}"
        ) from error
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise InvalidArgumentError(f"{what}: the array has masked elements; fill them first")
    return np.asarray(array)


def _exact(array: Array, row: ElementType, what: str) -> Array:
    """Return an array of the type's storage over the same memory, or refuse its dtype."""
    if row is _BF16 and array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    if not _is_of(array.dtype, row):
        raise _mismatch(array.dtype, row, what)
    return array


def is_stored_as(dtype: np.dtype[np.generic], datatype: str) -> bool:
    """Whether arrays of a dtype lie in memory as tensors of a data type do."""
    row = element_type(datatype)
    return dtype == row.storage or (row is _BF16 and dtype.name == "bfloat16")


def _is_of(dtype: np.dtype[np.generic], row: ElementType) -> bool:
    """Whether a dtype is the type's, in whatever byte order."""
    if row is _BF16 and dtype.name == "bfloat16":
        return True
    if dtype == row.storage:
        return True
    # Not of each: a dtype that has no byte order of its own may raise, as StringDType does.
    return not dtype.isnative and dtype.newbyteorder("=") == row.storage


def _mismatch(dtype: np.dtype[np.generic], row: ElementType, what: str) -> Exception:
    """Say that an array has the wrong dtype: a TypeError where no tensor is made of it."""
    wanted = _WANTED.get(row.name, row.dtype.name)
    is_known = dtype.kind in "biufSUT" or dtype.name == "bfloat16"
    kind = InvalidArgumentError if is_known else TypeError
    return kind(f"{what}: expected {row.name} ({wanted}), got an array of {dtype}")


def _copy(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Copy an array into C order and the machine's byte order."""
    copy = np.ndarray(array.shape, dtype, room(array.size * dtype.itemsize))
    np.copyto(copy, array, casting="unsafe")  # every value was looked at, or the dtype is the same
    return copy


def _from_python(value: object, row: ElementType, what: str) -> Array:
    """Convert numbers and lists of them if the type can hold each one."""
    types = leaf_types(value, what)
    plain = types <= PLAIN_NUMBERS
    if not (plain or all(issubclass(kind, _NUMBERS) for kind in types)):
        return _join(value, row, what)
    array: Array | None
    try:
        array = np.asarray(value)
    except (OverflowError, TypeError, ValueError, UserWarning):
        # The warning: what numpy before 1.24 says of ragged lists, where warnings are errors.
        array = None
    if array is not None and array.size == 0 and array.dtype.kind != "O":
        return np.empty(array.shape, row.storage)
    plain = plain or all(_is_exact_in(kind, row) for kind in types)
    if array is None or not plain or not _fits(array, row):
        # Something is amiss, or too close to a limit to tell from the array: now one by one.
        for index, leaf in leaves(value):
            _check_leaf(leaf, row, place(what, index))
        try:
            array = np.array(value, np.float64 if row is _BF16 else row.storage)
        except ValueError:
            raise InvalidArgumentError(f"{what}: {_RAGGED}") from None
    return round_bfloat16(array) if row is _BF16 else array


def _join(value: object, row: ElementType, what: str, index: Shape = ()) -> Array:
    """Convert lists of which some leaves are, or offer, arrays: each leaf as if it were alone."""
    if isinstance(value, NESTED):
        parts = [_join(item, row, what, (*index, i)) for i, item in enumerate(value)]
        if len({part.shape for part in parts}) > 1:
            raise InvalidArgumentError(f"{what}: {_RAGGED}")
        return np.array(parts, row.storage)
    if _is_array_leaf(value, row):
        array = _exact(_as_array(value, row, what), row, what)
        if len(index) + array.ndim > DEEPEST:
            raise too_deep(what)
        return array
    _check_leaf(value, row, place(what, index))
    if row is _BF16:
        return round_bfloat16(np.array(value, np.float64))
    return np.array(value, row.storage)


def _is_array_leaf(value: object, row: ElementType) -> bool:
    """Whether a leaf is held to the rule of arrays: numpy's scalars are numbers, bytes are text."""
    if isinstance(value, np.generic):
        return row is _BF16 and value.dtype.name == "bfloat16"
    return not isinstance(value, (int, float, bytes)) and offers_array(value)


def _is_exact_in(kind: type, row: ElementType) -> bool:
    """Whether numbers of a type need no look at each for more than what `_fits` finds out."""
    if issubclass(kind, np.floating) and not issubclass(kind, float):
        return row is not _BF16 and np.can_cast(kind, row.dtype)
    return True


def _fits(array: Array, row: ElementType) -> bool:
    """Whether numpy's own idea of some numbers shows already that the type holds them all."""
    kind = array.dtype.kind
    if kind == "b":
        return True
    if kind in "iu" and row.kind != "b":
        return row.low <= int(array.min()) and int(array.max()) <= row.high
    if kind == "f" and row.kind == "f":
        if array.dtype != np.float64:
            return array.dtype == row.storage
        # A value at the limit may have been an integer above it before numpy rounded it.
        return not bool((np.abs(array) >= row.high).any())
    return False


def _check_leaf(leaf: object, row: ElementType, what: str) -> None:
    """Refuse what the type cannot hold."""
    if isinstance(leaf, (bool, np.bool_)):
        return
    if is_integer(leaf):
        why = _integer_trouble(int(leaf), row)
    elif isinstance(leaf, (float, np.floating)):
        why = _float_trouble(leaf, row)
    else:
        raise TypeError(f"{what}: expected a number for {row.name}, got {show(leaf)}")
    if why:
        raise InvalidArgumentError(f"{what}: {show(leaf)} {why}")


def _integer_trouble(number: int, row: ElementType) -> str:
    if row.kind == "b":
        return "is not a bool"
    if row.kind == "f":
        return "" if _nearest(number, row) == number else f"has no exact value in {row.name}"
    return "" if row.low <= number <= row.high else f"is out of range for {row.name}"


def _float_trouble(number: float | np.floating[npt.NBitBase], row: ElementType) -> str:
    if row.kind != "f":
        return f"is a float, but {row.name} is not"
    nearest = _nearest(number, row)
    if math.isinf(nearest) and not np.isinf(number):
        return f"is out of range for {row.name}"
    # Python has one float type, so its values are rounded; numpy's others are meant as they are.
    if isinstance(number, float) or nearest == number or np.isnan(number):
        return ""
    return f"has no exact value in {row.name}"


def _nearest(number: float | np.floating[npt.NBitBase], row: ElementType) -> float:
    """Return the value that a number takes in a floating point type."""
    try:
        with np.errstate(over="ignore"):
            if row is _BF16:
                return float(widened(round_bfloat16(np.array([number], np.float64)))[0])
            return float(row.dtype.type(number))
    except OverflowError:
        return math.inf


def _elements(value: object, row: ElementType, what: str) -> tuple[Shape, list[object]]:
    """Take a value apart into its shape and its elements in row order."""
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return (), [value]
    if not isinstance(value, (list, tuple)):
        array = _as_array(value, row, what)
        if array.dtype.kind not in "OSUT":
            raise _mismatch(array.dtype, row, what)
        return array.shape, array.reshape(-1).tolist()
    check_first_path(value, what)
    level = list(value)
    shape = [len(level)]
    while level and _has_length(level[0]):
        rows: list[list[object]] = level
        if not set(map(type, level)) <= _ROWS:
            if not all(map(_has_length, level)):
                raise InvalidArgumentError(f"{what}: {_RAGGED}")
            arrays = [_as_array(item, row, what) for item in level if isinstance(item, np.ndarray)]
            if not all(array.size for array in arrays):
                # Nothing is in them that would tell the rest of the shape.
                shapes = {_elements(item, row, what)[0] for item in level}
                if len(shapes) > 1:
                    raise InvalidArgumentError(f"{what}: {_RAGGED}")
                return (*shape, *shapes.pop()), []
            rows = [item.tolist() if isinstance(item, np.ndarray) else item for item in level]
        lengths = set(map(len, rows))
        if len(lengths) > 1:
            raise InvalidArgumentError(f"{what}: {_RAGGED}")
        shape += lengths
        level = list(chain.from_iterable(rows))
    return tuple(shape), level


def _has_length(item: object) -> bool:
    """Whether an item of a list of texts is a row of them: an array without axes is one text."""
    return isinstance(item, (list, tuple)) or (isinstance(item, np.ndarray) and item.ndim > 0)
