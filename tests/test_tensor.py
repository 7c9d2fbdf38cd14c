# SPDX-License-Identifier: Apache-2.0
"""Arrays of every dtype and layout become tensors exactly, and tensors become arrays."""

from __future__ import annotations

import gc
import math
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tritonffi import _bfloat16, _tensor
from tritonffi._bytes import format_shape
from tritonffi._enums import DataType
from tritonffi._errors import InternalError, InvalidArgumentError
from tritonffi._native import ffi
from tritonffi._tensor import ELEMENT_TYPES, check_shape, element_type, from_tensor, to_tensor

WHAT = "model 'm', input 'x'"
NUMERIC = [row for row in ELEMENT_TYPES if row.storage is not None]
BF16 = np.dtype(ml_dtypes.bfloat16)


def read(tensor):
    """Copy the memory of a tensor."""
    pointer, _, byte_size = tensor
    return bytes(ffi.buffer(pointer, byte_size))


def address(tensor):
    """Tell where the memory of a tensor begins."""
    return int(ffi.cast("uintptr_t", tensor[0]))


def sample(dtype, shape):
    """Make an array of values whose bytes all differ from their neighbours'."""
    count = math.prod(shape)
    if dtype == np.bool_:
        return (np.arange(count) % 3 == 0).reshape(shape)
    raw = (np.arange(count * dtype.itemsize) * 37 % 113).astype(np.uint8)
    return raw.view(dtype).reshape(shape)


def odd_strides(a):
    """Give an axis of length one a stride that means nothing."""
    return np.lib.stride_tricks.as_strided(a[:1], (1, a.shape[1]), (12345, a.strides[1]))


def unaligned(a):
    """Put the same values at an odd address."""
    memory = np.empty(a.nbytes + 1, np.uint8)[1:]
    memory[:] = np.frombuffer(a.tobytes(), np.uint8)
    return memory.view(a.dtype).reshape(a.shape)


def read_only(a):
    """Forbid writing."""
    a.setflags(write=False)
    return a


IN_PLACE = {
    "C order": lambda a: a,
    "read-only": read_only,
    "a scalar array": lambda a: a[1:2, 2:3].reshape(()),
    "a row": lambda a: a[1],
    "no element": lambda a: a[:0],
    "no element, strided": lambda a: a[::2, 4:],
    "one row of odd strides": odd_strides,
}
COPIED = {
    "Fortran order": np.asfortranarray,
    "transposed": lambda a: a.reshape(3, 2, 2).transpose(1, 2, 0),
    "strided": lambda a: a[::2, 1::2],
    "reversed": lambda a: a[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[0], (5, 4)),
}


def swapped(a):
    """Store the same values in the other byte order."""
    return a.astype(a.dtype.newbyteorder())


@pytest.fixture
def rooms(monkeypatch):
    """Record the memory that copies go into."""
    made = []

    def room(size):
        made.append(np.empty(size, np.uint8))
        return made[-1]

    monkeypatch.setattr(_tensor, "room", room)
    return made


def test_table_has_every_data_type_once():
    """Each value of the C enumeration but INVALID is one row."""
    assert sorted(row.datatype for row in ELEMENT_TYPES) == sorted(set(DataType) - {0})
    assert all(row.name == row.datatype.name for row in ELEMENT_TYPES)


