# SPDX-License-Identifier: Apache-2.0
"""Several servers in one process, each with a thread that starts it, uses it and closes it.

    python examples/multi_server.py --servers 3 --rounds 2

Servers share nothing but the library: the same model name means another model in each, and one may
close while the others work.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

import tritonffi

REQUESTS = 50


def run_server(number: int, rounds: int, everybody: Barrier) -> list[str]:
    """Starts server `number` again and again; returns a line for each time."""
    lines = []
    everybody.wait()  # so that all of them start at once
    for turn in range(rounds):
        with tritonffi.Server(server_id=f"server-{number}") as server:
            model = server.load_function(
                "scale",
                lambda x: x * number,
                inputs={"x": ("INT64", [-1])},
                outputs={"y": ("INT64", [-1])},
                max_batch_size=8,
                config={"dynamic_batching": {}},
            )
            x = np.arange(5)[None]
            pending = [model.submit({"x": x + i}) for i in range(REQUESTS)]
            for i, inference in enumerate(pending):
                np.testing.assert_array_equal(inference.result()["y"], (x + i) * number)
            last = pending[-1].result()["y"][0].tolist()
            server.unload("scale")
            lines.append(
                f"server {number}, round {turn + 1}: {len(pending)} results, the last is {last}; "
                f"ready after the unload: {model.is_ready()}"
            )
    return lines


def main() -> None:
    """Runs the threads and prints what they have to say, server by server."""
    parser = argparse.ArgumentParser(description="Run several servers in one process.")
    parser.add_argument("--servers", type=int, default=2, help="how many at a time")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is started")
    options = parser.parse_args()
    everybody = Barrier(options.servers)
    with ThreadPoolExecutor(options.servers) as pool:
        done = [
            pool.submit(run_server, number, options.rounds, everybody)
            for number in range(1, options.servers + 1)
        ]
    for lines in done:
        print("\n".join(lines.result()))


if __name__ == "__main__":
    main()
