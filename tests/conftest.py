# SPDX-License-Identifier: Apache-2.0
"""A real server for every test, and a check after each that nothing of it stayed behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import _backend
import pytest
from _functions import Loader

from tritonffi import LibraryNotFoundError, Server, _library
from tritonffi._fetch import get_server
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tritonffi import Model

COUNTED = ("buffers", "inferences", "completions", "queues", "functions", "batches", "traces")


def counters() -> dict[str, int]:
    """What is alive in C, as `tffi_counters_read` counts it."""
    read = ffi.new("tffi_counters *")
    lib.tffi_counters_read(read)
    return {name: getattr(read, name) for name in COUNTED}


@pytest.fixture(autouse=True)
def _nothing_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Buffers, inferences, completions and threads are after the test what they were before."""
    # Servers that live longer than the test are made first, or they would count as left behind.
    for name in ("server", "gate"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    before = counters()
    threads = set(threading.enumerate())
    yield
    if "server" in request.fixturenames:
        # What a test dropped in flight is taken now and not by the next test's calls.
        lifecycle = request.getfixturevalue("server")._lifecycle
        for queue in (lifecycle.queue, *lifecycle.queues):
            assert queue.settle(time.monotonic() + 30)
        lifecycle.sweep()
    deadline = time.monotonic() + 10
    while counters() != before and time.monotonic() < deadline:
        gc.collect()  # only then: it takes longer than most tests
        if "server" in request.fixturenames:
            lifecycle.sweep()
        # The thread of a function that has answered lets go of its batch as soon as it has the GIL.
        time.sleep(0)
    assert counters() == before
    assert [thread.name for thread in threading.enumerate() if thread not in threads] == []


def pytest_sessionstart() -> None:
    """Fetch the server where there is none, before tests that load it are even collected.

    It is done by the code that users run.
    """
    # A shell starts jobs in the background with SIGINT ignored, and the tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _library.find()
    except LibraryNotFoundError:
        if any(name in os.environ for name in ("TRITONFFI_LIBRARY", "TRITON_ROOT")):
            raise
        get_server()


def pytest_collection_finish() -> None:
    """Have the garbage collector leave out what is there by now: all of that stays.

    To look through thousands of tests again and again took a quarter of their time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def library() -> _library.Library:
    """The real libtritonserver."""
    return _library.load()


@pytest.fixture(scope="session")
def backend(library: _library.Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test backend, built against the library; the path of its shared object."""
    return _backend.build(tmp_path_factory.mktemp("backends"), library.path)


@pytest.fixture(scope="session")
def backend_directory(backend: Path) -> Path:
    """The directory that has the test backend."""
    return backend.parent.parent


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository: the models of tests/models and one echo model for each data type."""
    folder = tmp_path_factory.mktemp("repository") / "models"
    shutil.copytree(Path(__file__).parent / "models", folder)
    _backend.write_dtype_models(folder)
    return folder


@pytest.fixture(scope="session")
def server(repository: Path, backend_directory: Path) -> Iterator[Server]:
    """A server over that repository, for all tests that do not need one of their own.

    It has the one response cache that a process may have; models ask for it in their config.
    """
    options = {"server_id": "shared", "cache_config": {"local": {"size": 1 << 20}}}
    with Server(repository, backend_directory=backend_directory, **options) as running:
        yield running


@pytest.fixture
def echo(server: Server) -> Model:
    """A model that returns its FP32 input INPUT0 of shape [-1] as OUTPUT0."""
    return server.model("echo")


@pytest.fixture(scope="session")
def _gate(backend: Path) -> _backend.Gate:
    return _backend.Gate(backend)


@pytest.fixture
def on_a_busy_machine(
    library: _library.Library, repository: Path, backend_directory: Path, tmp_path: Path
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program in a process of its own, beside twice as many others as there are cores.

    It finds the folders of models and backends as REPOSITORY and BACKENDS.
    """

    def run(program: str) -> subprocess.CompletedProcess[str]:
        hogs = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(2 * len(os.sched_getaffinity(0)))
        ]
        folders = f"REPOSITORY = {str(repository)!r}; BACKENDS = {str(backend_directory)!r}"
        try:
            return subprocess.run(
                [sys.executable, "-c", f"{folders}\n{program}"],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
                cwd=tmp_path,
            )
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()

    return run


@pytest.fixture
def load(server: Server) -> Iterator[Loader]:
    """Loads callables of `x` that return `y` as models of the server; they go with the test."""
    loader = Loader(server)
    yield loader
    loader.unload()


@pytest.fixture
def gate(_gate: _backend.Gate) -> Iterator[_backend.Gate]:
    """The gate at which requests with the parameter `hold` stop; open again after the test."""
    _gate.reset()
    yield _gate
    _gate.reset()