@pytest.mark.parametrize(
    ("name", "dtype", "size", "config_name"),
    [
        ("BOOL", np.bool_, 1, "TYPE_BOOL"),
        ("UINT8", np.uint8, 1, "TYPE_UINT8"),
        ("UINT16", np.uint16, 2, "TYPE_UINT16"),
        ("UINT32", np.uint32, 4, "TYPE_UINT32"),
        ("UINT64", np.uint64, 8, "TYPE_UINT64"),
        ("INT8", np.int8, 1, "TYPE_INT8"),
        ("INT16", np.int16, 2, "TYPE_INT16"),
        ("INT32", np.int32, 4, "TYPE_INT32"),
        ("INT64", np.int64, 8, "TYPE_INT64"),
        ("FP16", np.float16, 2, "TYPE_FP16"),
        ("FP32", np.float32, 4, "TYPE_FP32"),
        ("FP64", np.float64, 8, "TYPE_FP64"),
        ("BYTES", np.object_, 0, "TYPE_STRING"),
        ("BF16", np.uint16, 2, "TYPE_BF16"),
    ],
)
def test_row_says_what_the_type_is(name, dtype, size, config_name):
    """Names of metadata and config lead to the same row."""
    row = element_type(name)
    assert (row.name, row.dtype, row.size, row.config_name) == (name, dtype, size, config_name)
    assert element_type(config_name) is row


def test_unknown_type_is_refused():
    """The message lists the names that there are."""
    with pytest.raises(InvalidArgumentError) as caught:
        element_type("FP8")
    assert str(caught.value) == (
        "no data type 'FP8'; there are BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, "
        "INT64, FP16, FP32, FP64, BYTES, BF16"
    )
    with pytest.raises(InvalidArgumentError):
        to_tensor(np.zeros(1), "FP8", WHAT)


@pytest.mark.parametrize("layout", IN_PLACE)
@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row.name)
def test_plain_array_is_not_copied(row, layout, rooms):
    """The tensor is the array's own memory."""
    value = IN_PLACE[layout](sample(row.storage, (3, 4)))
    tensor = to_tensor(value, row.name, WHAT)
    assert (tensor[1], tensor[2]) == (value.shape, value.nbytes)
    assert read(tensor) == value.tobytes()
    assert rooms == []
    if value.size:
        assert address(tensor) == value.__array_interface__["data"][0]


@pytest.mark.parametrize("layout", COPIED)
@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row.name)
def test_other_layout_is_copied_once(row, layout, rooms):
    """The copy has the values in C order."""
    value = COPIED[layout](sample(row.storage, (3, 4)))
    tensor = to_tensor(value, row.name, WHAT)
    assert (tensor[1], tensor[2]) == (value.shape, value.nbytes)
    assert read(tensor) == np.ascontiguousarray(value).tobytes()
    assert [address(tensor)] == [room.__array_interface__["data"][0] for room in rooms]


@pytest.mark.parametrize("layout", [*IN_PLACE, *COPIED])
@pytest.mark.parametrize("row", [row for row in NUMERIC if row.size > 1], ids=lambda row: row.name)
def test_foreign_byte_order_is_copied_once(row, layout, rooms):
    """Byte order and layout are set right in the same copy."""
    native = {**IN_PLACE, **COPIED}[layout](sample(row.storage, (3, 4)))
    base = swapped(sample(row.storage, (3, 4)))
    value = {**IN_PLACE, **COPIED}[layout](base)
    tensor = to_tensor(value, row.name, WHAT)
    assert (tensor[1], tensor[2]) == (native.shape, native.nbytes)
    assert read(tensor) == native.tobytes()
    assert len(rooms) == 1


@pytest.mark.parametrize("row", [row for row in NUMERIC if row.size > 1], ids=lambda row: row.name)
def test_unaligned_array_is_copied_once(row, rooms):
    """Backends may read elements as such, so they lie where elements may."""
    value = unaligned(sample(row.storage, (3, 4)))
    tensor = to_tensor(value, row.name, WHAT)
    assert read(tensor) == value.tobytes()
    assert len(rooms) == 1


