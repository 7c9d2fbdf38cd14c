# SPDX-License-Identifier: Apache-2.0
"""BYTES tensors are framed, unpacked and refused exactly."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonffi import _bytes
from tritonffi._enums import DataType
from tritonffi._errors import InternalError, InvalidArgumentError
from tritonffi._native import ffi, lib
from tritonffi._tensor import from_tensor, to_tensor

WHAT = "model 'm', input 'x'"
BYTES = int(DataType.BYTES)
EVERYTHING = 2**64 - 1
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# Around the limits below which a loop frames, and above which it is done in pieces.
COUNTS = [0, 1, 2, 31, 32, 33, 127, 128, 129, 8191, 8192, 8193, 20000]


def frame(parts):
    """Frame bytes objects the plain way."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def encode(value):
    """Return the framed bytes and the shape that a value becomes."""
    pointer, shape, size = to_tensor(value, "BYTES", WHAT)
    return bytes(ffi.buffer(pointer, size)), shape


def decode(data, shape):
    """Unpack framed bytes that lie at an odd address."""
    memory = ffi.new("char[]", len(data) + 1)
    ffi.buffer(memory)[1:] = data
    return from_tensor(BYTES, shape, memory + 1, len(data), WHAT)


def scan(data, count=EVERYTHING, offset=0, size=None):
    """Walk over framed bytes; returns what was found, where that ends, and the lengths."""
    at = ffi.new("size_t *", offset)
    lengths = ffi.new("uint32_t[]", min(count, len(data)) or 1)
    size = len(data) if size is None else size
    found = lib.tffi_bytes_scan(data, size, count, at, lengths)
    # A second walk without lengths must agree, and so must the yes-or-no form of it.
    again = ffi.new("size_t *", offset)
    assert lib.tffi_bytes_scan(data, size, count, again, ffi.NULL) == found
    assert again[0] == at[0]
    again[0] = offset
    assert lib.tffi_bytes_skip(data, size, count, again) == (found == count)
    assert again[0] == at[0]
    return found, at[0], list(lengths[0:found])


def test_scan_finds_every_element():
    """Lengths and the end are exact, from any offset on."""
    data = frame([b"ab", b"", b"\0\0\0", b"x" * 300])
    assert scan(data) == (4, len(data), [2, 0, 3, 300])
    assert scan(data, 4) == (4, len(data), [2, 0, 3, 300])
    assert scan(data, 2) == (2, 10, [2, 0])
    assert scan(data, 2, offset=6) == (2, 17, [0, 3])
    assert scan(data, 0, offset=6) == (0, 6, [])
    assert scan(data, 1, offset=len(data)) == (0, len(data), [])
    assert scan(b"") == (0, 0, [])


def test_scan_of_nothing_needs_no_memory():
    """NULL is no data."""
    at = ffi.new("size_t *")
    assert lib.tffi_bytes_scan(ffi.NULL, 0, 5, at, ffi.NULL) == 0
    assert lib.tffi_bytes_skip(ffi.NULL, 0, 0, at)


def test_scan_stops_before_an_element_that_is_cut_short():
    """Whatever byte the data end at, no element is made up and none is lost."""
    parts = [b"abc", b"", b"defgh"]
    data = frame(parts)
    ends = [0, 7, 11, 20]
    for size in range(len(data) + 1):
        whole = sum(end <= size for end in ends[1:])
        assert scan(data, 3, size=size) == (whole, ends[whole], [3, 0, 5][:whole])


@pytest.mark.parametrize("length", [2, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1])
def test_scan_does_not_believe_a_length(length):
    """A length past the end is refused, however large: no sum wraps."""
    data = frame([b"ok"]) + struct.pack("<I", length) + b"?"
    assert scan(data) == (1, 6, [2])


@pytest.mark.parametrize("offset", [8, 9, 2**64 - 4, 2**64 - 1])
def test_scan_from_behind_the_end_finds_nothing(offset):
    """The offset is checked as well."""
    assert scan(b"\0" * 8, offset=offset) == (0, offset, [])


@given(st.binary(max_size=60), st.integers(0, 10), st.integers(0, 70))
@settings(deadline=None, max_examples=300)
def test_scan_of_any_bytes_is_what_a_plain_reader_finds(data, count, offset):
    """Random data are read as far as they make sense."""
    lengths, at = [], offset
    while len(lengths) < count and at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        if at + 4 + length > len(data):
            break
        lengths.append(length)
        at += 4 + length
    assert scan(data, count, offset) == (len(lengths), at, lengths)


