# SPDX-License-Identifier: Apache-2.0
"""
The peers: others who serve the same models by the same backend, for the same loads.

tritonclient talks over loopback to the `tritonserver` program that came with the library, one
server for all of its ways. Where something is not there, that is said and stored with the results.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, build_opener

from benchmarks._children import child, last_words, program
from benchmarks._common import neighbours
from benchmarks._measure import ContenderError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from benchmarks._children import Child
    from benchmarks._common import Options, Workplace

NETWORK = {
    "gRPC": "grpc",
    "gRPC + shared memory": "grpc_shm",
    "HTTP": "http",
    "HTTP + shared memory": "http_shm",
}
NVIDIA = "tritonserver (Python)"
NVIDIA_PYTHON = "TRITONFFI_BENCH_NVIDIA_PYTHON"
START_S = 30.0


@contextmanager
def peers(
    place: Workplace, options: Options, skipped: dict[str, str]
) -> Iterator[dict[str, Child]]:
    """
    Starts everybody who can take part.

    Args:
        place: The models.
        options: None at all without `options.peers`.
        skipped: Gets who cannot, and why.
    """
    with ExitStack() as stack:
        found: dict[str, Child] = {}
        if not options.peers:
            skipped.update(dict.fromkeys([*NETWORK, NVIDIA], "not asked for"))
            yield found
            return
        command: list[str | Path] = [sys.executable, "-m", "benchmarks._peer"]
        try:
            ports = stack.enter_context(server_program(place))
        except ContenderError as error:
            skipped.update(dict.fromkeys(NETWORK, str(error)))
        else:
            for name, kind in NETWORK.items():
                url = f"127.0.0.1:{ports[kind.removesuffix('_shm')]}"
                try:
                    found[name] = stack.enter_context(child([*command, kind, url]))
                except ContenderError as error:
                    skipped[name] = str(error)
        named = os.environ.get(NVIDIA_PYTHON)  # empty is as good as none
        command[0] = named or sys.executable
        try:
            found[NVIDIA] = stack.enter_context(
                child([*command, "nvidia", place.repository, place.backends], neighbours(place))
            )
        except ContenderError as error:
            hint = f"is {named}" if named else "may name a Python that has it"
            skipped[NVIDIA] = f"{error} ({NVIDIA_PYTHON} {hint})"
        yield found


def versions(children: Mapping[str, Child]) -> dict[str, str]:
    """What those run on who have a Python, or a Triton, of their own."""
    return {name: one.versions for name, one in children.items() if one.versions}


@contextmanager
def server_program(place: Workplace) -> Iterator[dict[str, int]]:
    """Starts the `tritonserver` program; yields its ports, by protocol."""
    ports = dict(zip(("http", "grpc"), _free_ports(2), strict=True))
    command: list[str | Path] = [
        _find_program(place),
        f"--model-repository={place.repository}",
        f"--backend-directory={place.backends}",
        *("--http-address=127.0.0.1", f"--http-port={ports['http']}"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={ports['grpc']}"),
        *("--allow-metrics=false", "--log-info=false", "--log-warning=false"),
    ]
    log = place.folder / "tritonserver.log"
    with program(command, neighbours(place), log) as process:
        await_ready(process, ports["http"], log)
        yield ports


def _find_program(place: Workplace) -> Path:
    # Beside the library in the wheel's two folders, and in a container.
    root = place.library.parent.parent
    for path in (root / "pytriton/tritonserver/bin/tritonserver", root / "bin/tritonserver"):
        if path.is_file():
            if not os.access(path, os.X_OK):
                raise ContenderError(f"{path} is not executable")
            return path
    raise ContenderError(f"there is no tritonserver program beside {place.library}")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def await_ready(
    process: subprocess.Popen[bytes], port: int, log: Path, seconds: float = START_S
) -> None:
    """
    Waits until the server says that it is ready.

    Raises:
        ContenderError: It ended, or is not ready after so many seconds.
    """
    opener = build_opener(ProxyHandler({}))  # a proxy has another loopback
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        with (
            suppress(OSError),
            opener.open(f"http://127.0.0.1:{port}/v2/health/ready", timeout=START_S),
        ):
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    code = process.poll()
    why = f"not ready after {seconds:g} s" if code is None else f"ended with exit code {code}"
    words = last_words(log.read_text(encoding="utf-8", errors="replace"))
    raise ContenderError(f"the tritonserver program: {why}{': ' if words else ''}{words}")
