# SPDX-License-Identifier: Apache-2.0
"""Reads model configs: protobuf's text format, as in config.pbtxt, and its JSON.

Both become the same: a message is a dict of fields by the names of the .proto file, and a field a
list of what it was given, in order. A map is a list of messages of a key and a value, as the text
format has it. Nothing here knows what fields there are: what Triton does not take, it refuses
itself. So this reads more than protobuf does, and never less.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Texts, words such as TYPE_FP32 or true, numbers, and messages.
Value: TypeAlias = Union[str, int, float, "Message"]
Message: TypeAlias = dict[str, list[Value]]

# A load, or a start, looks at each config several times.
_KEPT = 128
# JSON writes these as objects, in which keys are no names of fields.
_MAPS = {
    "cc_model_filenames",
    "input_map",
    "inputs",
    "metric_tags",
    "output_map",
    "parameters",
    "priority_queue_policy",
}
_TOKEN = re.compile(
    r"""
    (?:[ \t\n\r\v\f]|\#[^\n]*(?:\n|\Z))*
    (?:
        (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<mark>[-{}<>\[\]:,;])
      | (?P<end>\Z)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    rb"""
    \\(?:
        (?P<octal>[0-7]{1,3})
      | [xX](?P<byte>[0-9a-fA-F]{1,2})
      | u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})
      | (?:u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))
      | (?P<other>.)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_CONTROLS = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))
_CLOSING = {"{": "}", "<": ">"}
# Of an integer; Python itself reads some thousands, and protobuf no more than 64 bits have.
_MOST_DIGITS = 64


@lru_cache(maxsize=_KEPT)
def read_text(text: str) -> Message | None:
    """Read protobuf's text format; None: it is none. What is returned is not to be changed.

    Args:
        text: The text, bytes that are no UTF-8 as surrogates.
    """
    try:
        return _Reader(text.removeprefix("\ufeff")).read()
    except ValueError:
        return None


@lru_cache(maxsize=_KEPT)
def read_json(text: str) -> Message | None:
    """Read protobuf's JSON; None: it is none. What is returned is not to be changed."""
    try:
        data = json.loads(text, parse_int=integer)
        return message_of(data) if isinstance(data, dict) else None
    except (ValueError, RecursionError):
        return None


def messages(message: Message, field: str) -> list[Message]:
    """List the messages of a field."""
    return [value for value in message.get(field, ()) if isinstance(value, dict)]


def only(message: Message, field: str) -> Message:
    """Return the message of a field that has one, empty where it has none."""
    return next(reversed(messages(message, field)), {})


def text_of(message: Message, field: str) -> str:
    """Return the text, or the word, of a field that has one, empty where it has none."""
    return next(reversed([v for v in message.get(field, ()) if isinstance(v, str)]), "")


def numbers(message: Message, field: str) -> list[int]:
    """List the integers of a field; JSON may have them as texts, and with a fraction of 0."""
    found = map(_integer, message.get(field, ()))
    return [value for value in found if value is not None]


def number(message: Message, field: str, default: int = 0) -> int:
    """Return the integer of a field that has one."""
    return next(reversed(numbers(message, field)), default)


def items(message: Message, field: str) -> Iterable[tuple[str, Message]]:
    """List the items of a map: the key as text, and the value where that is a message.

    Of items with one key the last counts.
    """
    found = {}
    for entry in messages(message, field):
        key = next(reversed(entry.get("key", [])), "")
        found[str(key)] = only(entry, "value")
    return found.items()


def is_true(message: Message, field: str) -> bool:
    """Return a truth value, which the text format has in several forms; false where it has none."""
    return next(reversed(message.get(field, [])), False) in (True, "true", "True", "t")


def texts(message: Message, field: str) -> dict[str, str]:
    """Return a map of texts; of items with one key the last counts."""
    return {text_of(entry, "key"): text_of(entry, "value") for entry in messages(message, field)}


def integer(digits: str, base: int = 10) -> int:
    """Read an integer of any length; one far beyond 64 bits becomes another one that is."""
    value = int(digits.lstrip("+-0")[:_MOST_DIGITS] or "0", base)
    return -value if digits.startswith("-") else value


def _integer(value: Value) -> int | None:
    """Return an integer; None: it is none, which is Triton's to refuse."""
    if isinstance(value, int):
        return value
    if isinstance(value, dict):
        return None
    try:
        return int(value) if isinstance(value, str) else round(value)
    except (ValueError, OverflowError):
        pass
    try:
        return round(float(value))
    except (ValueError, OverflowError):
        return None


@dataclass
class _Open:
    """A message whose end is still to come, and the field that is read."""

    message: Message
    closing: str
    field: str = ""
    is_list: bool = False


class _Reader:
    """Reads a message, and those in it without recursion, however deep they are."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._open = [_Open({}, "")]
        self._advance()

    def read(self) -> Message:
        """Raises ValueError where the text is none."""
        while self._kind != "end" or len(self._open) > 1 or self._open[0].is_list:
            self._read_on(self._open[-1])
        return self._open[0].message

    def _advance(self) -> None:
        """Go to the next token; behind the last is an end, for ever."""
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise ValueError(self._at)
        self._kind, self._word = match.lastgroup, match[match.lastgroup]
        self._at = match.end()

    def _take(self, mark: str) -> bool:
        """Go past a mark, if it is there."""
        is_there = self._kind == "mark" and self._word == mark
        if is_there:
            self._advance()
        return is_there

    def _read_on(self, here: _Open) -> None:
        if self._take(",") or self._take(";"):
            return
        if here.is_list:
            if self._take("]"):
                here.is_list = False
                return
        elif self._take(here.closing):
            self._open.pop()
            return
        else:
            self._read_field(here)
            if here.is_list:
                return
        self._read_value(here.message.setdefault(here.field, []))

    def _read_field(self, here: _Open) -> None:
        if self._kind != "word":
            raise ValueError(self._word)
        here.field = self._word
        self._advance()
        self._take(":")
        here.is_list = self._take("[")
        if here.is_list:
            here.message.setdefault(here.field, [])

    def _read_value(self, values: list[Value]) -> None:
        kind, word = self._kind, self._word
        if kind == "mark" and word in _CLOSING:
            inner: Message = {}
            values.append(inner)
            self._open.append(_Open(inner, _CLOSING[word]))
            self._advance()
        elif kind == "text":
            parts = []
            while self._kind == "text":  # neighbours are one text
                parts.append(_unquoted(self._word))
                self._advance()
            values.append("".join(parts))
        else:
            sign = -1 if self._take("-") else 1
            if self._kind == "number":
                values.append(sign * _number(self._word))
            elif self._kind == "word":
                values.append(self._word)
            else:
                raise ValueError(self._word)
            self._advance()


def _number(token: str) -> int | float:
    if token[:2] in ("0x", "0X"):
        return integer(token[2:], 16)
    if token.isdecimal():
        return integer(token, 8 if token[0] == "0" else 10)
    return float(token.rstrip("fF"))


def _unquoted(token: str) -> str:
    inside = token[1:-1]
    if "\\" not in inside:
        return inside
    data = inside.encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_meant, data).decode("utf-8", "surrogateescape")


def _meant(escape: re.Match[bytes]) -> bytes:
    kind = escape.lastgroup
    if kind == "octal":
        return bytes([int(escape[kind], 8) & 255])
    if kind == "byte":
        return bytes([int(escape[kind], 16)])
    if kind == "other":
        return bytes([_CONTROLS.get(escape[kind][0], escape[kind][0])])
    if kind == "low":  # of the two halves in which UTF-16 has it
        return bytes.fromhex((escape["high"] + escape[kind]).decode()).decode("utf-16-be").encode()
    code = int(escape["short"] or escape["long"], 16)
    # Half a character, or none at all, is as good as any other that hardly anybody has.
    return chr(code).encode("utf-8", "replace") if code <= sys.maxunicode else b"?"


def message_of(data: Mapping[str, object]) -> Message:
    """Return what an object of JSON is as a message."""
    made: Message = {}
    for key, value in data.items():
        field = re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", key)
        if value is None:  # as if it were not there
            continue
        values = made.setdefault(field, [])
        if field in _MAPS and isinstance(value, dict):
            values += [{"key": [k], "value": [_value(v)]} for k, v in value.items()]
        elif isinstance(value, list):
            values += map(_value, value)
        else:
            values.append(_value(value))
    return made


def _value(value: object) -> Value:
    if isinstance(value, dict):
        return message_of(value)
    if isinstance(value, (str, int, float)):
        return value
    return ""  # null, or a list in a list, which protobuf does not take