def pack(payload, lengths, room):
    """Frame by lengths into memory with a guard behind it."""
    framed = ffi.new("unsigned char[]", b"\xee" * (room + 8))
    packed = lib.tffi_bytes_pack(
        payload, len(payload), ffi.new("int64_t[]", lengths), len(lengths), framed, room
    )
    assert ffi.buffer(framed)[room : room + 8] == b"\xee" * 8
    return packed, ffi.buffer(framed)[:room]


def test_pack_writes_lengths_and_elements():
    """Every byte of it."""
    assert pack(b"abcde", [2, 0, 3], 17) == (3, frame([b"ab", b"", b"cde"]))
    assert pack(b"", [], 0) == (0, b"")


@pytest.mark.parametrize(
    ("lengths", "room", "packed"),
    [
        ([2, 4], 100, 1),  # the payload ends
        ([2, 3], 12, 1),  # no room for the element
        ([2, 3], 9, 1),  # nor for its length
        ([2, 3], 3, 0),
        ([2, -1], 100, 1),
        ([2**32], 100, 0),
        ([2**63 - 1], 100, 0),
        ([-(2**63)], 100, 0),
    ],
)
def test_pack_stops_at_a_length_that_cannot_be(lengths, room, packed):
    """It tells which, and writes nothing past the end."""
    assert pack(b"abcde", lengths, room)[0] == packed


def pack_separated(joined, count, room):
    """Frame by separators into memory with a guard behind it."""
    framed = ffi.new("unsigned char[]", b"\xee" * (room + 8))
    done = lib.tffi_bytes_pack_separated(joined, len(joined), b"|", count, framed, room)
    assert ffi.buffer(framed)[room : room + 8] == b"\xee" * 8
    return ffi.buffer(framed)[:room] if done else None


@given(st.lists(st.binary(max_size=9).map(lambda part: part.replace(b"|", b"")), max_size=9))
@settings(deadline=None)
def test_pack_separated_writes_what_lies_between(parts):
    """First, last and empty elements too; another count or less room is refused."""
    joined = b"|".join(parts)
    framed = frame(parts)
    assert pack_separated(joined, len(parts), len(framed)) == framed
    if parts:
        assert pack_separated(joined, len(parts) + 1, len(framed) + 4) is None
        assert pack_separated(joined, len(parts), len(framed) - 1) is None
        assert pack_separated(joined + b"|", len(parts), len(framed)) is None
    if len(parts) > 1:
        assert pack_separated(joined, len(parts) - 1, len(framed)) is None
    assert pack_separated(b"|", 0, 8) is None


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
@settings(deadline=None)
def test_format_is_that_of_the_struct_module(lengths):
    """Headers are skipped, elements taken."""
    text = ffi.new("char[]", b"?" * (13 * len(lengths) + 1))
    size = lib.tffi_bytes_format(ffi.new("uint32_t[]", lengths), len(lengths), text)
    expected = "".join(f"4x{length}s" for length in lengths).encode()
    assert ffi.buffer(text)[: size + 1] == expected + b"?"


def spread(parts, width):
    """Copy framed elements that lie at an odd address to rows, with a guard behind them."""
    data = b"??" + frame(parts)
    size = width * len(parts)
    rows = ffi.new("unsigned char[]", b"\xee" * (size + 8))
    lengths = ffi.new("uint32_t[]", [len(part) for part in parts])
    whole = lib.tffi_bytes_spread(data, 2, lengths, len(parts), width, rows)
    assert ffi.buffer(rows)[size : size + 8] == b"\xee" * 8
    return ffi.buffer(rows)[:size] if whole else None


@given(st.lists(st.binary(max_size=5)), st.integers(0, 6))
@settings(deadline=None)
def test_spread_pads_what_the_padding_does_not_change(parts, width):
    """An element that is too long, or ends as the padding begins, is not for it."""
    fits = all(len(part) <= width and part[-1:] != b"\0" for part in parts)
    expected = b"".join(part.ljust(width, b"\0") for part in parts) if fits else None
    assert spread(parts, width) == expected


SIMPLE = ["", "a", "ünï", "日本語", "\N{GRINNING FACE}", "nul\0inside", "nul behind\0\0", " ", "\n"]


