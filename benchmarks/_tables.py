# SPDX-License-Identifier: Apache-2.0
"""Outcomes as tables, for the terminal and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._measure import NotComparableError, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks._measure import Goal, Outcome, Series


def outcome_table(outcome: Outcome) -> list[list[str]]:
    """A row for each series, the heads first: case, contender, medians, ratio to the base."""
    dimensions = _ordered(key for series in outcome.series for key in series.case)
    figures = _ordered(key for series in outcome.series for key in series.rounds[0])
    has_base = any(series.contender == outcome.base for series in outcome.series)
    heads = [*(name.replace("_", " ") for name in dimensions), "by", *figures]
    rows = [[*heads, f"times {outcome.base}"] if has_base else heads]
    rows += [
        [
            *(_number(series.case.get(name, "")) for name in dimensions),
            series.contender,
            *(_number(series.median(name)) if name in series.rounds[0] else "" for name in figures),
            *([ratio_cell(outcome, series)] if has_base else []),
        ]
        for series in outcome.series
    ]
    return rows


def ratio_cell(outcome: Outcome, series: Series) -> str:
    """The series over the base of the same case; empty where there is none to divide by."""
    base = next(
        (
            other
            for other in outcome.series
            if other.contender == outcome.base and other.case == series.case
        ),
        None,
    )
    if base is None or base is series or outcome.figure not in series.rounds[0]:
        return ""
    try:
        return f"{ratio(series, base, outcome.figure):.2f}"
    except NotComparableError:
        return "not comparable"


def goal_table(goals: Sequence[Goal]) -> list[list[str]]:
    """A row for each goal, the heads first."""
    return [
        ["goal", "measured", "wanted", ""],
        *(
            [
                goal.text,
                value_cell(goal),
                f"{'at least' if goal.is_floor else 'at most'} {_number(goal.limit)}",
                state_cell(goal),
            ]
            for goal in goals
        ),
    ]


def value_cell(goal: Goal) -> str:
    """What was measured, if it was."""
    return "" if goal.value is None else _number(goal.value)


def state_cell(goal: Goal) -> str:
    """What has become of the goal."""
    return {True: "met", False: "not met", None: "not measured"}[goal.is_met]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """The table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The table as Markdown."""
    heads, *body = ["| " + " | ".join(row) + " |" for row in rows]
    ruler = "|" + "---|" * len(rows[0])
    return "\n".join([heads, ruler, *body])


def print_outcome(outcome: Outcome) -> None:
    """Prints it all."""
    print(f"\n{outcome.title}")
    print(text_table(outcome_table(outcome)))
    for name, reason in outcome.skipped.items():
        print(f"without {name}: {reason}")
    if outcome.goals:
        print(text_table(goal_table(outcome.goals)))


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _number(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 0  # noqa: PLR2004
    return f"{value:,.{digits}f}"
