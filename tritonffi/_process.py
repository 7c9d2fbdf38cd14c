# SPDX-License-Identifier: Apache-2.0
"""What the servers of this process share: when they may be deleted, its exit, its forks.

Deleting one server resets memory pools that all servers of the process use, so a stopped server is
deleted when no other one runs or starts.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonffi import _library, _log, _python_backend
from tritonffi._call import take_error
from tritonffi._errors import TritonError, UnsupportedError
from tritonffi._native import lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tritonffi._lifecycle import Lifecycle
    from tritonffi._native import CData

logger = logging.getLogger("tritonffi")

# A model is called unloaded a moment before Triton's own thread is through with the server's maps.
_SETTLE_S = 0.005
_EXIT_TIMEOUT_S = 2.0
#: Before a server whose start was given up is stopped: its models have only just been loaded, and
#: nobody held them meanwhile (`tritonffi._rest` says why that matters).
FRESH_S = 0.2


@dataclass(eq=False, slots=True)
class NativeServer:
    """A ``TRITONSERVER_Server`` that was made.

    Attributes:
        handle: The C handle.
        folder: The private folder that is removed with it.
        is_stopped: Whether it can be deleted.
        is_left: Whether it is left behind, and will never be stopped.
    """

    handle: CData
    folder: Path
    is_stopped: bool = False
    is_left: bool = False


class Process:
    """The servers of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
        self._starting: set[object] = set()
        self._servers: list[NativeServer] = []  # that may be deleted once
        self._has_started = False
        self._is_spoiled = False

    @contextmanager
    def starting(self) -> Iterator[Callable[[NativeServer], None]]:
        """Start a server meanwhile; none is deleted. Gives what takes the new one.

        Raises:
            UnsupportedError: This is a fork of a process that had one.
        """
        if self._is_spoiled:
            raise UnsupportedError(
                "this process was forked from one in which a server had been started, and Triton "
                "cannot be started in it: use the 'spawn' method of multiprocessing, or fork "
                "before the first start"
            )
        self._has_started = True
        start = object()
        try:
            with self._lock:
                self._starting.add(start)
            yield self._servers.append
        finally:
            self._starting.discard(start)
            self._delete()

    def add(self, server: Lifecycle) -> None:
        """Note a server that is to be closed at the exit."""
        with self._lock:
            self._open.add(server)

    def forget(self, server: Lifecycle) -> None:
        """Do as if `add` had not been called."""
        with self._lock:
            self._open.discard(server)

    def remove(self, server: NativeServer, why: str = "") -> None:
        """Note that a server has stopped; delete it, and those before, if it was the last.

        Where a signal handler has interrupted that by raising, the next call goes on with it.

        Args:
            server: One that was made while this was `starting`.
            why: After what Triton keeps a model for ever: such a server is not stopped, which would
                take all of its time and fail, but left behind. What others share it needs no more.
        """
        if not why:
            server.is_stopped = True
        elif not server.is_left:
            server.is_left = True
            logger.warning(
                "a server is left behind, unloaded but not stopped: Triton cannot stop it after %s",
                why,
            )
        if server.is_left:
            shutil.rmtree(server.folder, ignore_errors=True)
        self._delete()

    def _delete(self) -> None:
        """Delete the stopped servers, unless one runs or starts."""
        with self._lock:
            servers = [server for server in self._servers if not server.is_left]
            if self._starting or not servers or not all(s.is_stopped for s in servers):
                return
            # Nobody may start one before the pools are gone.
            time.sleep(_SETTLE_S)
            for server in servers:
                shutil.rmtree(server.folder, ignore_errors=True)
            while self._servers:
                server = self._servers[-1]
                # No call between this and the next, after which a signal handler could raise.
                del self._servers[-1]
                error = None if server.is_left else lib.TRITONSERVER_ServerDelete(server.handle)
                if error:
                    logger.error("a stopped server was not deleted: %s", take_error(error))
        _python_backend.remove_shm(own=True)
        _log.capture.forward()

    def exit(self) -> None:
        """Close what is open when the interpreter goes, quietly and not for long."""
        threading.excepthook = _without_daemons(threading.excepthook)
        with self._lock:
            servers = list(self._open)
        for server in servers:
            try:
                server.close(timeout=_EXIT_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001, PERF203 (nobody is left to catch it)
                logger.debug("server %r did not close at exit: %s", server.name, error)
                server.discard_folder()
        _python_backend.end_stubs()
        _python_backend.remove_shm(own=True)

    def forked(self) -> None:
        """In a forked child: no server is of use, and none may be stopped or deleted."""
        self._lock = threading.RLock()
        for server in list(self._open):
            server.forked()
        self._open = weakref.WeakSet()
        self._starting = set()
        self._servers = []
        if self._has_started and not self._is_spoiled:
            self._is_spoiled = True
            _library.forked()
        _log.capture.forked()


def _without_daemons(
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], object]:
    """Wrap what tells why a thread ended: that a daemon lost its server is no news at the exit."""

    def tell(arguments: threading.ExceptHookArgs) -> None:
        thread = arguments.thread
        if thread is None or not thread.daemon or not issubclass(arguments.exc_type, TritonError):
            hook(arguments)

    return tell


process = Process()
atexit.register(process.exit)
os.register_at_fork(after_in_child=process.forked)
