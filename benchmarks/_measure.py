# SPDX-License-Identifier: Apache-2.0
"""
Rounds, series and ratios: how a figure comes about.

The contenders of a benchmark take turns, round by round, so that whatever else the machine does
falls on all of them. A ratio is the median of the ratios of round and round; there is none between
series that did not take turns with each other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median

from benchmarks._load import Load

Case = Mapping[str, "str | int"]
"""What is measured, by the names of its dimensions: ``{"bytes": 4096, "in_flight": 1}``."""

Round = Mapping[str, float]
"""What one round gave, by the name of the figure with its unit in it: ``{"us": 10.5, ...}``."""

Run = Callable[[Load], Round]
"""What does a load and says what the round gave."""

LEAST_INFERENCES = 12
FEW_INFERENCES = 4
LONGEST_US = 1e6
"""Where so many as the least take longer than this, a round has few."""


class ContenderError(RuntimeError):
    """A contender cannot take part, or not any longer; the message says why."""


class NotMeasuredError(LookupError):
    """A series was asked for that nobody measured."""


class NotComparableError(ValueError):
    """A ratio was asked for whose parts were not measured in the same run."""


@dataclass(frozen=True)
class Series:
    """
    The rounds of one contender in one case.

    Attributes:
        session: The same for those that took turns with each other, and for nobody else.
        case: What was measured.
        contender: Who did it.
        rounds: What each round gave.
    """

    session: str
    case: Case
    contender: str
    rounds: Sequence[Round]

    def median(self, figure: str) -> float:
        """The median over the rounds."""
        return median(one[figure] for one in self.rounds)


@dataclass(frozen=True)
class Goal:
    """
    A figure that shall stay within a limit.

    Attributes:
        text: What it is of.
        value: The figure; None where somebody whom it needs could not take part.
        limit: The most that it shall be, or the least if `is_floor`.
        is_floor: Which of them.
    """

    text: str
    value: float | None
    limit: float
    is_floor: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether it is on the right side of its limit; None where it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.is_floor else self.value <= self.limit


@dataclass(frozen=True)
class Plot:
    """
    A picture of some series: a line for each contender, or one bar of steps.

    Attributes:
        name: Of the file.
        title: Above it.
        x: The dimension from left to right.
        figure: The one from bottom to top.
        cases: Draw only the series whose case has this.
        per_second: Draw how many there are in a second.
        unit: Of the figure.
        is_linear: Whether both axes are; otherwise both are logarithmic.
        steps: The figures that the bar is made of, and what they are.
    """

    name: str
    title: str
    x: str
    figure: str
    cases: Case = field(default_factory=dict)
    per_second: bool = False
    unit: str = "microseconds"
    is_linear: bool = False
    steps: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """
    What one benchmark found out.

    Attributes:
        title: What was measured.
        base: The contender that the others are divided by.
        series: Of all cases and contenders.
        figure: The one of which ratios are made.
        goals: What was wanted.
        plots: The pictures to draw.
        skipped: Who could not take part, and why.
        versions: What those run on who have a Python, or a Triton, of their own.
    """

    title: str
    base: str
    series: list[Series]
    figure: str = "us"
    goals: list[Goal] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def find(self, contender: str, **case: str | int) -> Series:
        """
        The series of a contender whose case has all that is said here.

        Raises:
            NotMeasuredError: There is none.
        """
        for one in self.series:
            if one.contender == contender and case.items() <= one.case.items():
                return one
        raise NotMeasuredError(f"nobody measured {contender} with {case}")


@dataclass(frozen=True)
class Entry:
    """A contender in a case: `run` does the load, whose `count` is set for each call."""

    case: Case
    contender: str
    run: Run
    load: Load = field(default_factory=Load)


def entries(contenders: Mapping[str, Run], load: Load, *dimensions: str) -> list[Entry]:
    """An entry for each contender; these attributes of the load are the case."""
    case = {name: getattr(load, name) for name in dimensions}
    return [Entry(case, name, run, load) for name, run in contenders.items()]


def summary(total_us: float, times_us: Sequence[float]) -> dict[str, float]:
    """
    The round that took so long, of inferences that took so long each.

    ``us`` is the whole time over the number of inferences; the percentiles are of the times from
    the submission of an inference to having its result.
    """
    times = sorted(times_us)
    count = len(times)
    return {
        "us": total_us / count,
        "p50": times[count // 2],
        "p90": times[count * 9 // 10],
        "p99": times[count * 99 // 100],
    }


def ratio(series: Series, base: Series, figure: str = "us", base_figure: str = "") -> float:
    """
    How many times the base's figure the series' is: the median over the rounds.

    Raises:
        NotComparableError: They did not take turns with each other.
    """
    return median(part / whole for part, whole in _pairs(series, base, figure, base_figure))


def if_measured(figure: Callable[[], float]) -> float | None:
    """The figure, or None where a series that it needs was not measured."""
    try:
        return figure()
    except NotMeasuredError:
        return None


def difference(series: Series, base: Series, figure: str = "us") -> float:
    """By how much the series' figure is above the base's: the median over the rounds."""
    return median(part - whole for part, whole in _pairs(series, base, figure))


def _pairs(
    series: Series, base: Series, figure: str, base_figure: str = ""
) -> list[tuple[float, float]]:
    if series.session != base.session:
        raise NotComparableError(
            f"{series.contender} {dict(series.case)} and {base.contender} {dict(base.case)} "
            "were not measured in the same run: there is no ratio of them"
        )
    return [
        (part[figure], whole[base_figure or figure])
        for part, whole in zip(series.rounds, base.rounds, strict=True)
    ]


def interleave(
    entries: Sequence[Entry], rounds: int, seconds: float, skipped: dict[str, str] | None = None
) -> list[Series]:
    """
    Measures all entries in turn, `rounds` times in different orders, after a round of warm-up.

    Args:
        entries: Who does what.
        rounds: How many count.
        seconds: How long a round of an entry shall take, about: the warm-up tells how many
            inferences that is.
        skipped: Gets the contenders that gave up on the way, and why. They are in no series.
    """
    gone = {} if skipped is None else skipped
    loads: list[Load] = []
    measured: list[list[Round]] = [[] for _ in entries]
    for entry in entries:
        with _giving_up(entry, gone):
            loads.append(entry.load)
            if entry.contender not in gone:
                loads[-1] = _calibrate(entry, seconds)
    turns = list(zip(entries, loads, measured, strict=True))
    for number in range(rounds):
        # Each round in another order: who has just had its turn leaves the machine in some state,
        # of which core sleeps above all, and would leave it to the same one always.
        Random(number).shuffle(turns)  # noqa: S311 (it is no secret)
        for entry, load, into in turns:
            if entry.contender not in gone:
                with _giving_up(entry, gone):
                    into.append(entry.run(load))
    session = uuid.uuid4().hex
    return [
        Series(session, entry.case, entry.contender, into)
        for entry, into in zip(entries, measured, strict=True)
        if entry.contender not in gone
    ]


@contextmanager
def _giving_up(entry: Entry, gone: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except ContenderError as error:
        gone[entry.contender] = f"gave up with {dict(entry.case)}: {error}"


def _calibrate(entry: Entry, seconds: float) -> Load:
    load = entry.load
    least = max(LEAST_INFERENCES, 3 * load.in_flight, load.models)
    us = entry.run(replace(load, count=least)).get("us")
    if us is None:  # the round is not of inferences
        return load
    if us * least > LONGEST_US:
        return replace(load, count=max(FEW_INFERENCES, load.in_flight))
    # The first inferences are slower than the rest: a guess from them, and one from a longer run.
    count = max(least, int(seconds * 1e6 / us / 4))
    us = entry.run(replace(load, count=count))["us"]
    return replace(load, count=max(least, int(seconds * 1e6 / us)))
