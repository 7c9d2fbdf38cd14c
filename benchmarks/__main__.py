# SPDX-License-Identifier: Apache-2.0
"""
Runs the benchmarks, or looks at what they found.

    python -m benchmarks [NAME ...] [--quick] [--no-peers] [--out FOLDER]
    python -m benchmarks compare FIRST.json SECOND.json
    python -m benchmarks report RESULTS.json [--out FOLDER]

Each benchmark is a module with a `main(options)` that returns an `Outcome`. With `--out`, all that
was measured goes to FOLDER/results.json, and pictures are drawn (the extra `bench`). `report`
writes the page of results in docs/performance.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from benchmarks._common import Options
from benchmarks._compare import compare
from benchmarks._plot import draw
from benchmarks._report import FOLDER, report
from benchmarks._results import Results, ResultsError
from benchmarks._tables import print_outcome

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
    results = run(given.names or NAMES, options, given.out)
    return 1 if results.failures else 0


def run(names: tuple[str, ...] | list[str], options: Options, out: Path | None) -> Results:
    """Runs the benchmarks of these names. One that fails does not keep the others from running."""
    results = Results.begin(options)
    for key, value in {**results.machine, **results.settings}.items():
        print(f"{key.replace('_', ' '):>17}  {value}")
    for name in names:
        try:
            outcome = importlib.import_module(f"benchmarks.{name}").main(options)
        except Exception as error:  # noqa: BLE001 - stored, and the exit code tells
            traceback.print_exc()
            results.failures[name] = repr(error)
            continue
        print_outcome(outcome)
        results.outcomes[name] = outcome
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            results.write(out / "results.json")
            try:
                draw(outcome, out)
            except ImportError as error:
                print(f"no pictures: {error}")
    return results


if __name__ == "__main__":
    sys.exit(main())
