# SPDX-License-Identifier: Apache-2.0
"""Numbers, lists and objects that offer arrays become tensors exactly, or are refused."""

from __future__ import annotations

import array
import math
import reprlib
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tritonffi._errors import InvalidArgumentError
from tritonffi._lists import DEEPEST
from tritonffi._native import ffi
from tritonffi._tensor import ELEMENT_TYPES, element_type, to_tensor

WHAT = "model 'm', input 'x'"
BAD = InvalidArgumentError
BF16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [row for row in ELEMENT_TYPES if row.kind == "i"]


def read(tensor):
    """Copy the memory of a tensor."""
    pointer, _, byte_size = tensor
    return bytes(ffi.buffer(pointer, byte_size))


def address(tensor):
    """Tell where the memory of a tensor begins."""
    return int(ffi.cast("uintptr_t", tensor[0]))


class Offers:
    """An object with some of an array's protocols."""

    def __init__(self, value, *names):
        """Take the protocols from an array."""
        for name in names:
            setattr(self, name, getattr(value, name))


class HasArray:
    """An object that makes an array when asked."""

    def __init__(self, value):
        """Keep the array."""
        self.value = value

    def __array__(self, dtype=None, copy=None):
        """Give the array."""
        return self.value


class HasDLPack:
    """An object with DLPack and nothing else."""

    def __init__(self, value):
        """Keep the array."""
        self.value = value

    def __dlpack__(self, **options):
        """Give the array's capsule."""
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self):
        """Tell that it is in CPU memory."""
        return self.value.__dlpack_device__()


FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)
MASKED = np.ma.masked_array([1.0, 2.0], [0, 1])
RAGGED = ": lists of different lengths, or lists beside single values"
HIDDEN = ": the array has masked elements; fill them first"
NOT_EXACT = "has no exact value in"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a: Offers(a, "__array_interface__"),
        lambda a: Offers(a, "__array_struct__"),
        HasArray,
        HasDLPack,
        memoryview,
        lambda a: a.view(type("Sub", (np.ndarray,), {})),
        np.ma.masked_array,
    ],
    ids=["interface", "struct", "array", "dlpack", "memoryview", "subclass", "unmasked"],
)
def test_offered_memory_is_used_in_place(wrap):
    """Array protocols, DLPack, the buffer protocol and subclasses share their memory."""
    tensor = to_tensor(wrap(FLOATS), "FP32", WHAT)
    assert tensor[1:] == ((2, 3), 24)
    assert address(tensor) == FLOATS.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        (array.array("d", [1.5, -2.0]), "FP64", np.array([1.5, -2.0])),
        (array.array("h", [1, -2]), "INT16", np.array([1, -2], np.int16)),
        (bytearray(b"a\0b"), "UINT8", np.array([97, 0, 98], np.uint8)),
        (b"a\0b", "UINT8", np.array([97, 0, 98], np.uint8)),
        (memoryview(np.arange(9, dtype=np.int32))[::-2], "INT32", np.arange(9, dtype="i4")[::-2]),
        (np.float32(1.5), "FP32", np.float32(1.5)),
        (np.True_, "BOOL", np.True_),
        (ml_dtypes.bfloat16(1.5), "BF16", np.uint16(0x3FC0)),
        (np.uint16(0x3FC0), "BF16", np.uint16(0x3FC0)),
        (
            [np.arange(3, dtype=np.int8), np.arange(3, 6, dtype=np.int8)],
            "INT8",
            np.arange(6, dtype="i1").reshape(2, 3),
        ),
        (range(3), "INT32", np.arange(3, dtype=np.int32)),
        (True, "BOOL", np.array(np.True_)),
        ([[True], [False]], "BOOL", np.array([[True], [False]])),
        (7, "UINT8", np.array(7, np.uint8)),
        (7, "FP64", np.array(7.0)),
        (0.1, "FP32", np.array(0.1, np.float32)),
        (np.float64(0.1), "FP32", np.array(0.1, np.float32)),
        (True, "INT32", np.array(1, np.int32)),
        ([1, True, 2.5], "FP16", np.array([1, 1, 2.5], np.float16)),
        ([[1, 2], (3, 4)], "INT64", np.array([[1, 2], [3, 4]])),
        ([-128, 127], "INT8", np.array([-128, 127], np.int8)),
        ([0, 2**64 - 1], "UINT64", np.array([0, 2**64 - 1], np.uint64)),
        ([np.int64(3), 2**64 - 1], "UINT64", np.array([3, 2**64 - 1], np.uint64)),
        ([2**63 - 1, -(2**63)], "INT64", np.array([2**63 - 1, -(2**63)])),
        ([np.int8(3), np.uint8(200)], "UINT8", np.array([3, 200], np.uint8)),
        ([np.float32(0.1)], "FP64", np.array([np.float32(0.1)], np.float64)),
        ([np.float16(0.1)], "FP32", np.array([np.float16(0.1)], np.float32)),
        ([2**24, 2**25, 2**100], "FP32", np.array([2**24, 2**25, 2**100], np.float32)),
        ([2.0**25 + 1.0], "FP32", np.array([2.0**25], np.float32)),
        ([math.inf, -math.inf, 1e30], "FP32", np.array([math.inf, -math.inf, 1e30], np.float32)),
        ([2**70], "FP64", np.array([2.0**70])),
        ([1e-60], "FP32", np.array([0], np.float32)),
        ([1.0, 2, True, -0.0], "BF16", np.array([0x3F80, 0x4000, 0x3F80, 0x8000], np.uint16)),
        ([256, 2**100], "BF16", np.array([0x4380, 0x7180], np.uint16)),
        ([range(2), range(2, 4)], "INT8", np.array([[0, 1], [2, 3]], np.int8)),
        ([np.float32([1, 2]), [0.1, 4]], "FP32", np.array([[1, 2], [0.1, 4]], np.float32)),
        ([[1, 2], np.array([3, 4], ">i4")], "INT32", np.array([[1, 2], [3, 4]], np.int32)),
        ([[0.1, 2], array.array("f", [3, 4])], "FP32", np.array([[0.1, 2], [3, 4]], np.float32)),
        ([[1.0, 2], np.array([3, 4], BF16)], "BF16", np.array([[1, 2], [3, 4]], BF16)),
        ([ml_dtypes.bfloat16(1.5), 0.5], "BF16", np.array([1.5, 0.5], BF16)),
        ([np.ma.masked_array([1.0, 2.0]), [3, 4]], "FP64", np.array([[1.0, 2.0], [3.0, 4.0]])),
        ([np.float16(0.1), 0.1], "FP32", np.array([np.float16(0.1), 0.1], np.float32)),
        ([np.float64(0.1), np.float32(0.5)], "FP16", np.array([0.1, 0.5], np.float16)),
        ([1] * 50 + [2**64 - 1], "UINT64", np.array([1] * 50 + [2**64 - 1], np.uint64)),
        ([True] * 50, "BOOL", np.ones(50, bool)),
        ([True, 2] * 50, "INT8", np.array([1, 2] * 50, np.int8)),
        ([], "INT32", np.array([], np.int32)),
        ([[], []], "FP16", np.empty((2, 0), np.float16)),
    ],
)
def test_python_value_becomes_what_the_model_takes(value, datatype, expected):
    """Numbers, lists and buffers arrive with shape and value."""
    tensor = to_tensor(value, datatype, WHAT)
    assert tensor[1] == expected.shape
    assert read(tensor) == expected.tobytes()


