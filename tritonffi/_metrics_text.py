# SPDX-License-Identifier: Apache-2.0
"""The text that metrics are written as, Prometheus' format, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tritonffi._errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_COMMENT = rf"#[ \t]*(HELP|TYPE)[ \t]+({_NAME})(?:[ \t](.*))?"
_SAMPLE = rf"({_NAME})(?:[ \t]*\{{(.*)\}}[ \t]*|[ \t]+)(\S+)(?:[ \t]+(-?[0-9]+))?[ \t]*"
_LABEL = r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|$)'
_NUMBER = (
    r"(?i)[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)"
)
_KINDS = ("counter", "gauge", "histogram", "summary", "untyped")
# Samples whose names are the family's with something behind it.
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
# Triton writes descriptions as they are; a backslash that escapes nothing is one.
_ESCAPES = {"\\\\": "\\", "\\n": "\n"}
_LABEL_ESCAPES = {**_ESCAPES, '\\"': '"'}


@dataclass(frozen=True)
class MetricSample:
    """One value.

    Attributes:
        name: The family's; of histograms with ``_bucket``, ``_sum`` or ``_count`` behind it.
        labels: By name; of buckets, ``le`` is the bound.
        value: The value; Triton writes 16 digits.
        timestamp_ms: When it was taken, in milliseconds since 1970, where the text says that;
            Triton's does not.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class MetricFamilySamples:
    """The values of all metrics of one name.

    Attributes:
        name: The name.
        kind: ``counter``, ``gauge``, ``histogram``, ``summary`` or ``untyped``.
        description: What it counts.
        samples: The values, in the order of the text.
    """

    name: str
    kind: str = "untyped"
    description: str = ""
    samples: tuple[MetricSample, ...] = field(default=())

    def value(self, labels: Mapping[str, str] | None = None, *, suffix: str = "") -> float:
        """Return the one value that has these labels, among others perhaps.

        Args:
            labels: By name; none fits where there is one value only.
            suffix: Of histograms: ``_sum``, ``_count``, or ``_bucket``.

        Raises:
            KeyError: There is none.
            InvalidArgumentError: There are several.
        """
        wanted = dict(labels or {}).items()
        name = self.name + suffix
        found = [s for s in self.samples if s.name == name and wanted <= s.labels.items()]
        if not found:
            suffixes = _SUFFIXES.get(self.kind, ())
            if not suffix and suffixes:
                raise KeyError(
                    f"metric {name!r} is a {self.kind}, which has several values: say which with "
                    f"suffix={' or '.join(map(repr, suffixes))}"
                )
            raise KeyError(f"metric {name!r} has no value with labels {dict(wanted)!r}")
        if len(found) > 1:
            have = ", ".join(str(dict(sample.labels)) for sample in found)
            raise InvalidArgumentError(f"metric {name!r} has {len(found)} values: {have}")
        return found[0].value


def parse_metrics(text: str) -> dict[str, MetricFamilySamples]:
    """Take the text of `Server.metrics` apart; that of other exporters too, as they write it.

    Args:
        text: The text.

    Returns:
        The families by name, in the order of the text.

    Raises:
        InvalidArgumentError: A line is not of the format; it is named.
        TypeError: It is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"parse_metrics takes a str, not {type(text).__name__}")
    reader = _Reader()
    number = 0
    if text.count("\r\n") == text.count("\n"):  # all end so, and it is not a description that does
        text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    try:
        for line in lines:
            number += 1
            reader.take(line)
    except ValueError as error:
        where = f"metrics, line {number}"
        raise InvalidArgumentError(f"{where}: {error}: {lines[number - 1]!r}") from None
    return {
        name: MetricFamilySamples(name, family.kind, family.description, tuple(family.samples))
        for name, family in reader.families.items()
    }


class _Family:
    """A family that is being read."""

    def __init__(self) -> None:
        self.kind = "untyped"
        self.description = ""
        self.samples: list[MetricSample] = []


class _Reader:
    """What was read so far."""

    def __init__(self) -> None:
        self.families: dict[str, _Family] = {}
        self._parents: dict[str, str] = {}  # of the samples with something behind the name
        self._described = ""  # the family whose kind or description came last

    def take(self, line: str) -> None:
        line = line.lstrip(" \t")
        if not line.strip():
            return
        if line.startswith("#"):
            comment = re.fullmatch(_COMMENT, line)
            if comment:
                self._describe(*comment.groups(""))
            return
        sample = re.fullmatch(_SAMPLE, line)
        if sample is None:
            raise ValueError("neither a comment nor a value")
        name, labels, value, timestamp = sample.groups()
        if not re.fullmatch(_NUMBER, value):
            raise ValueError(f"{value!r} is no number")
        self._family_of(name).samples.append(
            MetricSample(
                name,
                _labels((labels or "").rstrip(" \t")),
                float(value),
                None if timestamp is None else int(timestamp),
            )
        )

    def _family_of(self, name: str) -> _Family:
        """Return where a sample belongs: another family may have a histogram's name in full."""
        parent = self._parents.get(name)
        if parent is not None and (parent == self._described or name not in self.families):
            name = parent
        return self.families.setdefault(name, _Family())

    def _describe(self, what: str, name: str, rest: str) -> None:
        family = self.families.setdefault(name, _Family())
        self._described = name
        if what == "HELP":
            family.description = _unescape(rest, _ESCAPES)
            return
        kind = rest.strip(" \t")
        if kind not in _KINDS:
            raise ValueError(f"{kind!r} is no kind of metric")
        if family.samples:
            raise ValueError("the kind comes after values")
        family.kind = kind
        for suffix in _SUFFIXES.get(kind, ()):
            self._parents[name + suffix] = name


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    position = 0
    while position < len(text):
        label = re.compile(_LABEL).match(text, position)
        if label is None:
            raise ValueError('the labels are not of the form name="value"')
        name, value, _ = label.groups()
        if name in labels:
            raise ValueError(f"label {name!r} is there twice")
        labels[name] = _unescape(value, _LABEL_ESCAPES)
        position = label.end()
    return labels


def _unescape(text: str, escapes: Mapping[str, str]) -> str:
    return re.sub(r"\\.", lambda found: escapes.get(found[0], found[0]), text)
