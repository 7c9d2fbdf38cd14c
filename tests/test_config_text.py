# SPDX-License-Identifier: Apache-2.0
"""Model configs in both forms, as they are read for the checks."""

from __future__ import annotations

import json

import pytest

from tritonffi._config_text import (
    integer,
    is_true,
    items,
    messages,
    number,
    numbers,
    only,
    read_json,
    read_text,
    text_of,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("\ufeff# nothing\n  # more", {}),
        (
            "a: 1 b: -2 c: 0x1F d: 010 e: 1.5f",
            {"a": [1], "b": [-2], "c": [31], "d": [8], "e": [1.5]},
        ),
        ("a: 1, b: 2; a: 3", {"a": [1, 3], "b": [2]}),
        (
            "a: [1, - 2] b: [] c [ {d: 1}, <d: 2> ]",
            {"a": [1, -2], "b": [], "c": [{"d": [1]}, {"d": [2]}]},
        ),
        ("a { b: { c {} } } a <>", {"a": [{"b": [{"c": [{}]}]}, {}]}),
        ("a: TYPE_FP32 b: true c: -inf", {"a": ["TYPE_FP32"], "b": ["true"], "c": ["inf"]}),
        ("a: 'x' \"y\" # between\n 'z'", {"a": ["xyz"]}),
        ("a: '#' # ' {\nb: \"'\"", {"a": ["#"], "b": ["'"]}),
        (r"a: '\"\'\\\n\x41\101\303\251\u00e9'", {"a": ["\"'\\\nAAéé"]}),
        ("a: 'two\nlines'", {"a": ["two\nlines"]}),
        ("a{b:1}c:2d:3", {"a": [{"b": [1]}], "c": [2], "d": [3]}),
        ("a: '\udcff'", {"a": ["\udcff"]}),
        # Two halves are one character; one half, or more than there are, is still a text.
        (r"a: '\U0001F600\ud83d\uDE00' b: 1", {"a": ["😀😀"], "b": [1]}),
        (r"a: '\ud83d.\ude00' b: '\U00110000'", {"a": ["?.?"], "b": ["?"]}),
        ("# one\r a: 1\n b: 2 # two\r\nc: 3\rd: 4", {"b": [2], "c": [3], "d": [4]}),
    ],
)
def test_the_text_format_is_read(text, expected):
    """As protobuf reads it: also what hardly anybody writes."""
    assert read_text(text) == expected


@pytest.mark.parametrize(
    "text", ["a", "a {", "a }", "a: 'x", "1: 2", "a: { ]", "a: \0", "a: [", "é: 1"]
)
def test_what_is_no_text_format_is_none(text):
    """Triton refuses it."""
    assert read_text(text) is None


def test_depth_and_length_are_no_trouble():
    """Neither recursion nor time grows with them."""
    message = read_text("a {" * 20_000 + "}" * 20_000)
    for _ in range(20_000):
        message = only(message, "a")
    assert message == {}
    assert read_text(" " * 100_000 + "\0") is None
    assert read_text("#" * 100_000 + "\n\0") is None


def test_json_becomes_the_same():
    """In either form of names, with maps as objects, and numbers as texts."""
    text = """
    max_batch_size: 8
    input [ { name: "x" dims: [ 1, -1 ] } ]
    metric_tags { key: "maxSize" value: "b" }
    model_warmup { name: "w" inputs { key: "key" value { dims: 2 zero_data: true } } }
    """
    data = {
        "maxBatchSize": 8,
        "input": [{"name": "x", "dims": [1, -1]}],
        "metricTags": {"maxSize": "b"},
        "modelWarmup": {"name": "w", "inputs": {"key": {"dims": 2, "zeroData": "true"}}},
        "output": None,
    }
    assert read_json(json.dumps(data)) == read_text(text)
    assert read_json("[1]") is None
    assert read_json("{") is None
    assert read_json("[" * 100_000) is None


def test_integers_are_of_any_length():
    """Python would read no more than some thousands of digits, and what else is there counts."""
    for digits in ("9" * 5000, "0x" + "f" * 5000, "0" + "7" * 5000, "9" * 65):
        (value,) = numbers(read_text(f"a: {digits}"), "a")
        assert 2**64 < value < 10**100
        assert numbers(read_text(f"a: -{digits}"), "a") == [-value]
    (value,) = numbers(read_json('{"a": -' + "9" * 5000 + "}"), "a")
    assert -(10**100) < value < -(2**64)
    exact = read_text(f"a: {2**64} b: 0x{2**64:x} c: 0{2**64:o} d: 0 e: {10**63}")
    assert exact == {"a": [2**64], "b": [2**64], "c": [2**64], "d": [0], "e": [10**63]}
    assert integer("+" + "0" * 5000 + "12") == 12
    assert integer("-" + "0" * 5000 + "12") == -12


def test_of_items_with_one_key_the_last_counts():
    """As protobuf fills its maps, by the values of keys and not by how they are written."""
    message = read_text(
        "a { key: 'k' value { b: 1 } } a { key: 'l' } a { key: 'k' value { c: 2 } }"
    )
    assert dict(items(message, "a")) == {"k": {"c": [2]}, "l": {}}
    assert list(items(read_text("a { key: 1 } a { key: 0x1 value { b: 1 } }"), "a")) == [
        ("1", {"b": [1]})
    ]


def test_fields_are_looked_at_by_what_they_are():
    """Of one value that is given several times the last counts; what is no such value does not."""
    message = read_text("a: 1 a: 2 b: 'x' c { d: 3 } e { key: 7 value { f: 1 } } e { key: 'k' }")
    assert number(message, "a") == 2
    assert number(message, "nothing", 5) == 5
    assert text_of(message, "b") == "x"
    assert text_of(message, "a") == ""
    assert messages(message, "c") == [{"d": [3]}]
    assert only(message, "a") == {}
    assert list(items(message, "e")) == [("7", {"f": [1]}), ("k", {})]
    odd = read_json('{"n": ["8", 9.0, "1e2", 1.5, "x", Infinity, NaN, {}]}')
    assert numbers(odd, "n") == [8, 9, 100, 2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, True) for value in ("1", "t", "True", "true", "0x1", "01")),
        *((value, False) for value in ("0", "f", "False", "false", "0x0")),
    ],
)
def test_truth_has_several_forms(value, expected):
    """As protobuf reads them, and the last one counts; where there is none it is false."""
    assert is_true(read_text(f"a: {value}"), "a") is expected
    assert is_true(read_text(f"a: {value} a: false"), "a") is False
    assert is_true(read_text(f"a: {value}"), "b") is False


def test_truth_in_json():
    """As a value, and as a text; null is none."""
    for value in ("true", '"true"'):
        assert is_true(read_json(f'{{"a": {value}}}'), "a") is True
    for value in ("false", '"false"', "null"):
        assert is_true(read_json(f'{{"a": {value}}}'), "a") is False
