# SPDX-License-Identifier: Apache-2.0
"""
Runs the benchmarks, or looks at what they found.

    python -m benchmarks [NAME ...] [--quick] [--no-peers] [--out FOLDER]
    python -m benchmarks compare FIRST.json SECOND.json
    python -m benchmarks report RESULTS.json [--out FOLDER]

Each benchmark is a module with a `main(options)` that returns an `Outcome`. With `--out`, all that
was measured goes to FOLDER/results.json, in the place of what was there, and pictures are drawn
(the extra `bench`). `report` writes the page of results to docs/performance, or to `--out`.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._common import Options
from benchmarks._compare import compare
from benchmarks._plot import draw
from benchmarks._report import FOLDER, report
from benchmarks._results import Results, ResultsError
from benchmarks._tables import print_outcome
from tritonffi import LibraryNotFoundError

if TYPE_CHECKING:
    from benchmarks._measure import Outcome

FILE = "results.json"

NAMES = (
    "latency",
    "throughput",
    "threads",
    "event_loop",
    "functions",
    "text",
    "where",
    "startup",
    "busy_thread",
    "memory",
    "growth",
    "soak",
)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; or all")
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--no-peers", action="store_true", help="without the servers of others")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write results")
    given = parser.parse_args(arguments)
    command, *files = given.names or [""]
    try:
        if command == "compare":
            if len(files) != 2:  # noqa: PLR2004 - two are compared
                parser.error("compare takes two files of results")
            print(compare(*(Results.read(Path(file)) for file in files)))
            return 0
        if command == "report":
            if len(files) != 1:
                parser.error("report takes one file of results")
            print(report(Results.read(Path(files[0])), given.out or FOLDER))
            return 0
    except (ResultsError, OSError) as error:
        parser.error(str(error))
    for name in given.names:
        if name not in NAMES:
            parser.error(f"no benchmark is called {name!r}: there is {', '.join(NAMES)}")
    options = Options(quick=given.quick, peers=not given.no_peers)
    try:
        results = begin(options, given.out)
    except (OSError, LibraryNotFoundError) as error:
        parser.error(str(error))
    try:
        run(results, given.names or NAMES, options, given.out)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1 if results.failures else 0


def begin(options: Options, out: Path | None) -> Results:
    """
    Makes the results, without any yet, and their file in the place of one of an earlier run.

    Raises:
        OSError: It cannot be written.
        LibraryNotFoundError: There is nothing to measure.
    """
    results = Results.begin(options)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        results.write(out / FILE)
    return results


def run(
    results: Results, names: tuple[str, ...] | list[str], options: Options, out: Path | None
) -> None:
    """
    Runs the benchmarks of these names. One that fails does not keep the others from running.

    Args:
        results: Gets what comes out.
        names: Of the modules.
        options: What they are told.
        out: The folder of the file that `begin` made, which is written after each of them.
    """
    for key, value in {**results.machine, **results.settings}.items():
        print(f"{key.replace('_', ' '):>17}  {value}")
    for name in names:
        try:
            _run_one(results, name, options)
        finally:
            if out is not None:
                results.write(out / FILE)
        if name in results.outcomes:
            print_outcome(results.outcomes[name])
            if out is not None:
                _draw(results.outcomes[name], out)


def _run_one(results: Results, name: str, options: Options) -> None:
    try:
        outcome = importlib.import_module(f"benchmarks.{name}").main(options)
    except Exception as error:  # noqa: BLE001 - stored, and the exit code tells
        traceback.print_exc()
        results.failures[name] = repr(error)
    except BaseException:
        results.failures[name] = "interrupted"
        raise
    else:
        results.outcomes[name] = outcome
        results.machine.update(outcome.versions)


def _draw(outcome: Outcome, out: Path) -> None:
    try:
        draw(outcome, out)
    except Exception as error:  # noqa: BLE001 - the figures are stored, and others follow
        print(f"no pictures: {error}")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of asyncio's is of more than a task that was interrupted with the rest."""
    return record.exc_info is None or isinstance(record.exc_info[1], Exception)


def _end(number: int, frame: object) -> None:
    """A signal that ends the process lets it end what it has started."""
    del frame
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, _end)
    logging.getLogger("asyncio").addFilter(_is_news)
    sys.exit(main())
