# SPDX-License-Identifier: Apache-2.0
"""Arrays that other libraries lend: DLPack and `__cuda_array_interface__`, read without a copy.

numpy reads what is in CPU memory, and `_tensor` lets it do so. This is for what numpy does not
read: memory of a GPU, page-locked memory, BF16, and memory to write to. None of the libraries is
imported; their objects are asked through the protocols alone.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tritonffi import _cuda
from tritonffi._enums import MemoryType
from tritonffi._errors import InvalidArgumentError
from tritonffi._lists import READING_ERRORS, offers
from tritonffi._native import ffi, lib
from tritonffi._tensor import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tritonffi._native import CData

# DLPack's numbers for the places of memory, and Triton's.
_CPU = 1
_PLACES = {
    _CPU: MemoryType.CPU,
    2: MemoryType.GPU,
    3: MemoryType.CPU_PINNED,
    13: MemoryType.GPU,  # managed: it moves by itself
}
# Its codes for numpy's kinds; BF16 is stored as unsigned integers, but has a code of its own.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4
_VERSION = (1, 0)
_READ_ONLY = 1

_BY_STORAGE = {row.storage: row.name for row in ELEMENT_TYPES if row.storage and row.name != "BF16"}
_BY_CODE = {
    (_BFLOAT if row.name == "BF16" else _CODES[row.storage.kind], row.size * 8): row.name
    for row in ELEMENT_TYPES
    if row.storage
}


class Lent(NamedTuple):
    """An array in C order whose memory is another library's.

    Attributes:
        data: A cffi pointer to the first element, which keeps the memory.
        byte_size: How long it is.
        shape: Its dimensions.
        datatype: Triton's name of the element type.
        memory_type: Where it is.
        memory_type_id: On which device.
        is_read_only: Whether it says that it must not be written to.
    """

    data: CData
    byte_size: int
    shape: tuple[int, ...]
    datatype: str
    memory_type: MemoryType
    memory_type_id: int
    is_read_only: bool


class _DLPack(Protocol):
    def __dlpack__(self, **keywords: object) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


def is_elsewhere(value: object) -> bool:
    """Return whether a value is an array outside of plain CPU memory, which numpy cannot read."""
    if _lends(value):
        try:
            return int(value.__dlpack_device__()[0]) != _CPU  # type: ignore[attr-defined]
        except READING_ERRORS:  # `borrow` tells it
            return True
    return offers(value, "__cuda_array_interface__")


def _lends(value: object) -> bool:
    """Return whether a value is lent over DLPack."""
    return offers(value, "__dlpack__") and offers(value, "__dlpack_device__")


def borrow(value: object, what: str) -> Lent:
    """Take an array over DLPack, or else over ``__cuda_array_interface__``.

    What still writes to memory of a GPU is over when this returns.

    Args:
        value: An object with one of the protocols.
        what: Whose value it is, for messages.

    Raises:
        TypeError: The object refuses, or has neither.
        InvalidArgumentError: It is not in C order, of a type that Triton does not have, or in
            memory that Triton cannot read.
        UnavailableError: It is in GPU memory, and there is no CUDA driver.
    """
    if _lends(value):
        return _from_dlpack(value, what)  # type: ignore[arg-type]  # as it says
    if offers(value, "__cuda_array_interface__"):
        return _from_cuda_array_interface(value, what)
    raise TypeError(f"{what}: this {type(value).__name__} lends no memory")


def _from_dlpack(value: _DLPack, what: str) -> Lent:
    kind = type(value).__name__
    try:
        place, device_id = (int(number) for number in value.__dlpack_device__())
    except READING_ERRORS as error:
        raise TypeError(f"{what}: this {kind} does not say where it is: {error}") from error
    if place not in _PLACES:
        raise InvalidArgumentError(
            f"{what}: this {kind} is on DLPack device type {place}, which Triton cannot read"
        )
    memory_type = _PLACES[place]
    try:
        # The producer makes this stream wait for whatever still writes to the memory.
        stream = {"stream": _cuda.LEGACY_STREAM} if memory_type is MemoryType.GPU else {}
        try:
            capsule = value.__dlpack__(max_version=_VERSION, **stream)
        except TypeError:
            capsule = value.__dlpack__(**stream)  # older than versions
        owner, tensor, is_read_only = _open(capsule)
    except READING_ERRORS as error:
        raise TypeError(f"{what}: this {kind} does not lend its memory: {error}") from error
    if memory_type is MemoryType.GPU:
        _cuda.synchronize(device_id, _cuda.LEGACY_STREAM)
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    if lanes != 1 or (code, bits) not in _BY_CODE:
        raise InvalidArgumentError(
            f"{what}: this {kind} holds elements of DLPack type {code} with {bits} bits times "
            f"{lanes}, which Triton does not have"
        )
    if tensor.ndim < 0 or (tensor.ndim > 0 and not tensor.shape):
        raise TypeError(f"{what}: the DLPack tensor of this {kind} is broken: it has no shape")
    shape = tuple(ffi.unpack(tensor.shape, tensor.ndim)) if tensor.ndim else ()
    byte_size = math.prod(shape) * bits // 8
    _check_memory(shape, byte_size, tensor.data, f"{what}: this {kind}")
    if tensor.strides:
        strides = tuple(ffi.unpack(tensor.strides, tensor.ndim)) if tensor.ndim else ()
        _check_order(shape, strides, 1, f"{what}: this {kind}")
    return Lent(
        data=_keeping(owner, ffi.cast("char *", tensor.data) + tensor.byte_offset),
        byte_size=byte_size,
        shape=shape,
        datatype=_BY_CODE[code, bits],
        memory_type=memory_type,
        memory_type_id=device_id if memory_type is not MemoryType.CPU else 0,
        is_read_only=is_read_only,
    )


def _from_cuda_array_interface(value: object, what: str) -> Lent:
    kind = type(value).__name__
    try:
        interface = dict(value.__cuda_array_interface__)  # type: ignore[attr-defined]
        shape = tuple(int(size) for size in interface["shape"])
        address, is_read_only = interface["data"]
        pointer = ffi.cast("char *", int(address))
        dtype = np.dtype(interface["typestr"])
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(int(stride) for _, stride in zip(shape, strides, strict=True))
        stream = interface.get("stream")
        if stream is not None:
            stream = int(stream)
    except READING_ERRORS as error:
        raise TypeError(
            f"{what}: the __cuda_array_interface__ of this {kind} is broken: {error!r}"
        ) from error
    if interface.get("mask") is not None:
        raise InvalidArgumentError(f"{what}: the array has a mask; fill it first")
    if dtype not in _BY_STORAGE:
        raise InvalidArgumentError(f"{what}: this {kind} holds {dtype}, which Triton does not have")
    if strides is not None:
        _check_order(shape, strides, dtype.itemsize, f"{what}: this {kind}")
    byte_size = math.prod(shape) * dtype.itemsize
    _check_memory(shape, byte_size, pointer, f"{what}: this {kind}")
    device_id = 0
    if byte_size > 0:
        device_id = _cuda.device_of(int(address))
        if stream is not None:
            _cuda.synchronize(device_id, stream)
    return Lent(
        data=_keeping(value, pointer),
        byte_size=byte_size,
        shape=shape,
        datatype=_BY_STORAGE[dtype],
        memory_type=MemoryType.GPU,
        memory_type_id=device_id,
        is_read_only=bool(is_read_only),
    )


class _Nothing:
    """A destructor that does nothing, and keeps its owner until it was called."""

    __slots__ = ("owner",)

    def __init__(self, owner: object) -> None:
        self.owner = owner

    def __call__(self, _: CData) -> None:
        pass


def _keeping(owner: object, data: CData) -> CData:
    """Return a pointer that keeps `owner` for as long as it lives itself."""
    return ffi.gc(data, _Nothing(owner))


def _check_memory(shape: Sequence[int], byte_size: int, data: CData, whose: str) -> None:
    """Refuse sizes that are none, and what has a size and no memory, as one that was freed."""
    if any(size < 0 for size in shape):
        raise InvalidArgumentError(f"{whose} has the shape {list(shape)}, with a negative size")
    if byte_size > 0 and not data:
        raise InvalidArgumentError(f"{whose} has no memory for its {byte_size} bytes: it was freed")


def _check_order(shape: Sequence[int], strides: Sequence[int], size: int, whose: str) -> None:
    """Refuse strides that are not those of C order; of a single element they do not matter."""
    if 0 in shape:
        return
    expected = size
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            raise InvalidArgumentError(f"{whose} is not in C order; make it contiguous first")
        expected *= length


def _open(capsule: object) -> tuple[CData, CData, bool]:
    """Take over what a DLPack capsule holds: its owner, the tensor, and whether it is read-only."""
    is_valid, pointer, rename = _capsules()
    if is_valid(capsule, b"dltensor_versioned"):
        versioned = ffi.cast("tffi_dlpack_versioned *", pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _VERSION[0]:
            raise BufferError(f"DLPack {versioned.major}.{versioned.minor} is not known")
        rename(capsule, _USED_VERSIONED)
        owner = ffi.gc(versioned, lib.tffi_dlpack_versioned_release)
        return owner, versioned.tensor, bool(versioned.flags & _READ_ONLY)
    if is_valid(capsule, b"dltensor"):
        managed = ffi.cast("tffi_dlpack *", pointer(capsule, b"dltensor"))
        rename(capsule, _USED)
        owner = ffi.gc(managed, lib.tffi_dlpack_release)
        return owner, managed.tensor, False
    raise BufferError("__dlpack__ gave no DLPack capsule, or one that was used before")


# A capsule keeps the address of its name, so these live for ever.
_USED = ctypes.create_string_buffer(b"used_dltensor")
_USED_VERSIONED = ctypes.create_string_buffer(b"used_dltensor_versioned")


@cache
def _capsules() -> tuple[Callable[..., bool], Callable[..., int], Callable[..., int]]:
    """Python's own functions for capsules."""
    prototypes = {
        "PyCapsule_IsValid": (ctypes.c_int, ctypes.py_object, ctypes.c_char_p),
        "PyCapsule_GetPointer": (ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p),
        "PyCapsule_SetName": (ctypes.c_int, ctypes.py_object, ctypes.c_char_p),
    }
    is_valid, pointer, rename = (
        ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi)) for name, types in prototypes.items()
    )
    return is_valid, pointer, rename
