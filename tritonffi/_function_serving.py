# SPDX-License-Identifier: Apache-2.0
"""
One instance of a function model at work: a batch comes, the callable is called, C is told.

It runs on the instance's worker thread. Whatever goes wrong becomes the answer to the batch. Where
the callable forks, the child has this very thread: whatever comes of the call there is nobody's
answer, and the thread leaves.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tritonffi._call import check, take_error
from tritonffi._errors import CancelledError, InternalError, TritonError
from tritonffi._forks import Origin
from tritonffi._function_context import RunningBatch, read_context
from tritonffi._function_errors import error_code, error_text, forget_arrays
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tritonffi._function_context import Context
    from tritonffi._function_inputs import InputReader, Owners
    from tritonffi._function_results import ResultWriter
    from tritonffi._function_target import Instance
    from tritonffi._functions import FunctionModel
    from tritonffi._native import CData

logger = logging.getLogger("tritonffi.functions")


class OwnCall:
    """
    A call of a function model's callable, as what runs in it sees it.

    Attributes:
        model: The model; None: there is no call, or it is over. Tasks and threads that go on after
            it see it too.
    """

    __slots__ = ("model",)

    def __init__(self, model: FunctionModel | None) -> None:
        self.model = model


_NO_CALL = OwnCall(None)  # which is nobody's to change
#: The call in which this thread, or task, runs.
own_call: ContextVar[OwnCall] = ContextVar("tritonffi.own_call", default=_NO_CALL)


class Serving:
    """Calls one instance's callable on one batch after the other."""

    def __init__(
        self,
        model: FunctionModel,
        number: int,
        instance: Instance,
        *,
        reader: InputReader,
        writer: ResultWriter,
        note_warm_up: Callable[[BaseException], None],
        busy: set[threading.Thread],
    ) -> None:
        """
        Keep what all calls have in common.

        Args:
            model: Whose instance it is.
            number: The instance's number.
            instance: What it calls.
            reader: Makes the arrays; this instance's own.
            writer: Makes C structs of results.
            note_warm_up: Told what the callable raises in a warm-up, before Triton is.
            busy: Holds the thread that serves as long as it is in the callable.
        """
        self._model = model
        self._name = model.name
        self._number = number
        self._instance = instance
        self._reader = reader
        self._writer = writer
        self._note_warm_up = note_warm_up
        self._busy = busy
        self._origin = Origin()
        self._error = ffi.new("struct TRITONSERVER_Error **")
        self._running: RunningBatch | None = None
        self._call_now = OwnCall(None)

    def recover(self, batch: CData) -> None:
        """
        Leave what something has cut short that another thread has thrown into this one.

        It may itself be cut short, and is then done again.

        Args:
            batch: What `serve` had, where it was; one that was not answered fails.
        """
        self._call_now.model = None
        self._busy.discard(threading.current_thread())
        if self._running is not None:
            self._running.end()
        if batch[0]:  # one call, as it must not be released twice
            lib.tffi_batch_exchange(batch, ffi.NULL, self._error)

    def serve(self, batch: CData) -> None:
        """
        Serve a batch, and those that come right after it.

        Args:
            batch: A ``tffi_batch **``: one that runs, or none, and none in the end.
        """
        worker = threading.current_thread()
        while batch[0]:
            self._call_now = OwnCall(self._model)
            own_call.set(self._call_now)
            self._busy.add(worker)
            try:
                result, held = self._answer(batch[0])
            finally:
                self._busy.discard(worker)
                self._call_now.model = None
            if self._origin.is_left():
                return
            # One call, so that this thread has to take the GIL once for each batch.
            lib.tffi_batch_exchange(batch, result, self._error)
            del result, held
            if self._error[0]:
                self._fail(batch[0], take_error(self._error[0]), InternalError.code)
                lib.tffi_batch_exchange(batch, ffi.NULL, self._error)
            self._reader.look_after()

    def _answer(self, batch: CData) -> tuple[CData, object]:
        """
        Call the callable on a batch.

        Returns:
            The ``tffi_result *`` to answer with, NULL where it is answered already, and what must
            live as long as that is used.
        """
        # Only who asks for the requests can ask whether they are cancelled.
        running = self._running = RunningBatch(batch) if batch.requests else None
        try:
            return self._call(batch, running)
        except _WrongResultError as wrong:
            self._fail(batch, wrong.error, InternalError.code)
        except BaseException as error:  # noqa: BLE001 -- SystemExit too is a failure of the call
            if running is not None:
                running.end()
            if batch.is_warm_up:
                # Before the answer, after which the load may return and ask for it.
                self._note_warm_up(error)
            self._fail(batch, error, error_code(error))
        return ffi.NULL, None

    def _call(self, batch: CData, running: RunningBatch | None) -> tuple[CData, object]:
        context: dict[str, Context] = {}
        if running is not None:
            context["context"] = read_context(batch, running, self._name, self._number)
        is_cancelled = functools.partial(_is_cancelled, batch)
        read = self._reader.read
        owners: Owners = []
        try:
            if self._instance.is_decoupled:
                generator = self._instance.generate(read(batch, owners), context, is_cancelled)
                try:
                    self._stream(batch, generator)
                finally:
                    if running is not None:
                        running.end()
                if not self._origin.is_left():
                    lib.tffi_batch_end(batch)
                return ffi.NULL, None
            # In a list, because a traceback that somebody keeps keeps this frame too.
            results = [self._instance.call(read(batch, owners), context, is_cancelled)]
            if self._origin.is_left():
                return ffi.NULL, None
            if running is not None:
                running.end()
            return self._write(batch, results.pop())
        finally:
            self._reader.give_back(owners)

    def _stream(self, batch: CData, generator: Generator[object, None, None]) -> None:
        """
        Send all that the callable yields, until it ends or nobody waits for more.

        Whatever ends it, the generator is closed before the end is told.
        """
        with contextlib.closing(generator):
            while not _is_cancelled(batch):
                results = list(itertools.islice(generator, 1))
                if not results or self._origin.is_left():
                    return
                result, held = self._write(batch, results.pop())
                try:
                    check(lib.tffi_batch_send(batch, result))
                except TritonError as error:
                    raise _WrongResultError(error) from None
                del result, held
        raise CancelledError("the request was cancelled")

    def _write(self, batch: CData, value: object) -> tuple[CData, object]:
        """
        Check a result and write it for C.

        Raises:
            _WrongResultError: It is not what was declared.
        """
        try:
            return self._writer.write(batch, value)
        except BaseException as error:  # noqa: BLE001 -- a result may run code of its own
            raise _WrongResultError(error) from None

    def _fail(self, batch: CData, error: BaseException, code: int) -> None:
        """Answer a batch with an exception, and tell it to those who read logs.

        In a forked child those alone are told.
        """
        message = f"model {self._name!r}: {error_text(error, self._name)}"
        level = logging.DEBUG if code == CancelledError.code else logging.ERROR
        try:
            logger.log(level, "%s", message, exc_info=error)
        finally:
            try:
                forget_arrays(error)
            finally:
                c_message = message.replace("\0", "\\0").encode("utf-8", "backslashreplace")
                if not self._origin.is_left():
                    lib.tffi_batch_fail(batch, code, c_message)


class _WrongResultError(Exception):
    """What a callable gave is wrong, which is another thing than that it raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _is_cancelled(batch: CData) -> bool:
    """Return whether nobody wants an answer to a batch that runs."""
    count: int = batch.request_count
    return bool(lib.tffi_batch_cancelled(batch, ffi.new("bool[]", count)) == count)
