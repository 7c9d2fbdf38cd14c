# SPDX-License-Identifier: Apache-2.0
"""
Runs the benchmarks: `python -m benchmarks [NAME ...] [--quick] [--json FILE]`.

Each is a module with a `main(options)` that prints its tables and returns what it measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from benchmarks._common import Options, machine, print_machine

NAMES = ("latency", "soak")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; or all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f"no benchmark is called {name!r}: there is {', '.join(NAMES)}")

    options = Options(quick=arguments.quick)
    print_machine()
    results: dict[str, object] = {"machine": machine()}
    for name in arguments.names or NAMES:
        results[name] = importlib.import_module(f"benchmarks.{name}").main(options)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