def as_list(parts):
    """A list is content as it stands."""
    return list(parts)


def as_objects(parts):
    """An object array is content as it stands."""
    made = np.empty(len(parts), object)
    made[:] = parts
    return made


@pytest.mark.parametrize("container", [as_list, tuple, as_objects])
@pytest.mark.parametrize("repeat", [1, 1000])
def test_text_and_bytes_are_exact(container, repeat):
    """Empty, non-ASCII, and with NULs anywhere, few or many."""
    texts = SIMPLE * repeat
    parts = [text.encode() for text in texts]
    mixed = [
        text if i % 3 else part for i, (text, part) in enumerate(zip(texts, parts, strict=True))
    ]
    for value in (texts, parts, mixed):
        assert encode(container(value)) == (frame(parts), (len(parts),))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", [str, bytes])
@pytest.mark.parametrize("ending", ["", "é", "\0"])
def test_any_number_of_elements_goes_there_and_back(count, kind, ending):
    """Around the numbers where the way of doing it changes."""
    texts = [f"{i % 97:0{i % 7}}{ending}" for i in range(count)]
    parts = [text.encode() for text in texts]
    data, shape = encode(texts if kind is str else parts)
    assert (data, shape) == (frame(parts), (count,))
    back = decode(data, (count,))
    assert back.tolist() == parts
    assert all(type(part) is bytes for part in back)


@pytest.mark.parametrize("count", [1, 40])
def test_long_elements_are_exact(count):
    """They are framed without a second copy."""
    parts = [bytes([i]) * (5000 + i) for i in range(count)]
    assert encode(parts) == (frame(parts), (count,))
    assert decode(frame(parts), (count,)).tolist() == parts


@pytest.mark.parametrize("odd", [b"", b"\0", b"a\0", b"\0a", b"a" * 255, b"a" * 256, b"a" * 257])
@pytest.mark.parametrize("length", [0, 1, 100, 256])
@pytest.mark.parametrize("place", [0, 77, -1])
def test_one_odd_element_among_many_is_exact(odd, length, place):
    """One that is longer than the others, or ends with a NUL, has all of them taken otherwise."""
    parts = [b"x" * length] * 200
    parts[place] = odd
    assert encode(parts) == (frame(parts), (200,))
    assert decode(frame(parts), (200,)).tolist() == parts


@given(st.lists(st.one_of(TEXTS, st.binary(max_size=20))), st.booleans())
@settings(deadline=None, max_examples=300)
def test_round_trip_is_the_identity(values, many):
    """Any mixture of text and bytes comes back as the bytes that it is."""
    values = values * 40 if many else values
    parts = [value.encode() if isinstance(value, str) else value for value in values]
    data, shape = encode(values)
    assert data == frame(parts)
    assert decode(data, shape).tolist() == parts


@given(st.lists(TEXTS.map(lambda text: text.rstrip("\0")), min_size=1))
@settings(deadline=None)
def test_fixed_width_arrays_hold_what_numpy_says(texts):
    """The padding of S and U arrays is no content; NULs inside are."""
    parts = [text.encode() for text in texts]
    assert encode(np.array(texts)) == (frame(parts), (len(parts),))
    assert encode(np.array(texts).astype(np.array(texts).dtype.newbyteorder())) == encode(texts)
    assert encode(np.array(parts)) == (frame(parts), (len(parts),))


def test_wide_arrays_of_text_are_exact():
    """Every layout and shape of S, U and object arrays is read in row order."""
    texts = np.array([f"text {i}é" for i in range(60)]).reshape(3, 4, 5)
    for base in (texts, texts.astype(object), np.char.encode(texts, "utf-8")):
        for value in (
            base,
            base.T,
            base[::-1, ::2],
            np.asfortranarray(base),
            base[1, 2, 3:],
            base[:0],
        ):
            parts = [t if isinstance(t, bytes) else t.encode() for t in value.reshape(-1).tolist()]
            assert encode(value) == (frame(parts), value.shape)


def variable_width():
    """Arrays of numpy's own variable-width text, where this numpy has it."""
    if not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"):
        return []
    return [np.array(SIMPLE, np.dtypes.StringDType())]


