# SPDX-License-Identifier: Apache-2.0
"""The file of results: everything that was measured, when, where and how, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from benchmarks._machine import machine
from benchmarks._measure import Goal, Outcome, Plot, Series

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks._common import Options

FORMAT = 1


class ResultsError(ValueError):
    """The file holds no results that this version can read."""


@dataclass
class Results:
    """
    One run of the benchmarks.

    Attributes:
        date: When it began, UTC.
        quick: Whether it was one that only shows that all works.
        machine: What it ran on.
        settings: How it measured.
        outcomes: What came out, by the name of the benchmark.
        failures: Which benchmarks did not come to an end, and why.
    """

    date: str
    quick: bool
    machine: dict[str, str]
    settings: Mapping[str, float]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, options: Options) -> Results:
        """The results of a run that begins now."""
        return cls(
            f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}",
            options.quick,
            machine(),
            {"rounds": options.rounds, "seconds_per_round": options.seconds},
        )

    def write(self, path: Path) -> None:
        """Writes the file, all of it or nothing."""
        data = {"format": FORMAT, **asdict(self)}
        for name, outcome in self.outcomes.items():
            for entry, goal in zip(data["outcomes"][name]["goals"], outcome.goals, strict=True):
                entry["is_met"] = goal.is_met
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Results:
        """
        Reads a file that `write` wrote.

        Raises:
            ResultsError: It is none.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise ResultsError(f"{path}: written by another version of the benchmarks")
            data["outcomes"] = {name: _outcome(one) for name, one in data["outcomes"].items()}
            return cls(**data)
        except (
            KeyError,
            TypeError,
            AttributeError,
            json.JSONDecodeError,
            UnicodeDecodeError,
        ) as error:
            raise ResultsError(f"{path}: not a file of results: {error!r}") from error


def _outcome(data: dict[str, object]) -> Outcome:
    lists = {"series": Series, "goals": Goal, "plots": Plot}
    for key, kind in lists.items():
        entries = data[key]
        if not isinstance(entries, list):
            raise TypeError(f"{key} is no list")
        # What follows from the rest is in the file for others.
        data[key] = [
            kind(**{name: value for name, value in entry.items() if name != "is_met"})
            for entry in entries
        ]
    return Outcome(**data)  # type: ignore[arg-type]
