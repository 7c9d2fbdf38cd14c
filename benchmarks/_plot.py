# SPDX-License-Identifier: Apache-2.0
"""The pictures of an outcome, drawn by matplotlib (the extra `bench`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks._measure import Outcome, Plot, Series

OURS, BASE_COLOUR = "tritonffi", "black"


def draw(outcome: Outcome, folder: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """
    Draws the pictures of an outcome, and returns their files.

    Raises:
        ImportError: There is no matplotlib.
    """
    if not outcome.plots:
        return []
    import matplotlib as mpl

    mpl.use("Agg")
    # The same results make the same file.
    mpl.rcParams.update({"svg.hashsalt": "tritonffi", "svg.fonttype": "none"})
    files: list[Path] = []
    for plot in outcome.plots:
        files += _draw(outcome, plot, [folder / f"{plot.name}.{kind}" for kind in formats])
    return files


def _draw(outcome: Outcome, plot: Plot, files: Sequence[Path]) -> Sequence[Path]:
    from matplotlib import pyplot as plt

    series = [
        one
        for one in outcome.series
        if plot.x in one.case and plot.cases.items() <= one.case.items()
    ]
    figure, axes = plt.subplots(figsize=(8, 3.4 if plot.steps else 4.8), layout="constrained")
    if plot.steps:
        _draw_steps(axes, series[0], plot.steps)
        figure.legend(fontsize="small", loc="outside lower left")
    else:
        _draw_lines(axes, series, plot, outcome.base)
    axes.set_title(plot.title)
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, dpi=150, metadata=metadata)
    plt.close(figure)
    return files


def _draw_steps(axes: Axes, series: Series, steps: Mapping[str, str]) -> None:
    left = 0.0
    for name, text in steps.items():
        width = series.median(name)
        axes.barh([""], [width], left=left, label=f"{width:.1f} us: {text}", edgecolor="white")
        left += width
    axes.set_xlabel("microseconds")


def _draw_lines(axes: Axes, series: Sequence[Series], plot: Plot, base: str) -> None:
    from matplotlib.ticker import FuncFormatter

    for contender in dict.fromkeys(one.contender for one in series):
        points = [one for one in series if one.contender == contender]
        xs, middle, low, high = zip(*sorted(_point(one, plot) for one in points), strict=True)
        is_ours, is_base = contender.startswith(OURS), contender == base
        (line,) = axes.plot(
            xs,
            middle,
            marker="o",
            markersize=3.5,
            linewidth=2.2 if is_ours or is_base else 1.2,
            linestyle="--" if is_base else "-",
            color=BASE_COLOUR if is_base else None,
            label=contender,
        )
        # The quarter of the rounds below, and the quarter above, are outside.
        axes.fill_between(xs, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    if plot.is_linear:
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    else:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _size(x, plot.x)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.set_xlabel(plot.x.replace("_", " "))
    axes.set_ylabel("inferences per second" if plot.per_second else f"{plot.unit} ({plot.figure})")
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize="small")


def _point(series: Series, plot: Plot) -> tuple[float, float, float, float]:
    values = sorted(
        1e6 / one[plot.figure] if plot.per_second else one[plot.figure] for one in series.rounds
    )
    count = len(values)
    x = float(series.case[plot.x])
    return x, values[count // 2], values[count // 4], values[count - 1 - count // 4]


def _size(value: float, dimension: str) -> str:
    if dimension != "bytes":
        return f"{value:,.10g}"
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B"