@pytest.mark.parametrize(
    ("value", "parts", "shape"),
    [
        ("é", ["é".encode()], ()),
        ("", [b""], ()),
        (b"a\0", [b"a\0"], ()),
        (bytearray(b"a\0"), [b"a\0"], ()),
        (memoryview(b"abcd")[::2], [b"ac"], ()),
        (np.str_("é"), ["é".encode()], ()),
        (np.bytes_(b"a"), [b"a"], ()),
        (np.array("é"), ["é".encode()], ()),
        (np.array(b"a\0b", object), [b"a\0b"], ()),
        ([bytearray(b"a\0"), memoryview(b"b"), np.str_("c")], [b"a\0", b"b", b"c"], (3,)),
        ([], [], (0,)),
        ([[], []], [], (2, 0)),
        (np.empty((2, 0), object), [], (2, 0)),
        ([["a", "b"], ("c", "d")], [b"a", b"b", b"c", b"d"], (2, 2)),
        ([[["a"]], [["b"]]], [b"a", b"b"], (2, 1, 1)),
        ([np.array(["a", "b"]), ["c", "d"]], [b"a", b"b", b"c", b"d"], (2, 2)),
        *[(value, [text.encode() for text in SIMPLE], (9,)) for value in variable_width()],
    ],
)
def test_every_kind_of_text_is_taken(value, parts, shape):
    """Alone, nested, and as arrays of no dimension or no element."""
    assert encode(value) == (frame(parts), shape)
    assert decode(frame(parts), shape).tolist() == np.array(parts, object).reshape(shape).tolist()


def test_object_that_offers_an_array_of_text_is_taken():
    """A column of a table, say."""

    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.array(["a", "b"], object)

    assert encode(Column()) == (frame([b"a", b"b"]), (2,))


ALONE = ": expected an array, list or scalar for BYTES, got "
KIND = "expected str or bytes, got "
RAGGED = ": lists of different lengths, or lists beside single values"
SURROGATE = "has no UTF-8 form: surrogates not allowed"
MASKED = np.ma.masked_array(["a", "b"], [0, 1])
HIDDEN = ": the array has masked elements; fill them first"
ARRAY = ": expected BYTES (object, S or U), got an array of "


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (None, TypeError, f"{ALONE}NoneType"),
        (7, TypeError, f"{ALONE}int"),
        (["a", None], TypeError, f", element [1]: {KIND}None (NoneType)"),
        ([b"a", 7], TypeError, f", element [1]: {KIND}7 (int)"),
        ([["a", "b"], ["c", 1.5]], TypeError, f", element [1,1]: {KIND}1.5 (float)"),
        (["a"] * 5000 + [b"b", True], TypeError, f", element [5001]: {KIND}True (bool)"),
        (["a", ["b"]], TypeError, f", element [1]: {KIND}['b'] (list)"),
        (np.array([["a", None]], object), TypeError, f", element [0,1]: {KIND}None (NoneType)"),
        (np.array(None, object), TypeError, f": {KIND}None (NoneType)"),
        ([np.array([1])], TypeError, f", element [0,0]: {KIND}1 (int)"),
        ([np.array([1]), b"a"], InvalidArgumentError, RAGGED),
        ([["a"], "b"], InvalidArgumentError, RAGGED),
        ([["a"], ["b", "c"]], InvalidArgumentError, RAGGED),
        ([MASKED], InvalidArgumentError, HIDDEN),
        ([["a", "b"], MASKED], InvalidArgumentError, HIDDEN),
        ([np.ma.masked], InvalidArgumentError, HIDDEN),
        ([["a", "b"], MASKED.astype(object)], InvalidArgumentError, HIDDEN),
        ("\ud800", InvalidArgumentError, rf": '\ud800' (str) {SURROGATE}"),
        (
            ["a"] * 40 + ["\udfff"],
            InvalidArgumentError,
            rf", element [40]: '\udfff' (str) {SURROGATE}",
        ),
        (
            np.array(["a", "\ud800"]),
            InvalidArgumentError,
            rf", element [1]: '\ud800' (str) {SURROGATE}",
        ),
        (np.zeros(2), InvalidArgumentError, f"{ARRAY}float64"),
        (np.zeros(2, np.uint8), InvalidArgumentError, f"{ARRAY}uint8"),
        (np.zeros(2, "V3"), TypeError, f"{ARRAY}|V3"),
        (np.zeros(2, "M8[s]"), TypeError, f"{ARRAY}datetime64[s]"),
    ],
)
def test_what_is_no_text_is_refused(value, kind, message):
    """The message names the input and the element."""
    with pytest.raises(kind) as caught:
        to_tensor(value, "BYTES", WHAT)
    assert str(caught.value) == WHAT + message


