# SPDX-License-Identifier: Apache-2.0
"""The life of a TRITONSERVER_Server: start, use, close.

Two things about Triton shape this file (``docs/reliability.md`` has the whole list):

- A stop counts whole seconds where models still unload, so models are unloaded first.
- A stop that failed must not be followed by a delete, which would free the server under its users.
  Such a server stays behind, and the error says so.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tritonffi import _leftovers, _log, _python_backend
from tritonffi._call import check, encode_name, interruptible, take_error
from tritonffi._completion import CompletionQueue
from tritonffi._enums import ModelControlMode
from tritonffi._errors import ClosedError, TritonError, UnavailableError
from tritonffi._index import ALIVE, LEAVING, READY, UNLOADING, index, is_ensemble
from tritonffi._inference import are_answered, kept_in, still_there, why_left
from tritonffi._log_settings import started_with
from tritonffi._native import lib
from tritonffi._process import FRESH_S, NativeServer, process
from tritonffi._rest import held
from tritonffi._start import HINTS, log_settings, new_server, private_repository, resolved, undo
from tritonffi._users import Users

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tritonffi._asyncio import LoopQueue
    from tritonffi._functions import FunctionModel
    from tritonffi._inference import Inference
    from tritonffi._library import Library
    from tritonffi._native import CData
    from tritonffi._options import ServerOptions

logger = logging.getLogger("tritonffi")

# What callables that still run get before nobody waits for them any more.
_GRACE_S = 0.1
_KEPT_S = 1.0  # for the steps of an ensemble that go on after it has failed
_POLL_S = 0.001
_LONGEST_STOP_S = 1e9


class Lifecycle:
    """A server's C handle and all that lives and dies with it.

    Attributes:
        native: The ``TRITONSERVER_Server *``; None: it takes no calls (any more).
        queue: Where completions of its inferences arrive.
        queues: Further ones: of event loops, of streams and the like. A dict for its atomic pop.
        left: Those of them at which perhaps nobody waits any more.
        loops: Which of the further ones belongs to which event loop, by its id.
        options: As the user gave them.
        repository: A private model repository, for models that are loaded from a config alone.
        functions: Python callables that are loaded as models, by name.
        retired: Those that were replaced or unloaded while a call of theirs still ran.
        registered: Repositories added since the start, and their names of models by folder.
        hidden: Models that are loaded and not in Triton's index: their repository was taken away.
        parts: Of models that were given a config, whether they have loaded or not.
        failed_reloads: Models that did not load while they were loaded (`Process.remove`).
        turns: By model, held by the one thread that may load or unload it.
        loads: Those that a python process may keep in Triton: by thread, the model, and what looks.
    """

    def __init__(self, options: ServerOptions, library: Library) -> None:
        self.native: CData = None
        self.queue = CompletionQueue()
        self.queues: dict[CompletionQueue, None] = {}
        self.left: dict[CompletionQueue, None] = {}
        self.loops: dict[int, LoopQueue] = {}
        self._is_sweeping = False
        self.options = options
        self.functions: dict[str, FunctionModel] = {}
        self.retired: list[FunctionModel] = []
        self.registered: dict[str, dict[str, str]] = {}
        self.hidden: set[str] = set()
        self.parts: dict[str, list[str]] = {}
        self.failed_reloads: set[str] = set()
        self.turns: dict[str, threading.RLock] = {}
        self.loads: dict[int, tuple[str, _python_backend.StubWatch]] = {}
        self.name = options.server_id
        self._library = library
        self._folder = _leftovers.new_folder()
        self.repository = private_repository(self._folder)
        self._server: NativeServer | None = None
        self._pid = os.getpid()
        self._closing = threading.RLock()
        self._is_closing = False
        self._stopping = threading.Lock()  # over the next two; only who stops waits for it
        self._is_stopped = False
        self._stop_error: TritonError | None = None
        self._users = Users()
        self._refusal = "has not been started"

    def start(self, timeout: float | None) -> None:
        """Make the server and load its startup models.

        Args:
            timeout: Seconds; when they are up, the start goes on in the background and is undone.

        C: ``TRITONSERVER_ServerNew``
        """
        folder = self._folder
        try:
            _leftovers.make_folder(folder)
            _log.capture.watch(self)
            options = resolved(self.options, self._library, folder)
            started_with(log_settings(options))
            watch = _python_backend.StubWatch()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            self._give_up()
            raise
        mark = _log.capture.mark()

        def make() -> None:
            self._server = new_server(options, folder)

        try:
            # From here on the folder goes with the server, which may outlive this call.
            interruptible(
                make,
                f"starting server {self.name!r}",
                timeout=timeout,
                abandoned=lambda _: self._give_up(),
                watch=watch,
            )
            _log.capture.forward()
            process.add(self)
            self.native = self._server and self._server.handle
        except BaseException as error:
            if isinstance(error, TritonError):
                self.explain(error, mark)
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Let go of what a start has made until it failed, or was left by its caller."""
        self.queue.close()
        _log.capture.unwatch(self)
        # With no call between: a server is undone once, by whoever comes first.
        server, self._server = self._server, None
        if server is not None:
            process.forget(self)
            undo(server, FRESH_S)

    def explain(self, error: TritonError, mark: int, about: str = "") -> None:
        """Add to an error what Triton logged, and what is known of its causes.

        Args:
            error: Its message is extended in place.
            mark: Of the log, from before the call.
            about: The name of the model that it is about.
        """
        _log.add_log(error, _log.capture.since(mark), about)
        hint = _python_backend.hint(self._library.path, self._library.stubs, str(error))
        hint = hint or next((hint for text, hint in HINTS.items() if text in str(error)), None)
        if hint is not None:
            error.args = (f"{error}\n{hint}",)

    def refusal(self) -> ClosedError:
        """Return why the server takes no calls."""
        if os.getpid() != self._pid:
            return ClosedError(
                f"server {self.name!r} belongs to process {self._pid}; a forked child cannot use "
                "it, nor start one: use the 'spawn' method of multiprocessing"
            )
        return ClosedError(f"server {self.name!r} {self._refusal}")

    def use(self) -> threading.Lock:
        """Return what is held in a ``with`` block, inside of which `handle` is asked and used."""
        return self._users.lock()

    def handle(self) -> CData:
        """Return the open server's handle.

        Raises:
            ClosedError: It takes no calls.
        """
        handle = self.native
        if handle is None:
            raise self.refusal()
        return handle

    def sweep(self) -> None:
        """Take what came for queues at which nobody waits, and close those that are through.

        Without waiting, also for another thread that does the same.
        """
        if self._is_sweeping:
            return
        self._is_sweeping = True  # and no lock: a signal handler could raise when it was just taken
        try:
            for queue in [queue for queue in list(self.left) if queue.is_left()]:
                queue.drain()
                for inference in list(queue.in_flight.values()):
                    inference.orphan()
                if not queue.in_flight:
                    self.release(queue)
        finally:
            self._is_sweeping = False

    def adopt(self, queue: CompletionQueue) -> None:
        """Add a queue to the further ones; the server's close waits for what is in flight there."""
        queue.left = self.left
        self.queues[queue] = None
        if self.is_closed:  # perhaps only just, and then nobody else would close the queue
            self.release(queue)
            raise self.refusal()

    def release(self, queue: CompletionQueue) -> None:
        """Close one of the further queues, once."""
        if self.queues.pop(queue, self) is None:
            queue.close()
        self.left.pop(queue, None)  # last: where a signal handler raises, a sweep comes back to it

    def discard_folder(self) -> None:
        """Remove the private folder of a server that the process ends with."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_closed(self) -> bool:
        """Whether it takes no calls any more."""
        return self.native is None

    def forked(self) -> None:
        """Be of no use in a forked child: Triton's threads are not there."""
        self.native = None
        self._closing = threading.RLock()
        self._users = Users()
        self._is_sweeping = False
        for queue in self._all_queues():
            queue.is_given_up = True
            queue.reason = str(self.refusal())

    def index(self, handle: CData) -> list[dict[str, str]]:
        """Read the model index.

        C: ``TRITONSERVER_ServerModelIndex``
        """
        return index(handle, f"server {self.name!r}")

    def loaded(self, handle: CData, states: tuple[str, ...] = ALIVE) -> set[str]:
        """Return the names of the models that the index shows as loaded, or on their way."""
        return {entry["name"] for entry in self.index(handle) if entry.get("state") in states}

    def lost_loads(self) -> dict[int, str]:
        """Return the models that Triton will load for ever, by the threads that wait for it."""
        return {
            thread: name for thread, (name, watch) in list(self.loads.items()) if watch.has_lost()
        }

    def wait_unloaded(
        self,
        handle: CData,
        names: set[str] | None,
        deadline: float,
        states: tuple[str, ...] = LEAVING,
    ) -> bool:
        """Wait until the index shows models as unloaded.

        Args:
            handle: The server's.
            names: Of the models; None is all of them.
            deadline: On the clock of ``time.monotonic``.
            states: In which they are not. One that was told to unload is not ready, unless another
                thread has loaded it again.

        Returns:
            False when the deadline passed first, or what is left will never be unloaded.
        """
        look = time.monotonic() + _python_backend.PATIENCE_S
        while alive := {
            name for name in self.loaded(handle, states) if names is None or name in names
        }:
            now = time.monotonic()
            if now >= deadline:
                return False
            if now >= look:
                kept = kept_in(self.inferences())
                if all(_python_backend.is_lost(name) or name in kept for name in alive):
                    return False
                look += _python_backend.PATIENCE_S
            time.sleep(_POLL_S)
        return True

    @contextmanager
    def letting_go(self, handle: CData, names: set[str], patience: float) -> Iterator[None]:
        """Hold models while Triton is told to let them go; `_rest` says why.

        Args:
            handle: The server's.
            names: Of the models.
            patience: Seconds to wait for their requests after Triton was told.
        """
        versions = [
            (entry["name"], int(entry.get("version", -1)))
            for entry in self.index(handle)
            if entry["name"] in names and entry.get("state") == READY
        ]
        versions += [(name, -1) for name in names & self.hidden]
        functions = [self.functions[name] for name in names if name in self.functions]
        with held(handle, versions, self.inferences, functions, patience):
            yield

    def inferences(self) -> list[Inference]:
        """Return what is in flight, after taking what came of it."""
        queues = self._all_queues()
        for queue in queues:
            queue.drain_beside()
        return [inference for queue in queues for inference in list(queue.in_flight.values())]

    def _all_queues(self) -> list[CompletionQueue]:
        return [self.queue, *self.queues]

    def close(self, timeout: float | None = None) -> None:
        """Refuse new work, cancel and drain what is in flight, unload, stop.

        Args:
            timeout: Seconds for all of it; None is the server's ``exit_timeout``.

        Raises:
            TimeoutError: A call or a model has not let go, or the stop goes on in the background.
                Call again.
            TritonError: Triton could not stop, and never will: the server is left behind.
        """
        if os.getpid() != self._pid:
            return
        limit = self.options.exit_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not self._closing.acquire(timeout=min(max(0.0, limit), threading.TIMEOUT_MAX)):
            raise TimeoutError(
                f"server {self.name!r}: another thread still closes it after {limit:g} s"
            )
        try:
            if self._server is None or self._is_closing:
                return  # the latter: a signal handler has interrupted this thread's close
            self._is_closing = True
            try:
                self._close(self._server, deadline, limit, is_bounded=timeout is not None)
            finally:
                self._is_closing = False
        finally:
            self._closing.release()

    def _close(
        self, server: NativeServer, deadline: float, limit: float, *, is_bounded: bool
    ) -> None:
        handle = server.handle
        self._refusal = "is closed"
        self.native = None
        self._drain(deadline)
        lost_loads = self.lost_loads()
        lost = set(lost_loads.values())
        if self._users.threads() - lost_loads.keys() or any(
            queue.is_submitting() for queue in self._all_queues()
        ):
            # A load that goes on would hold up the unloads too, and they cannot be left. A call
            # of this thread, which a signal handler interrupted, goes on with the handle.
            raise TimeoutError(
                f"server {self.name!r} is not closed: a call of it, such as a load, is not "
                f"over after {limit:g} s; close it again when it is"
            )
        if (
            self.options.model_control_mode is ModelControlMode.EXPLICIT
            and self._stop_error is None
            and not self._is_stopped
            and not self._stopping.locked()
        ):
            self._unload_all(handle, deadline, limit, lost)
        why = why_left(self.failed_reloads, lost, self.inferences())
        if not why:
            mark = _log.capture.mark()
            seconds = max(1, round(min(deadline - time.monotonic(), _LONGEST_STOP_S)))
            if self._library.stubs is not None and _python_backend.is_lost():
                seconds = 1  # more would help nobody
            try:
                interruptible(
                    lambda: self._stop(handle, seconds),
                    f"stopping server {self.name!r}",
                    timeout=seconds + 1.0 if is_bounded else None,
                )
            except TritonError as error:
                self.explain(error, mark)
                raise
        for function in self._all_functions():
            function.close()
        self.functions, self.retired = {}, []
        for queue in list(self.queues):
            self.release(queue)
        self.queue.close()
        process.remove(server, why)
        process.forget(self)
        _log.capture.unwatch(self)
        self._server = None

    def retire(self, function: FunctionModel) -> None:
        """Let a function model go that no name stands for; a call of it is not waited for."""
        self.retired = [model for model in self.retired if not model.close(0)]
        if not function.close(for_calls=False):
            self.retired.append(function)

    def _all_functions(self) -> list[FunctionModel]:
        return [*self.functions.values(), *self.retired]

    def _drain(self, deadline: float) -> None:
        queues = self._all_queues()
        for queue in queues:
            for inference in list(queue.in_flight.values()):
                inference.cancel()
        grace = min(deadline, time.monotonic() + _GRACE_S)
        if not all(queue.settle(grace) for queue in queues):
            for function in self._all_functions():
                function.abandon()
            for queue in queues:
                if not queue.settle(deadline):
                    queue.give_up()
        # Not for this thread's own calls: a signal handler may have interrupted one.
        own = {threading.get_ident()}
        while self._users.threads() - own - self.lost_loads().keys():
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)

    def _unload_all(self, handle: CData, deadline: float, limit: float, lost: set[str]) -> None:
        # Where loads will never be over no others go on, and an unload would wait for them.
        states = (READY, UNLOADING) if lost else ALIVE
        try:
            loaded = (self.loaded(handle, states) | self.hidden) - lost
        except UnavailableError:
            # With ``exit_on_error=False`` a server may not have come up at all: it has no models.
            return
        # Ensembles first: a model that an ensemble still needs is not unloaded cleanly.
        in_order = sorted(loaded, key=lambda name: (not is_ensemble(handle, name), name))
        with self.letting_go(handle, loaded, deadline - time.monotonic()):
            for name in in_order:
                error = lib.TRITONSERVER_ServerUnloadModel(handle, encode_name(name))
                if error:
                    logger.debug("%s", take_error(error, f"model {name!r}"))
        is_kept = bool(kept_in(self.inferences()))
        until = min(deadline, time.monotonic() + _KEPT_S) if is_kept else deadline
        names = loaded if lost else None
        is_empty = self.wait_unloaded(handle, names, until, states) and self._wait_through(until)
        if not is_empty and not (is_kept and are_answered(self.inferences())):
            # Not a word to Triton: after one stop in vain it takes no second one, and says that it
            # has stopped. This way `close` can be called again.
            alive = [
                entry
                for entry in self.index(handle)
                if entry.get("state") in states and entry["name"] not in lost
            ]
            raise TimeoutError(
                f"server {self.name!r} did not stop within {limit:g} s: "
                f"{still_there(alive, self.inferences())}; close() may be called again"
            )

    def keeps(self, name: str) -> bool:
        """Return whether Triton may keep a request of the model for ever."""
        return name in kept_in(self.inferences())

    def _wait_through(self, deadline: float) -> bool:
        """Wait for what is in flight in models that the index does not show; False: in vain."""
        while not are_answered(self.inferences()):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return not kept_in(self.inferences())

    def _stop(self, handle: CData, seconds: int) -> None:
        """Stop it once: a second stop returns at once from Triton, as if the first was through."""
        with self._stopping:
            if self._is_stopped:
                return
            if self._stop_error is None:
                what = f"server {self.name!r}"
                try:
                    check(lib.TRITONSERVER_ServerSetExitTimeout(handle, seconds), what)
                    check(lib.TRITONSERVER_ServerStop(handle), f"{what}: it did not stop")
                except TritonError as error:
                    self._stop_error = error
                else:
                    self._is_stopped = True
                    return
            raise type(self._stop_error)(str(self._stop_error))
