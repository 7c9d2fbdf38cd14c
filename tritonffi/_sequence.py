# SPDX-License-Identifier: Apache-2.0
"""Sequences: requests that belong together, for models that remember what came before."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tritonffi import _asyncio, _stream
from tritonffi._closing import Unique
from tritonffi._errors import InvalidArgumentError
from tritonffi._functions import check_own_call
from tritonffi._inference import Inference, finish
from tritonffi._input import Raw
from tritonffi._request import Request, request_of

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from tritonffi._asyncio import AsyncResponseStream
    from tritonffi._completion import CompletionQueue
    from tritonffi._inference import AnyInference, Make
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._request import Inputs, RequestKeywords
    from tritonffi._response import Response
    from tritonffi._starter import Starter
    from tritonffi._stream import ResponseStream

# What a fresh id may be, by the data type in which the model wants it; 0 is no sequence at all.
_BITS = {"INT32": 31, "UINT32": 32, "INT64": 63, "UINT64": 64}
_OWN = ("correlation_id", "sequence_start")


class ModelSequence(Unique):
    """Requests with one correlation id, of which the first says that the sequence starts.

    The last one says that it ends: with ``sequence_end=True``. Triton keeps a place for the
    sequence in the model until then, or until it was idle for ``max_sequence_idle_microseconds``
    of the model's config (one second by default). Leaving a ``with`` block sends nothing, unless
    `Model.sequence` was given inputs to end with; a sequence left without its end is warned of.

    The methods are those of `Model`, and take the same but for ``correlation_id`` and
    ``sequence_start``. Triton handles the requests in the order of the calls.

    Attributes:
        model_name: The model.
        id: The correlation id.

    C: ``TRITONSERVER_InferenceRequestSetCorrelationId`` and
    ``TRITONSERVER_InferenceRequestSetFlags`` of each request.
    """

    def __init__(
        self,
        model_name: str,
        starter: Starter,
        lifecycle: Lifecycle,
        correlation_id: int | str,
        end_inputs: Inputs | Request | None,
        *,
        ends_itself: bool,
    ) -> None:
        """Leave this to `Model.sequence`."""
        self.model_name = model_name
        self.id = correlation_id
        self._starter = starter
        self._lifecycle = lifecycle
        self._last = None if end_inputs is None else self._ending(end_inputs)
        self._lock = threading.RLock()
        self._is_submitting = False
        self._has_started = False
        self._has_ended = False
        self._ends_itself = ends_itself

    def __repr__(self) -> str:
        state = "ended" if self._has_ended else "started" if self._has_started else "new"
        return f"<ModelSequence {self.id!r} of {self.model_name!r}, {state}>"

    def infer(self, inputs: Inputs | Request, **keywords: Unpack[RequestKeywords]) -> Response:
        """Run the next inference of the sequence and wait for it, as `Model.infer` does.

        C: ``TRITONSERVER_InferenceRequestSetCorrelationId``,
        ``TRITONSERVER_InferenceRequestSetCorrelationIdString``,
        ``TRITONSERVER_InferenceRequestSetFlags``
        """
        check_own_call(self._lifecycle.functions, self.model_name)
        return finish(self.submit(inputs, **keywords))

    def submit(self, inputs: Inputs | Request, **keywords: Unpack[RequestKeywords]) -> Inference:
        """Start the next inference of the sequence and return at once, as `Model.submit` does.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        return self._start(Inference, self._lifecycle.queue, inputs, keywords)

    def stream(
        self,
        inputs: Inputs | Request,
        *,
        max_pending: int | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> ResponseStream:
        """Start the next inference and return its responses one by one, as `Model.stream` does.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        return _stream.start(
            lambda make, queue: self._start(make, queue, inputs, keywords),
            self._lifecycle,
            max_pending,
        )

    async def async_infer(
        self, inputs: Inputs | Request, **keywords: Unpack[RequestKeywords]
    ) -> Response:
        """Run the next inference and await it, as `Model.async_infer` does.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        queue = _asyncio.queue_here(self._lifecycle)
        inference = self._start(_asyncio.AwaitedInference, queue, inputs, keywords)
        return await inference.response()

    def async_stream(
        self,
        inputs: Inputs | Request,
        *,
        max_pending: int | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> AsyncResponseStream:
        """Start the next inference in the running event loop, as `Model.async_stream` does.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        return _asyncio.stream(
            lambda make, queue: self._start(make, queue, inputs, keywords),
            self._lifecycle,
            max_pending,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._has_started or self._has_ended:
            return
        if self._last is None:
            if error is None and not self._ends_itself:
                warnings.warn(
                    f"model {self.model_name!r}: sequence {self.id!r} was left without its end; "
                    "the model keeps a place for it until it was idle for long: the last request "
                    "should say sequence_end=True",
                    ResourceWarning,
                    stacklevel=2,
                )
            return
        try:
            self.infer(self._last)
        except Exception:
            if error is None:  # or else that one is the news
                raise

    def _ending(self, inputs: Inputs | Request) -> Request:
        """Make the request that ends the sequence; what is wrong with it is said now."""
        if isinstance(inputs, Request):
            self._check_id(inputs)
            if inputs.sequence_start:
                raise InvalidArgumentError(
                    f"model {self.model_name!r}: end_inputs says sequence_start, and is to end "
                    "what has started"
                )
            return dataclasses.replace(inputs, sequence_end=True)
        if not isinstance(inputs, (Mapping, Raw)):
            raise TypeError(
                f"model {self.model_name!r}: end_inputs must be a mapping of names to arrays, or a "
                f"Request, not {type(inputs).__name__}"
            )
        return Request(inputs, sequence_end=True)

    def _check_id(self, request: Request) -> None:
        if request.correlation_id not in (0, "", self.id):
            raise InvalidArgumentError(
                f"model {self.model_name!r}: the request is of sequence "
                f"{request.correlation_id!r}, not {self.id!r}"
            )

    def _start(
        self,
        make: Make[AnyInference],
        queue: CompletionQueue,
        inputs: Inputs | Request,
        keywords: RequestKeywords,
    ) -> AnyInference:
        if isinstance(inputs, Request):
            if keywords:
                raise TypeError(f"a Request says all: no further {', '.join(keywords)}")
            self._check_id(inputs)
            request = inputs
        else:
            own = [name for name in _OWN if name in keywords]
            if own:
                raise TypeError(f"a sequence sets {' and '.join(own)} itself")
            request = request_of(inputs, keywords, f"model {self.model_name!r}")
        # Held until it is submitted: what comes second must not overtake what says "start".
        with self._lock:
            if self._is_submitting:
                raise InvalidArgumentError(
                    f"model {self.model_name!r}: a signal handler or a finalizer cannot go on with "
                    f"sequence {self.id!r} in the midst of a call of it"
                )
            if self._has_ended:
                raise InvalidArgumentError(
                    f"model {self.model_name!r}: sequence {self.id!r} has ended"
                )
            if request.sequence_start and self._has_started:
                raise InvalidArgumentError(
                    f"model {self.model_name!r}: the request says sequence_start, and sequence "
                    f"{self.id!r} has started"
                )
            request = dataclasses.replace(
                request, correlation_id=self.id, sequence_start=not self._has_started
            )
            self._is_submitting = True
            try:
                inference = self._starter.start(make, queue, request, {})
            finally:
                self._is_submitting = False
            self._has_started = True
            self._has_ended = request.sequence_end
            return inference


def start(
    starter: Starter,
    lifecycle: Lifecycle,
    correlation_id: int | str | None,
    end_inputs: Inputs | Request | None,
) -> ModelSequence:
    """Make a sequence, with a fresh id where none is given."""
    spec = starter.refresh()
    wanted = spec.correlation_id_type
    if correlation_id is None:
        import secrets  # noqa: PLC0415  loads OpenSSL, for this alone

        if wanted == "BYTES":
            correlation_id = secrets.token_hex(16)
        else:
            correlation_id = 1 + secrets.randbelow(2 ** _BITS.get(wanted or "", 63) - 1)
    else:
        Request({}, correlation_id=correlation_id)  # refuses what can be none
        if correlation_id in (0, ""):
            raise InvalidArgumentError(
                f"model {spec.name!r}: {correlation_id!r} is the id of no sequence"
            )
        spec.check_correlation_id(correlation_id)
    if end_inputs is not None:
        spec.check_sequence_end()
    return ModelSequence(
        spec.name,
        starter,
        lifecycle,
        correlation_id,
        end_inputs,
        ends_itself=spec.is_iterative or spec.reruns != "",
    )