@pytest.mark.parametrize("count", [3, 300])
def test_element_over_the_limit_is_refused(count, monkeypatch):
    """The length of one has 32 bits; here the object only says that it is so long."""

    class Long(bytes):
        __slots__ = ()

        def __len__(self):
            return 2**32

    monkeypatch.setattr(_bytes, "_as_bytes", lambda element, *_: element)
    monkeypatch.setattr(_bytes, "_SHORT", 2**32)
    monkeypatch.setattr(_bytes, "room", lambda size: np.empty(100, np.uint8))
    with pytest.raises(InvalidArgumentError) as caught:
        to_tensor([b"a", b"b", Long(b"c")] * (count // 3), "BYTES", WHAT)
    assert str(caught.value) == (
        f"{WHAT}, element [2]: 4294967296 bytes are too many, because the length of a BYTES "
        "element has 32 bits"
    )


@pytest.mark.parametrize("count", [3, 20000])
def test_broken_framing_is_an_error_that_names_the_element(count):
    """An output is never shown in part."""
    data = frame([b"abc"] * count)
    size = len(data)
    cut = f"cut short: there are {{}} bytes for BYTES of shape [{count}]"
    for missing in (1, 3, 4, 6):
        with pytest.raises(InternalError) as caught:
            decode(data[:-missing], (count,))
        assert str(caught.value) == f"{WHAT}, element [{count - 1}]: {cut.format(size - missing)}"
    with pytest.raises(InternalError) as caught:
        decode(data[:-7], (count,))
    assert str(caught.value) == f"{WHAT}, element [{count - 1}]: {cut.format(size - 7)}"
    with pytest.raises(InternalError) as caught:
        decode(b"", (count,))
    assert str(caught.value) == f"{WHAT}, element [0]: {cut.format(0)}"
    with pytest.raises(InternalError) as caught:
        decode(data + b"\0", (count,))
    assert str(caught.value) == (
        f"{WHAT}: BYTES of shape [{count}] end after {size} bytes, but there are {size + 1}"
    )


def test_broken_framing_of_other_shapes_is_an_error():
    """Of no dimension, no element, several dimensions, and more elements than memory could hold."""
    with pytest.raises(InternalError, match=r"input 'x': cut short: there are 3 bytes"):
        decode(b"\0\0\0", ())
    with pytest.raises(InternalError, match=r"of shape \[2,0\] end after 0 bytes, but there are 4"):
        decode(b"\0\0\0\0", (2, 0))
    with pytest.raises(InternalError, match=r"element \[1,0\]: cut short"):
        decode(frame([b"a", b"b"]), (2, 2))
    with pytest.raises(InternalError, match=r"element \[0,2\]: cut short"):
        decode(frame([b"a", b"b"]), (2**31, 2**31))


def test_array_of_bytes_may_be_read_only():
    """As the inputs of a function are."""
    pointer, shape, size = to_tensor(["a", "b"], "BYTES", WHAT)
    assert from_tensor(BYTES, shape, pointer, size, WHAT).flags.writeable
    assert not from_tensor(BYTES, shape, pointer, size, WHAT, writable=False).flags.writeable


def test_large_framed_memory_begins_on_a_page():
    """As every buffer of ours does."""
    pointer, _, _ = to_tensor(["text"] * 5000, "BYTES", WHAT)
    assert int(ffi.cast("uintptr_t", pointer)) % 4096 == 0


def test_padded_elements_are_read_by_their_lengths():
    """What lies behind them does not count; one that is longer than its room is told."""
    data = frame([b"ab"]) + b"\xff" * 6 + frame([b""]) + b"\x07" * 8 + frame([b"x" * 8])
    memory = ffi.new("char[]", data)
    array = _bytes.unpack_padded((3, 1), memory, len(data), 12, WHAT)
    assert array.tolist() == [[b"ab"], [b""], [b"x" * 8]]
    memory[24] = b"\x09"
    with pytest.raises(InternalError, match=r"input 'x', element \[2,0\]: cut short: there are 36"):
        _bytes.unpack_padded((3, 1), memory, len(data), 12, WHAT)
