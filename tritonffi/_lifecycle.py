# SPDX-License-Identifier: Apache-2.0
"""The life of a TRITONSERVER_Server: start, use, close.

Two things about Triton shape this file (``docs/reliability.md`` has the whole list):

- A stop counts whole seconds where models still unload, so models are unloaded first.
- A stop that failed must not be followed by a delete, which would free the server under its users.
  Such a server stays behind, and the error or a warning says so.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tritonffi import _leftovers, _limits, _log, _python_backend
from tritonffi._call import check, interruptible, keep
from tritonffi._completion import CompletionQueue
from tritonffi._enums import ModelControlMode
from tritonffi._errors import ClosedError, TritonError
from tritonffi._inference import why_left
from tritonffi._loaded import LoadedModels
from tritonffi._native import lib
from tritonffi._process import FRESH_S, NativeServer, process
from tritonffi._start import HINTS, new_server, private_repository, resolved, undo
from tritonffi._users import Users

if TYPE_CHECKING:
    from tritonffi._asyncio import LoopQueue
    from tritonffi._inference import Inference
    from tritonffi._library import Library
    from tritonffi._native import CData
    from tritonffi._options import ServerOptions

logger = logging.getLogger("tritonffi")

# Of servers that are left behind: what Triton may use yet.
_kept_for_ever: list[object] = []

# What callables that still run get before nobody waits for them any more.
_GRACE_S = 0.1
_POLL_S = 0.001
_LOOK_S = 0.25
_LONGEST_STOP_S = 1e9


class Lifecycle(LoadedModels):
    """A server's C handle and all that lives and dies with it.

    Attributes:
        native: The ``TRITONSERVER_Server *``; None: it takes no calls (any more).
        queue: Where completions of its inferences arrive.
        queues: Further ones: of event loops, of streams and the like. A dict for its atomic pop.
        left: Those of them at which perhaps nobody waits any more.
        loops: Which of the further ones belongs to which event loop, by its id.
    """

    def __init__(self, options: ServerOptions, library: Library) -> None:
        self._folder = _leftovers.new_folder()
        super().__init__(options, private_repository(self._folder))
        self.native: CData = None
        self.queue = CompletionQueue()
        self.queues: dict[CompletionQueue, None] = {}
        self.left: dict[CompletionQueue, None] = {}
        self.loops: dict[int, LoopQueue] = {}
        self._is_sweeping = False
        self._oldest: int | None = None  # in flight when `tidy` last looked
        self._library = library
        self._server: NativeServer | None = None
        self._pid = os.getpid()
        self._closing = threading.RLock()
        self._is_closing = False
        self._is_close_begun = False
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
            with _limits.named(f"server {self.name!r}"):
                _leftovers.make_folder(folder)
                _log.capture.watch(self, self.tidy)
                options = resolved(self.options, self._library, folder)
            watch = _python_backend.StubWatch()
            mark = _log.capture.mark()  # which hands on lines, and takes its time for it
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            self._give_up()
            raise

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
            handle = self._server and self._server.handle
            if handle and self.options.model_namespacing:
                with suppress(TritonError):  # it has no models
                    self.index(handle)  # names, which cannot be had later, where a folder goes
            self.native = handle
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
        hint = hint or _limits.hint()
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

    def tidy(self) -> None:
        """Take what has come, where nobody has for a second; it is called once in that time.

        Waits and submits do so, too, but there may be none for long: what timed out, or was
        dropped, would keep its arrays.
        """
        oldest = min(list(self.queue.in_flight), default=None)
        if oldest is not None and oldest == self._oldest:
            self.queue.drain_beside()
        self._oldest = oldest
        if self.left:
            self.sweep()
        if self._library.stubs is not None and any(q.in_flight for q in self._all_queues()):
            self._tell_bereaved()

    def _tell_bereaved(self) -> None:
        """Give those an error who wait for python processes that have died."""
        if self.native is not None:  # or a close would wait for this, which looks by itself
            with self.use():
                handle = self.native
                if handle is not None:
                    self.deaths.look(handle, self.inferences(), is_closing=False)

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

    @property
    def is_over(self) -> bool:
        """Whether a close has nothing to do any more: it is through, or was and is in vain.

        Of a start that has not succeeded it has not, either: that takes back itself what it made.
        """
        if os.getpid() != self._pid or self._server is None or self._stop_error is not None:
            return True
        return self.is_closed and not self._is_close_begun

    def forked(self) -> None:
        """Be of no use in a forked child: Triton's threads are not there."""
        self.native = None
        self._closing = threading.RLock()
        self._users = Users()
        self._is_sweeping = False
        for queue in self._all_queues():
            queue.is_given_up = True
            queue.reason = str(self.refusal())

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
            TritonError: Triton could not stop, and never will: the server is left behind. Where it
                is known why that is, there is a warning instead.
        """
        if os.getpid() != self._pid:
            return
        limit = self.options.exit_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        patience = min(max(0.0, limit), threading.TIMEOUT_MAX)
        taken: list[bool] = []
        try:
            keep(taken, self._closing.acquire, True, patience)
            if not taken[0]:
                raise TimeoutError(
                    f"server {self.name!r}: another thread still closes it after {limit:g} s"
                )
            if self._is_closing:
                return  # a signal handler has interrupted this thread's close
            try:
                self._is_closing = True
                server = self._server
                if server is not None:
                    self._close(server, deadline, limit, is_bounded=timeout is not None)
            finally:
                self._is_closing = False
        finally:
            if True in taken:
                self._closing.release()

    def _close(
        self, server: NativeServer, deadline: float, limit: float, *, is_bounded: bool
    ) -> None:
        handle = server.handle
        self._refusal = "is closed"
        self._is_close_begun = True
        self.native = None
        self._drain(handle, deadline)
        lost_loads = self.lost_loads()
        lost, dead = set(lost_loads.values()), set[str]()
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
            dead = self.unload_all(handle, deadline, limit, lost)
        dead |= self.deaths.kept(self.inferences())
        why = why_left(self.failed_reloads, lost, dead, self.inferences())
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
                if self._library.stubs is None or not _python_backend.is_lost():
                    self.explain(error, mark)
                    raise
                why = "requests whose python process has died"
        for function in self.all_functions():
            function.close()
        self.functions, self.retired = {}, []
        if why:  # and Triton may read the inputs of what it keeps
            _kept_for_ever.extend((entry.pins, entry.terms) for entry in self.inferences())
        for queue in list(self.queues):
            self.release(queue)
        self.queue.close()
        process.remove(server, why)
        process.forget(self)
        _log.capture.unwatch(self)
        self._server = None

    def _drain(self, handle: CData, deadline: float) -> None:
        queues = self._all_queues()
        for queue in queues:
            for inference in list(queue.in_flight.values()):
                inference.cancel()
        grace = min(deadline, time.monotonic() + _GRACE_S)
        if not all(queue.settle(grace) for queue in queues):
            for function in self.all_functions():
                function.abandon()
            self._settle(handle, deadline)
        # Not for this thread's own calls: a signal handler may have interrupted one.
        own = {threading.get_ident()}
        while self._users.threads() - own - self.lost_loads().keys():
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)

    def _settle(self, handle: CData, deadline: float) -> None:
        """Wait for what is in flight, but for what waits for python processes that have died."""
        queues = self._all_queues()
        if self._library.stubs is not None:
            while time.monotonic() < deadline:
                look = min(deadline, time.monotonic() + _LOOK_S)
                if all(queue.settle(look) for queue in queues):
                    return
                self.deaths.look(handle, self.inferences(), is_closing=True)
        for queue in queues:
            if not queue.settle(deadline):
                queue.give_up()

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
                    # Without its frames, which have this object.
                    self._stop_error = type(error)(str(error))
                else:
                    self._is_stopped = True
                    return
            raise type(self._stop_error)(str(self._stop_error))
