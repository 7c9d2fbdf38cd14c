# SPDX-License-Identifier: Apache-2.0
"""Make a TRITONSERVER_Server, and judge whether it has come up.

Triton frees a server that fails to start, and that takes away the memory pools which all servers of
the process use. So it is told not to mind failures (``exit_on_error``), and whether there were any
is found out here: Triton logs the error that it would have returned, and the server's own state
tells whether that line was about it or about another one that started meanwhile. A server that
failed is stopped, and deleted with the others.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tritonffi import _leftovers, _log, _python_backend
from tritonffi._call import check, out_bool, owned, string, take_error
from tritonffi._enums import ErrorCode, ModelControlMode
from tritonffi._errors import InvalidArgumentError, TritonError, error_from_code
from tritonffi._index import READY, index
from tritonffi._library import assemble_backends
from tritonffi._limits import check_threads
from tritonffi._log_settings import LogSettings, starting_with
from tritonffi._model_files import check_start
from tritonffi._native import ffi, lib
from tritonffi._process import NativeServer, process

if TYPE_CHECKING:
    from tritonffi._library import Library
    from tritonffi._native import CData
    from tritonffi._options import ServerOptions

logger = logging.getLogger("tritonffi")

_ERROR: Final = "(?s)([A-Z][a-z ]+): (.*)"
_FILE: Final = "tritonserver.cc"

#: What is to be known of a failure, by Triton's words.
HINTS: Final = {
    "Async work queue has been initialized": "Option buffer_manager_thread_count can be set once "
    "in a process, by the first server that wants it; its threads serve all: leave it 0 in others",
    "already holds a cache": "A process has one response cache at a time, and another server has "
    "it. It is let go when no server is left open",
    "failed to read text proto": "Triton wrote to stderr what is wrong in which line of that file",
}


def _log_settings(options: ServerOptions) -> LogSettings:
    """Return what options say of the log."""
    return LogSettings(
        info=options.log_info,
        warn=options.log_warn,
        error=options.log_error,
        verbose=options.log_verbose,
        format=options.log_format,
        file=options.log_file,
    )


def private_repository(folder: Path) -> Path:
    """Return where a server has its models that are in no repository of the user's.

    Args:
        folder: The server's private one.
    """
    return folder / "models"


def resolved(options: ServerOptions, library: Library, folder: Path) -> ServerOptions:
    """Return the options as Triton gets them: with private folders and what was left open.

    Args:
        options: As the user gave them.
        library: The server's.
        folder: Its private one; a repository and the backends are made there.
    """
    own = private_repository(folder)
    own.mkdir()
    repositories = options.paths("model_repository")
    for path in repositories:
        if "://" not in path and not Path(path).is_dir():
            raise InvalidArgumentError(f"model repository {path!r} is not a folder")
    backends = assemble_backends(folder / "backends", library, options.paths("backend_directory"))
    changes: dict[str, object] = {
        "model_repository": (*repositories, str(own)),
        "backend_directory": str(backends),
    }
    if options.model_control_mode is not ModelControlMode.EXPLICIT:
        changes["startup_models"] = ()
    for name in ("log_file", "cache_directory", "repo_agent_directory"):
        if getattr(options, name) is not None:  # one place, wherever the process goes later
            (changes[name],) = options.paths(name)
    if options.cache_directory is None and library.caches is not None:
        changes["cache_directory"] = library.caches
    if options.repo_agent_directory is None and library.repoagents is not None:
        changes["repo_agent_directory"] = library.repoagents
    if library.stubs is not None:
        # Names of its own for the shared memory of stubs: what killed ones leave can be found.
        _python_backend.remove_shm(own=False)
        prefix = {"shm-region-prefix-name": _leftovers.prefix()}
        python = {**prefix, **options.backend_config.get("python", {})}
        changes["backend_config"] = {**options.backend_config, "python": python}
    if options.gpu_metrics is None:
        # Asking for GPU metrics where no driver is prints to stderr.
        changes["gpu_metrics"] = Path("/dev/nvidiactl").exists()
    return dataclasses.replace(options, **changes)  # type: ignore[arg-type]


def new_server(options: ServerOptions, folder: Path) -> NativeServer:
    """Make a server and load its startup models.

    Args:
        options: Complete.
        folder: Its private one; removed with it.

    Raises:
        TritonError: As Triton itself says it.
        InvalidArgumentError: It would wait for a model for ever, or crash with one.
        UnavailableError: There is no /proc, by way of which the log comes; or the process can start
            no more threads.

    C: ``TRITONSERVER_ServerNew``
    """
    # Where its log does not come to us, Triton must judge for itself.
    judged = options.exit_on_error and options.log_file is None and options.log_error
    mark = _log.capture.mark()
    context = f"server {options.server_id!r}"
    try:
        check_start(options)
        # Those that load, and one of its metrics or of a first model.
        check_threads(options.model_load_thread_count + 1, f"{context}:")
        with owned(
            "struct TRITONSERVER_ServerOptions *",
            lib.TRITONSERVER_ServerOptionsNew,
            lib.TRITONSERVER_ServerOptionsDelete,
        ) as native:
            with starting_with(_log_settings(options), context) as log_file:
                if options.log_file is None:
                    options = dataclasses.replace(options, log_file=log_file)
                dataclasses.replace(
                    options, exit_on_error=options.exit_on_error and not judged
                ).apply(native)
            handle = ffi.new("struct TRITONSERVER_Server **")
            with process.starting() as started:
                check(lib.TRITONSERVER_ServerNew(handle, native), context)
                server = NativeServer(handle[0], folder)
                started(server)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    lines = _log.capture.since(mark)
    failure = _failure(server.handle, options, lines, context) if judged else None
    if failure is not None:
        undo(server)
        try:
            raise failure
        finally:
            del failure  # or it and this frame would hold each other
    return server


def undo(server: NativeServer, after: float = 0.0) -> None:
    """Stop a server that nobody wants; it is deleted with the others.

    Args:
        server: The server.
        after: Seconds to let it settle before.

    C: ``TRITONSERVER_ServerStop``
    """
    time.sleep(after)
    error = lib.TRITONSERVER_ServerStop(server.handle)
    if error:
        logger.error("a server whose start was given up did not stop: %s", take_error(error))
    else:
        process.remove(server)


def _failure(
    handle: CData, options: ServerOptions, lines: list[_log.LogLine], context: str
) -> TritonError | None:
    """Return what Triton would have answered, had it been told to mind."""
    errors = [line for line in lines if line.level >= logging.ERROR and line.file == _FILE]
    for line in reversed(errors):
        match = re.match(_ERROR, line.text)
        code = _codes().get(match[1]) if match is not None else None
        if match is not None and code is not None:
            if _is_whole(handle, options, context):
                return None
            return error_from_code(code, f"{context}: {match[2]}")
    return None


def _codes() -> dict[str, int]:
    """Triton's names of error codes."""
    codes = {}
    for code in ErrorCode:
        error = lib.TRITONSERVER_ErrorNew(int(code), b"")
        codes[string(lib.TRITONSERVER_ErrorCodeString(error))] = int(code)
        lib.TRITONSERVER_ErrorDelete(error)
    return codes


def _is_whole(handle: CData, options: ServerOptions, context: str) -> bool:
    """Say whether a server runs with all of its startup models."""
    try:
        if not out_bool(lib.TRITONSERVER_ServerIsLive, handle, context=context):
            return False
        entries = index(handle, context)
    except TritonError:
        return False
    states: dict[object, set[object]] = {}
    for entry in entries:
        states.setdefault(entry["name"], set()).add(entry.get("state"))
    wanted: set[str] = set(options.startup_models)
    if options.model_control_mode is not ModelControlMode.EXPLICIT or "*" in wanted:
        wanted = {
            entry.name
            for path in options.paths("model_repository")
            if "://" not in path
            for entry in os.scandir(path)
            if entry.is_dir()
        }
    return all(states.get(name) == {READY} for name in wanted)