@pytest.mark.parametrize("layout", [*IN_PLACE, *COPIED])
def test_bfloat16_array_is_taken_as_it_is(layout, rooms):
    """An array of ml_dtypes is a BF16 tensor in every layout."""
    value = {**IN_PLACE, **COPIED}[layout](sample(BF16, (3, 4)))
    tensor = to_tensor(value, "BF16", WHAT)
    assert (tensor[1], tensor[2]) == (value.shape, value.nbytes)
    assert read(tensor) == value.tobytes()
    assert len(rooms) == (layout in COPIED)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_any_view_of_any_array_arrives_exactly(data):
    """Slices, steps, new axes and byte orders do not matter."""
    row = data.draw(st.sampled_from(NUMERIC))
    dtype = data.draw(st.sampled_from([row.storage, row.storage.newbyteorder()]))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    whole = sample(row.storage, shape).astype(dtype)
    value = np.asarray(whole[data.draw(hnp.basic_indices(shape, allow_newaxis=True))])
    pointer, shape, size = to_tensor(value, row.name, WHAT)
    assert shape == value.shape
    assert bytes(ffi.buffer(pointer, size)) == value.astype(row.storage).tobytes()
    back = from_tensor(row.datatype, shape, pointer, size, WHAT)
    assert back.view(row.storage).tobytes() == value.astype(row.storage).tobytes()
    assert back.shape == value.shape


def test_large_copy_begins_on_a_page():
    """From 4 KB on, because copies between badly placed buffers are slow."""
    for count in (1024, 1025, 300_000):
        value = np.arange(2 * count, dtype=np.float32)[::2]
        tensor = to_tensor(value, "FP32", WHAT)
        assert address(tensor) % 4096 == 0
        assert read(tensor) == value.tobytes()


@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row.name)
def test_dtype_without_a_byte_order_is_refused_by_name(row):
    """The way that numpy has to ask for one in the machine's order raises for some."""
    dtypes = [np.dtype(ml_dtypes.float8_e5m2), np.dtype("V2"), np.dtype([("a", ">f4")])]
    if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType"):
        dtypes.append(np.dtypes.StringDType())
    for dtype in dtypes:
        array = np.zeros(2, dtype)
        for value in (array, [array]):
            with pytest.raises((TypeError, InvalidArgumentError)) as caught:
                to_tensor(value, row.name, WHAT)
            assert str(caught.value).startswith(f"{WHAT}: expected {row.name} (")
            assert str(caught.value).endswith(f", got an array of {dtype}")


def test_equal_dtype_that_is_another_object_is_not_copied(rooms):
    """Unpickled arrays have such dtypes."""
    value = pickle.loads(pickle.dumps(np.arange(6, dtype=np.float32)))
    tensor = to_tensor(value, "FP32", WHAT)
    assert address(tensor) == value.__array_interface__["data"][0]
    value = np.arange(6, dtype=np.longlong)
    assert address(to_tensor(value, "INT64", WHAT)) == value.__array_interface__["data"][0]
    assert rooms == []


def test_pointer_alone_keeps_the_memory():
    """Nothing else holds the array or the copy."""
    pointers = [
        to_tensor(np.full(5000, i, np.int32)[::step], "INT32", WHAT)
        for i in range(20)
        for step in (1, 2)
    ]
    gc.collect()
    for i, tensor in enumerate(pointers):
        values = np.frombuffer(read(tensor), np.int32)
        assert values.size == (5000, 2500)[i % 2]
        assert (values == i // 2).all()


def test_memory_is_shared_with_the_array():
    """What is written later is seen: the array is pinned, not copied."""
    value = np.zeros(4, np.int16)
    tensor = to_tensor(value, "INT16", WHAT)
    value[2] = 7
    assert read(tensor) == np.array([0, 0, 7, 0], np.int16).tobytes()


def owner_of(data, events):
    """Make memory that tells when it goes."""
    memory = ffi.new("char[]", len(data) or 1)
    ffi.buffer(memory)[: len(data)] = data

    def gone(pointer):
        events.append(memory)

    return ffi.gc(ffi.cast("void *", memory), gone, len(data))


@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row.name)
def test_array_is_made_over_the_memory(row):
    """No copy, the right dtype, and writable unless that is not wanted."""
    data = sample(row.storage, (3, 4)).tobytes()
    owner = owner_of(data, [])
    got = from_tensor(int(row.datatype), (3, 4), owner, len(data), WHAT)
    assert got.dtype == (BF16 if row.name == "BF16" else row.dtype)
    assert got.shape == (3, 4)
    assert got.tobytes() == data
    assert got.__array_interface__["data"] == (int(ffi.cast("uintptr_t", owner)), False)
    fixed = from_tensor(int(row.datatype), (3, 4), owner, len(data), WHAT, writable=False)
    assert not fixed.flags.writeable
    assert np.shares_memory(fixed.view(row.storage), got.view(row.storage))