def test_not_a_number_stays_one():
    """A NaN is rounded like nothing else."""
    for datatype, dtype in (("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64)):
        values = np.frombuffer(
            read(to_tensor([math.nan, 1e9 if dtype != np.float16 else 9.0], datatype, WHAT)), dtype
        )
        assert np.isnan(values).tolist() == [True, False]
    assert read(to_tensor([math.nan], "BF16", WHAT)) == np.uint16(0x7FC0).tobytes()


@given(hnp.arrays(np.float32, 50, elements=hnp.from_dtype(np.dtype(np.float32))))
@settings(deadline=None)
def test_bfloat16_is_rounded_to_nearest(values):
    """Floats in lists become the BF16 values that ml_dtypes makes of them."""
    values = values[np.abs(values) < 3e38]
    got = np.frombuffer(read(to_tensor(values.tolist(), "BF16", WHAT)), BF16)
    np.testing.assert_array_equal(got, values.astype(BF16))


def nearest_bfloat16(number):
    """Compute the bits of the nearest BF16 value by exact arithmetic; ties go to even bits."""
    sign, size = (0x8000 if math.copysign(1, number) < 0 else 0), Fraction(abs(number))
    if size >= Fraction(2) ** 128:
        return sign | 0x7F80
    exponent = max(math.frexp(abs(number))[1] - 1, -126) if number else -126
    steps = round(size / Fraction(2) ** (exponent - 7))  # Python rounds ties to even
    return sign | ((exponent + 126) * 128 + steps)


OFF = 2**-30  # what an FP32 beside 1 does not show
TIES = [1 + 2**-8, 1 + 3 * 2**-8, 2**-134, 3 * 2**-134, 2**-126 - 2**-134, 2**127 * (2 - 2**-8)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("many", [1, 50])
def test_float_is_rounded_once_to_bfloat16(sign, many):
    """To the nearest, though FP32 is on the way; ties go to even, at every end of the range."""
    assert read(to_tensor(1 + 2**-8 + OFF, "BF16", WHAT)) == np.uint16(0x3F81).tobytes()
    values = [value * scale for value in TIES for scale in (1 - OFF, 1.0, 1 + OFF)]
    values += [0.0, 5e-324, 2.0**-150, 2.0**-133, 255.5, 2.0**127 * (2 - 2**-7), 1e-40]
    values = [sign * v for v in values if nearest_bfloat16(v) != 0x7F80]
    expected = [nearest_bfloat16(v) for v in values]
    assert sign * TIES[-1] * (1 - OFF) in values  # the largest that does not overflow
    for kind in (float, np.float64):
        tensor = to_tensor([kind(v) for v in values] * many, "BF16", WHAT)
        assert np.frombuffer(read(tensor), np.uint16).tolist() == expected * many
        for value, bits in zip(values, expected, strict=True):
            assert read(to_tensor(kind(value), "BF16", WHAT)) == np.uint16(bits).tobytes()
    with pytest.raises(InvalidArgumentError, match="is out of range for BF16"):
        to_tensor(sign * TIES[-1], "BF16", WHAT)


@given(
    st.lists(st.floats(-3.38e38, 3.38e38)),
    st.lists(st.tuples(st.integers(0, 0x7F7E), st.integers(-3, 3), st.integers(0, 60))),
)
@settings(deadline=None)
def test_any_float_becomes_the_nearest_bfloat16(values, ties):
    """Random values, and values close to a tie, as exact arithmetic has them."""
    for bits, away, shift in ties:
        middle = float(np.uint32(bits << 16 | 0x8000).view(np.float32))
        values.append(middle * (1 + away * 2.0**-shift / 8))
    values = [value for value in values if abs(value) < 3.38e38]
    got = np.frombuffer(read(to_tensor(values, "BF16", WHAT)), np.uint16)
    assert got.tolist() == [nearest_bfloat16(value) for value in values]


def nested(depth, value):
    """Put a value into so many lists."""
    for _ in range(depth):
        value = [value]
    return value


def containing_itself(*others):
    """Make a list that contains itself, twice, behind others."""
    value = list(others)
    value += [value, value]
    return value


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL", "BF16", "BYTES"])
@pytest.mark.parametrize(
    "make",
    [
        containing_itself,
        lambda: [containing_itself()] * 50,
        lambda: nested(DEEPEST + 1, True),
        lambda: nested(5000, True),
    ],
    ids=["itself", "many", "deep", "deeper"],
)
def test_lists_without_end_are_refused(make, datatype):
    """At once, and by the name of the input."""
    value = make()
    with pytest.raises(InvalidArgumentError) as caught:
        to_tensor(value, datatype, WHAT)
    assert str(caught.value) == (
        f"{WHAT}: lists nested more than {DEEPEST} deep, or one that contains itself"
    )


def test_list_that_contains_itself_behind_a_number_is_refused():
    """Wherever it is."""
    for value in (
        nested(DEEPEST, np.zeros(1, np.float32)),
        containing_itself(1.0),
        containing_itself(*[1.0] * 50),
        [[1, containing_itself(1)]],
    ):
        with pytest.raises(InvalidArgumentError, match="or one that contains itself"):
            to_tensor(value, "FP32", WHAT)
    with pytest.raises(InvalidArgumentError, match="or one that contains itself"):
        to_tensor(nested(DEEPEST, np.array(["a"])), "BYTES", WHAT)


def test_as_many_levels_as_numpy_has_dimensions_are_taken():
    """With an array in them too."""
    for value in (nested(DEEPEST, 1.5), nested(DEEPEST - 1, np.float32([1.5]))):
        assert to_tensor(value, "FP32", WHAT)[1] == (1,) * DEEPEST
    assert to_tensor(nested(DEEPEST, "a"), "BYTES", WHAT)[1] == (1,) * DEEPEST


def test_items_that_cannot_be_added_are_no_numbers():
    """Whatever they do when they are asked."""

    class Trouble:
        def __radd__(self, other):
            raise RuntimeError("not with me")

    with pytest.raises(TypeError, match=r"element \[50\]: expected a number for FP32"):
        to_tensor([1.0] * 50 + [Trouble()], "FP32", WHAT)


@given(st.integers(-(2**80), 2**80), st.sampled_from(["FP16", "FP32", "FP64", "BF16"]))
@settings(deadline=None, max_examples=300)
def test_integer_in_a_float_is_exact_or_refused(number, name):
    """No integer changes its value on the way."""
    dtype = BF16 if name == "BF16" else element_type(name).dtype
    nearest = np.float32(number).astype(BF16) if name == "BF16" else None
    with np.errstate(over="ignore"):
        nearest = float(nearest if nearest is not None else dtype.type(number))
    if nearest == number:
        assert float(np.frombuffer(read(to_tensor(number, name, WHAT)), dtype)[0]) == number
    else:
        with pytest.raises(InvalidArgumentError):
            to_tensor(number, name, WHAT)


@given(st.lists(st.integers(-(2**66), 2**66), min_size=1), st.sampled_from(INTEGERS))
@settings(deadline=None, max_examples=300)
def test_integers_are_in_range_or_refused(numbers, row):
    """A list is taken if the type holds each of it."""
    if all(row.low <= number <= row.high for number in numbers):
        tensor = to_tensor(numbers, row.name, WHAT)
        assert np.frombuffer(read(tensor), row.dtype).tolist() == numbers
    else:
        with pytest.raises(InvalidArgumentError, match="is out of range"):
            to_tensor(numbers, row.name, WHAT)


WRONG_DTYPE = [
    (FLOATS, "FP64", BAD, "float64", "float32"),
    (np.zeros(2, ">f8"), "FP32", BAD, "float32", ">f8"),
    (np.zeros(2, np.int64), "INT32", BAD, "int32", "int64"),
    (np.zeros(2, bool), "UINT8", BAD, "uint8", "bool"),
    (np.zeros(2, np.uint8), "BOOL", BAD, "bool", "uint8"),
    (np.zeros(2, np.float32), "BF16", BAD, "bfloat16 or uint16", "float32"),
    (np.zeros(2, BF16), "FP16", BAD, "float16", "bfloat16"),
    (np.zeros(2, BF16), "UINT16", BAD, "uint16", "bfloat16"),
    (np.array(["a"]), "FP32", BAD, "float32", "<U1"),
    ([np.zeros(2)], "FP32", BAD, "float32", "float64"),
    (HasArray(np.zeros(2)), "FP32", BAD, "float32", "float64"),
    (HasDLPack(np.zeros(2)), "FP32", BAD, "float32", "float64"),
    ([[1.0, 2.0], np.zeros(2)], "FP32", BAD, "float32", "float64"),
    ([[1, 2], np.array([3, 4], np.int64)], "FP32", BAD, "float32", "int64"),
    ([[1, 2], [3, np.array(4, np.int8)]], "INT64", BAD, "int64", "int8"),
    ([[1.0, 2.0], HasArray(np.zeros(2))], "FP32", BAD, "float32", "float64"),
    ([[1.0, 2.0], HasDLPack(np.zeros(2))], "FP32", BAD, "float32", "float64"),
    ([[1.0, 2.0], array.array("d", [3, 4])], "FP32", BAD, "float32", "float64"),
    ([[[1.0] * 50] * 2, np.zeros((2, 50))], "FP32", BAD, "float32", "float64"),
    ([[1.0, 2.0], np.zeros(2, np.float32)], "BF16", BAD, "bfloat16 or uint16", "float32"),
    (np.zeros(2, np.complex64), "FP32", TypeError, "float32", "complex64"),
    (np.zeros(2, "M8[s]"), "INT64", TypeError, "int64", "datetime64[s]"),
    (np.zeros(2, "m8[s]"), "INT64", TypeError, "int64", "timedelta64[s]"),
    (np.zeros(2, [("a", "<i4")]), "INT32", TypeError, "int32", "[('a', '<i4')]"),
    (np.zeros(2, object), "INT32", TypeError, "int32", "object"),
]


@pytest.mark.parametrize(("value", "datatype", "kind", "wanted", "got"), WRONG_DTYPE)
def test_array_of_another_dtype_is_refused(value, datatype, kind, wanted, got):
    """It is never cast; the message says what was expected and what came."""
    with pytest.raises(kind) as caught:
        to_tensor(value, datatype, WHAT)
    assert str(caught.value) == (f"{WHAT}: expected {datatype} ({wanted}), got an array of {got}")


@pytest.mark.parametrize(
    "value", [None, "1", {1: 2}, 1j, {1.0}, object, iter([1.0])], ids=lambda v: type(v).__name__
)
def test_what_is_no_number_at_all_is_refused(value):
    """A TypeError, as numpy's users expect."""
    with pytest.raises(TypeError) as caught:
        to_tensor(value, "FP32", WHAT)
    if value is not object:
        assert str(caught.value) == (
            f"{WHAT}: expected an array, list or scalar for FP32, got {type(value).__name__}"
        )


WRONG_ELEMENT = [
    ([1, None], "FP32", "[1]", "None (NoneType)"),
    ([[1, 2], [3, "4"]], "INT8", "[1,1]", "'4' (str)"),
    ([1j], "FP64", "[0]", "1j (complex)"),
    ([{}], "FP64", "[0]", "{} (dict)"),
    ([1.0] * 50 + ["4"], "FP64", "[50]", "'4' (str)"),
    ([1.0] * 50 + [Fraction(1, 3)], "FP64", "[50]", "Fraction(1, 3) (Fraction)"),
    ([[1, 2], b"ab"], "UINT8", "[1]", "b'ab' (bytes)"),
    ([np.zeros(2), [1.0, None]], "FP64", "[1,1]", "None (NoneType)"),
    (
        [np.timedelta64(1, "s")],
        "INT64",
        "[0]",
        "datetime.timedelta(seconds=1) (timedelta64)",
    ),
    (np.datetime64(1, "D"), "INT64", "", "datetime.date(1970, 1, 2) (datetime64)"),
]


@pytest.mark.parametrize(("value", "datatype", "index", "shown"), WRONG_ELEMENT)
def test_element_that_is_no_number_is_refused(value, datatype, index, shown):
    """The message says which."""
    with pytest.raises(TypeError) as caught:
        to_tensor(value, datatype, WHAT)
    where = f"{WHAT}, element {index}" if index else WHAT
    assert str(caught.value) == f"{where}: expected a number for {datatype}, got {shown}"


NOT_HELD = [
    ([1, 2.0], "INT32", ", element [1]: 2.0 (float) is a float, but INT32 is not"),
    (np.float32(2), "INT32", ": 2.0 (float32) is a float, but INT32 is not"),
    (1.5, "BOOL", ": 1.5 (float) is a float, but BOOL is not"),
    ([True, 0], "BOOL", ", element [1]: 0 (int) is not a bool"),
    ([0, 256], "UINT8", ", element [1]: 256 (int) is out of range for UINT8"),
    (-1, "UINT64", ": -1 (int) is out of range for UINT64"),
    ([[2**15, -1]], "INT16", ", element [0,0]: 32768 (int) is out of range for INT16"),
    ([[-1, 2**64]], "INT64", f", element [0,1]: {2**64} (int) is out of range for INT64"),
    ([2**63, -1], "INT64", f", element [0]: {2**63} (int) is out of range for INT64"),
    (np.int64(300), "INT8", ": 300 (int64) is out of range for INT8"),
    ([2**24 + 1], "FP32", ", element [0]: 16777217 (int) has no exact value in FP32"),
    ([2**53 + 1, 0.5], "FP64", f", element [0]: {2**53 + 1} (int) has no exact value in FP64"),
    ([0.5, 2049], "FP16", ", element [1]: 2049 (int) has no exact value in FP16"),
    ([257], "BF16", ", element [0]: 257 (int) has no exact value in BF16"),
    ([10**400], "FP64", ", element [0]: {large} (int) has no exact value in FP64"),
    ([1.0, 1e39], "FP32", ", element [1]: 1e+39 (float) is out of range for FP32"),
    ([65520.0], "FP16", ", element [0]: 65520.0 (float) is out of range for FP16"),
    ([-3.4e38], "BF16", ", element [0]: -3.4e+38 (float) is out of range for BF16"),
    (
        [np.float32(0.3)],
        "FP16",
        f", element [0]: {float(np.float32(0.3))} (float32) {NOT_EXACT} FP16",
    ),
    (
        [0.5] * 60 + [np.float32(0.3)],
        "FP16",
        f", element [60]: {float(np.float32(0.3))} (float32) {NOT_EXACT} FP16",
    ),
    (
        [[0.5, np.float16(0.3)]],
        "BF16",
        f", element [0,1]: {float(np.float16(0.3))} (float16) {NOT_EXACT} BF16",
    ),
    ([1] * 50 + [2.0], "INT32", ", element [50]: 2.0 (float) is a float, but INT32 is not"),
    ([1] * 50 + [2**63], "INT64", f", element [50]: {2**63} (int) is out of range for INT64"),
    ([0.5] * 50 + [2**24 + 1], "FP32", f", element [50]: 16777217 (int) {NOT_EXACT} FP32"),
    ([True] * 50 + [1], "BOOL", ", element [50]: 1 (int) is not a bool"),
    (
        [FLOATS, [[1.0, 2.0, 2**24 + 1]] * 2],
        "FP32",
        f", element [1,0,2]: 16777217 (int) {NOT_EXACT} FP32",
    ),
    ([np.zeros(2), np.zeros(3)], "FP64", RAGGED),
    ([np.zeros(2), 1.0], "FP64", RAGGED),
    ([1.0, np.zeros(1)], "FP64", RAGGED),
    ([[1, 2], [3]], "INT32", RAGGED),
    ([[1, 2], 3], "FP32", RAGGED),
    ([1, [2, 3]], "FP32", RAGGED),
    (MASKED, "FP64", HIDDEN),
    ([MASKED], "FP64", HIDDEN),
    ([np.zeros(2), MASKED], "FP64", HIDDEN),
    ([[1.0, 2.0], MASKED], "FP64", HIDDEN),
    ([[1.0, np.ma.masked]], "FP64", HIDDEN),
    ([1.0] * 50 + [np.ma.masked], "FP64", HIDDEN),
    (HasArray(MASKED), "FP64", HIDDEN),
    ([HasArray(MASKED)], "FP64", HIDDEN),
]


@pytest.mark.parametrize(("value", "datatype", "message"), NOT_HELD)
def test_number_that_would_change_is_refused(value, datatype, message):
    """The message says which and why."""
    with pytest.raises(InvalidArgumentError) as caught:
        to_tensor(value, datatype, WHAT)
    assert str(caught.value) == WHAT + message.format(large=reprlib.repr(10**400))


def test_number_too_long_to_be_written_is_refused():
    """Python itself refuses to print such a number; the message still comes."""
    with pytest.raises(
        InvalidArgumentError, match=r", element \[1\]: .* is out of range for INT64"
    ):
        to_tensor([1, 10**5000], "INT64", WHAT)


def test_extended_precision_is_not_rounded_in_silence():
    """A longdouble goes where its value is exact."""
    assert read(to_tensor(np.longdouble(0.5), "FP32", WHAT)) == np.float32(0.5).tobytes()
    with pytest.raises(InvalidArgumentError, match="has no exact value in FP64"):
        to_tensor(np.longdouble(1) / 3, "FP64", WHAT)
    with pytest.raises(InvalidArgumentError, match=r"element \[1\]: .* has no exact value in FP64"):
        to_tensor([0.5, np.longdouble(1) / 3], "FP64", WHAT)


def test_object_that_fails_to_offer_its_array_is_refused():
    """The object's own reason is in the message."""

    class Elsewhere:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("it is on the moon")

    class Unread:
        @property
        def __array_interface__(self):
            raise ValueError("it is gone")

    class Device:
        def __dlpack__(self, **options):
            raise BufferError("unreachable")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(TypeError) as caught:
        to_tensor(Elsewhere(), "FP32", WHAT)
    assert (
        str(caught.value) == f"{WHAT}: this Elsewhere cannot be read as an array: it is on the moon"
    )
    for value in (Unread(), [Unread()]):
        with pytest.raises(TypeError) as caught:
            to_tensor(value, "FP32", WHAT)
        assert str(caught.value) == f"{WHAT}: this Unread cannot be read as an array: it is gone"
    with pytest.raises(TypeError) as caught:
        to_tensor(Device(), "FP32", WHAT)
    assert str(caught.value) == f"{WHAT}: this Device cannot be read as an array: unreachable"
