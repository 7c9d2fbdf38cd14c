# SPDX-License-Identifier: Apache-2.0
"""
What a callable gets to know about the requests of its batch, beside their inputs.

It is read from what C has copied before the callable runs (csrc/describe.c), so it is plain data
that may be kept. Only `is_cancelled` asks Triton, and only as long as the call lasts.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tritonffi._call import string
from tritonffi._enums import RequestFlag
from tritonffi._errors import InvalidArgumentError, counted
from tritonffi._forks import Origin
from tritonffi._native import ffi, lib
from tritonffi._response import parameter_value

if TYPE_CHECKING:
    from tritonffi._native import CData
    from tritonffi._response import ParameterValue

_US = 1e6


class Context:
    """
    What a callable with a parameter ``context`` gets: the batch that it is called for.

    Attributes:
        model_name: The model's name.
        instance: Which of the model's instances runs, from 0. Each is one thread, and all requests
            of a sequence come to the same one.
        is_warm_up: Whether the call is part of the model's warm-up, and nobody's request.
        requests: The requests, in the order of their rows.
    """

    __slots__ = ("instance", "is_warm_up", "model_name", "requests")

    def __init__(
        self,
        model_name: str,
        instance: int,
        requests: tuple[ContextRequest, ...],
        *,
        is_warm_up: bool = False,
    ) -> None:
        """Leave this to the model; in a test of a callable it may come in handy."""
        self.model_name = model_name
        self.instance = instance
        self.requests = requests
        self.is_warm_up = is_warm_up

    @property
    def request(self) -> ContextRequest:
        """
        The only request: of a model without a batch axis, or loaded with ``batch=False``.

        Raises:
            InvalidArgumentError: There are several in this batch.
        """
        if len(self.requests) != 1:
            raise InvalidArgumentError(
                f"model {self.model_name!r}: the batch has {len(self.requests)} requests: "
                "ask for context.requests, or load the model with batch=False"
            )
        return self.requests[0]

    def is_cancelled(self) -> bool:
        """Return whether every request was cancelled, so that the result would be nobody's."""
        return all(request.is_cancelled() for request in self.requests)

    def __repr__(self) -> str:
        return (
            f"<Context of {self.model_name!r}, instance {self.instance}: "
            f"{counted(len(self.requests), 'request')}>"
        )


class ContextRequest:
    """
    One request of a batch, as it was sent.

    Attributes:
        request_id: The id given with it; empty: none.
        correlation_id: The sequence that it belongs to, an int or a str; 0: none.
        sequence_start: Whether it is the first of its sequence.
        sequence_end: Whether it is the last of its sequence.
        parameters: Its parameters by name: str, int, float or bool.
        queue_timeout: How many seconds it may wait in Triton's queue; None: no limit.
        rows: Its rows in the batch: ``array[request.rows]`` are its own. A request to a model
            without a batch axis is the one row 0.
    """

    __slots__ = (
        "_batch",
        "_index",
        "correlation_id",
        "parameters",
        "queue_timeout",
        "request_id",
        "rows",
        "sequence_end",
        "sequence_start",
    )

    def __init__(
        self,
        rows: slice = slice(0, 1),
        *,
        request_id: str = "",
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: dict[str, ParameterValue] | None = None,
        queue_timeout: float | None = None,
        batch: RunningBatch | None = None,
        index: int = 0,
    ) -> None:
        """Leave this to the model; in a test of a callable it may come in handy."""
        self.rows = rows
        self.request_id = request_id
        self.correlation_id = correlation_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.parameters = {} if parameters is None else parameters
        self.queue_timeout = queue_timeout
        self._batch = batch
        self._index = index

    def is_cancelled(self) -> bool:
        """
        Return whether nobody waits for the answer any more: it was cancelled, or its time is up.

        After the call it stays what it was at the call's end. The callable may then raise
        `CancelledError`, or answer all the same.

        C: ``TRITONBACKEND_RequestIsCancelled``
        """
        return self._batch is not None and self._batch.is_cancelled(self._index)

    def __repr__(self) -> str:
        return f"<ContextRequest {self.request_id!r}, rows {self.rows.start} to {self.rows.stop}>"


class RunningBatch:
    """
    A ``tffi_batch *`` that may be asked for cancellations until its call is over.

    In a forked child nobody asks: a thread that is not there may hold the locks.
    """

    __slots__ = ("_batch", "_cancelled", "_lock", "_origin")

    def __init__(self, batch: CData) -> None:
        self._batch: CData | None = batch
        self._origin = Origin()
        self._lock = threading.RLock()
        self._cancelled = [False] * batch.request_count

    def is_cancelled(self, index: int) -> bool:
        """Return the present state of a request, or the last one."""
        if self._origin.is_left():
            return self._cancelled[index]
        with self._lock:
            if self._batch is not None and not self._cancelled[index]:
                self._cancelled[index] = bool(lib.tffi_batch_is_cancelled(self._batch, index))
            return self._cancelled[index]

    def end(self) -> None:
        """Look for the last time: the batch is about to be answered."""
        if self._origin.is_left():
            return
        with self._lock:
            if self._batch is not None:
                flags = ffi.new("bool[]", len(self._cancelled))
                if lib.tffi_batch_cancelled(self._batch, flags):
                    self._cancelled = [
                        was or bool(now) for was, now in zip(self._cancelled, flags, strict=True)
                    ]
                self._batch = None


def read_context(batch: CData, running: RunningBatch, model_name: str, instance: int) -> Context:
    """
    Make the context of a batch.

    Args:
        batch: A ``tffi_batch *`` whose requests are described.
        running: The same batch.
        model_name: The model's name.
        instance: Which worker runs.
    """
    requests = []
    row = 0
    for index in range(batch.request_count):
        described = batch.requests[index]
        rows = slice(row, row + batch.rows[index])
        row = rows.stop
        flags = described.flags
        requests.append(
            ContextRequest(
                rows,
                request_id=string(described.id),
                correlation_id=string(described.correlation_text)
                if described.correlation_text != ffi.NULL
                else int(described.correlation_id),
                sequence_start=bool(flags & RequestFlag.SEQUENCE_START),
                sequence_end=bool(flags & RequestFlag.SEQUENCE_END),
                parameters={
                    string(described.parameters[i].name): parameter_value(described.parameters[i])
                    for i in range(described.parameter_count)
                },
                queue_timeout=described.timeout_us / _US if described.timeout_us else None,
                batch=running,
                index=index,
            )
        )
    return Context(model_name, instance, tuple(requests), is_warm_up=bool(batch.is_warm_up))
