# SPDX-License-Identifier: Apache-2.0
"""
Two files of results side by side.

There is no ratio of a figure in one file and a figure in the other: they were measured at
different times, perhaps on different machines. What can be compared is what each run found its
contenders to be in relation to each other: the ratios to the base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._tables import ratio_cell, state_cell, text_table, value_cell

if TYPE_CHECKING:
    from benchmarks._measure import Outcome
    from benchmarks._results import Results


def compare(first: Results, second: Results) -> str:
    """What to print about the two."""
    lines = [_heads(first, second)]
    for name, outcome in first.outcomes.items():
        if name not in second.outcomes:
            lines.append(f"\n{name}: only in the first")
            continue
        other = second.outcomes[name]
        lines += [f"\n{outcome.title}", text_table(_rows(outcome, other))]
        if outcome.goals or other.goals:
            lines.append(text_table(_goals(outcome, other)))
    lines += [
        f"\n{name}: only in the second" for name in second.outcomes if name not in first.outcomes
    ]
    return "\n".join(lines)


def _heads(first: Results, second: Results) -> str:
    rows = [["", "first", "second"]]
    rows.append(["date", *(f"{one.date}{' (quick)' * one.quick}" for one in (first, second))])
    for key in {**first.machine, **second.machine}:
        values = [one.machine.get(key, "") for one in (first, second)]
        rows.append([key, *values])
    return text_table(rows)


def _rows(first: Outcome, second: Outcome) -> list[list[str]]:
    figure = first.figure
    head = f"times {first.base}"
    rows = [["", "", f"first: {figure}", head, f"second: {figure}", head]]
    for one in first.series:
        other = next(
            (s for s in second.series if (s.contender, s.case) == (one.contender, one.case)), None
        )
        if other is None or figure not in one.rounds[0] or figure not in other.rounds[0]:
            continue
        case = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in one.case.items())
        cells = [case, one.contender]
        for outcome, series in ((first, one), (second, other)):
            cells += [f"{series.median(figure):.2f}", ratio_cell(outcome, series)]
        rows.append(cells)
    return rows


def _goals(first: Outcome, second: Outcome) -> list[list[str]]:
    by_text = [{goal.text: goal for goal in one.goals} for one in (first, second)]
    rows = [["goal", "first", "", "second", ""]]
    for text in {**by_text[0], **by_text[1]}:
        cells = [text]
        for goals in by_text:
            goal = goals.get(text)
            cells += ["", ""] if goal is None else [value_cell(goal), state_cell(goal)]
        rows.append(cells)
    return rows