def test_memory_lives_until_the_last_view_is_gone():
    """A view of a view keeps it, and it goes once."""
    events = []
    view = from_tensor(int(DataType.INT32), (3, 4), owner_of(bytes(48), events), 48, WHAT)
    view = view.T[1:][:2]
    gc.collect()
    assert events == []
    assert view.tolist() == [[0, 0, 0], [0, 0, 0]]
    del view
    gc.collect()
    assert len(events) == 1


@pytest.mark.parametrize("row", ELEMENT_TYPES, ids=lambda row: row.name)
def test_no_bytes_are_an_empty_array(row):
    """Even where there is no memory at all."""
    got = from_tensor(int(row.datatype), (2, 0, 3), ffi.NULL, 0, WHAT)
    assert got.shape == (2, 0, 3)
    assert got.dtype == (BF16 if row.name == "BF16" else row.dtype)
    assert got.flags.writeable


@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row.name)
def test_scalar_tensor_is_a_scalar_array(row):
    """No dimensions, one element."""
    data = sample(row.storage, (1,)).tobytes()
    got = from_tensor(int(row.datatype), (), owner_of(data, []), len(data), WHAT)
    assert (got.shape, got.tobytes()) == ((), data)


@pytest.mark.parametrize("size", [0, 4, 23, 25, 28])
def test_size_that_is_not_the_shapes_is_an_error(size):
    """An output of the wrong size is never shown."""
    with pytest.raises(InternalError) as caught:
        from_tensor(int(DataType.FP32), (2, 3), owner_of(bytes(32), []), size, WHAT)
    assert str(caught.value) == (
        f"{WHAT}: FP32 of shape [2,3] takes 24 bytes, but there are {size}"
    )


def test_bf16_is_uint16_without_ml_dtypes(monkeypatch):
    """The bits are there all the same."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    _bfloat16.bfloat16.cache_clear()
    try:
        tensor = to_tensor([1.0, -2.0], "BF16", WHAT)
        got = from_tensor(int(DataType.BF16), tensor[1], tensor[0], tensor[2], WHAT)
    finally:
        _bfloat16.bfloat16.cache_clear()
    assert got.dtype == np.uint16
    assert got.tolist() == [0x3F80, 0xC000]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), ()), ((3,), (3,)), ((0,), (-1,)), ((1, 3, 224, 224), (-1, 3, 224, 224))],
)
def test_shape_that_goes_with_the_metadata_passes(shape, expected):
    """-1 stands for any size."""
    check_shape(shape, expected, WHAT)


@pytest.mark.parametrize(
    ("shape", "expected", "message"),
    [
        ((1, 3, 224, 225), (-1, 3, 224, 224), "expected [-1,3,224,224], got [1,3,224,225]"),
        ((), (1,), "expected [1], got []"),
        ((1, 2), (-1,), "expected [-1], got [1,2]"),
    ],
)
def test_shape_that_does_not_go_is_refused(shape, expected, message):
    """The message shows both."""
    with pytest.raises(InvalidArgumentError) as caught:
        check_shape(shape, expected, WHAT)
    assert str(caught.value) == f"{WHAT}: wrong shape: {message}"
    assert format_shape(shape) == message.rpartition(" ")[2]
