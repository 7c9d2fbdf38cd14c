# SPDX-License-Identifier: Apache-2.0
"""The results as a page of Markdown with its pictures: docs/performance/results.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._plot import draw
from benchmarks._tables import goal_table, markdown_table, outcome_table

if TYPE_CHECKING:
    from benchmarks._measure import Outcome
    from benchmarks._results import Results

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "performance"
PAGE = "results.md"


def report(results: Results, folder: Path = FOLDER) -> Path:
    """Writes page and pictures, and returns the page's file."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [_header(results), _goals(results)]
    parts += [_section(outcome, folder) for outcome in results.outcomes.values()]
    parts += [
        f"## {name}\n\nDid not come to an end: {why}" for name, why in results.failures.items()
    ]
    page = folder / PAGE
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return page


def _header(results: Results) -> str:
    rounds, seconds = results.settings["rounds"], results.settings["seconds_per_round"]
    kind = (
        "**A quick run: it shows that everything works. The figures are of few and short rounds "
        "and not to be relied upon.**\n\n"
        if results.quick
        else ""
    )
    machine = markdown_table([["", ""], *([key, value] for key, value in results.machine.items())])
    return (
        "# Results\n\n"
        f"{kind}Measured {results.date} UTC by `python -m benchmarks"
        f"{' --quick' if results.quick else ''}`: medians of {rounds:g} interleaved rounds of "
        f"about {seconds:g} s. This page is written by `python -m benchmarks report`; "
        "[performance.md](../performance.md) says what it means.\n\n"
        f"{machine}"
    )


def _goals(results: Results) -> str:
    goals = [(name, goal) for name, outcome in results.outcomes.items() for goal in outcome.goals]
    if not goals:
        return ""
    states = [goal.is_met for _, goal in goals]
    said = f"{states.count(True)} of {len(goals)} met"
    if None in states:
        said += f", {states.count(None)} not measured"
    heads, *rows = goal_table([goal for _, goal in goals])
    table = [["benchmark", *heads]]
    table += [[name, *row] for (name, _), row in zip(goals, rows, strict=True)]
    return f"## Goals\n\n{said}.\n\n{markdown_table(table)}"


def _section(outcome: Outcome, folder: Path) -> str:
    parts = [f"## {outcome.title}"]
    parts += [f"![{file.stem}]({file.name})" for file in draw(outcome, folder, ["svg"])]
    parts.append(markdown_table(outcome_table(outcome)))
    if outcome.skipped:
        parts.append(
            "\n".join(f"- Without {name}: {reason}" for name, reason in outcome.skipped.items())
        )
    return "\n\n".join(parts)
