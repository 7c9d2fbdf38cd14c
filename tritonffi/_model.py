# SPDX-License-Identifier: Apache-2.0
"""A model of a server: what it is, and inference."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal, overload

from tritonffi import _asyncio, _sequence, _stream
from tritonffi._async_map import AsyncResponseMap, AwaitedMapped
from tritonffi._closing import Unique
from tritonffi._enums import ModelBatchFlag, ModelTxnPropertyFlag
from tritonffi._errors import InvalidArgumentError, NotFoundError
from tritonffi._functions import check_own_call
from tritonffi._inference import Inference, finish
from tritonffi._map import check_map, start_map
from tritonffi._native import lib
from tritonffi._prepared import PreparedCall, PreparedStarter
from tritonffi._reader import ModelReader
from tritonffi._starter import Starter
from tritonffi._statistics import read_statistics

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable, Mapping

    from typing_extensions import Unpack

    from tritonffi._asyncio import AsyncResponseStream
    from tritonffi._call import JSON
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._map import ResponseMap
    from tritonffi._request import Inputs, Request, RequestKeywords
    from tritonffi._response import Response
    from tritonffi._sequence import ModelSequence
    from tritonffi._server import Server
    from tritonffi._spec import TensorSpec
    from tritonffi._statistics import ModelStatistics
    from tritonffi._stream import ResponseStream

_LATEST = -1


class Model(Unique):
    """A model of a running server, by name and version. `Server.model` makes it.

    All of the inference methods take the same request: the inputs (a mapping of input name to
    array, or a `Request`), and the keywords that `Request` has as attributes.

    Methods may be called from any thread. The object holds no model in Triton: it may outlive a
    reload, an unload and the server, whose methods then say so.

    Attributes:
        server: The server.
        name: The model's name.
        version: -1 is the latest, whichever that is when a request is made.
    """

    def __init__(self, server: Server, lifecycle: Lifecycle, name: str, version: int) -> None:
        """Leave this to `Server.model`."""
        self.server = server
        self.name = name
        self.version = version
        self._lifecycle = lifecycle
        self._reader = ModelReader(server, lifecycle, name, version)
        self._starter = Starter(lifecycle, name, version, self._reader.spec)

    def __repr__(self) -> str:
        version = "latest" if self.version == _LATEST else self.version
        return f"<Model {self.name!r}, version {version}>"

    def metadata(self) -> dict[str, JSON]:
        """Return the model's name, versions, platform, inputs and outputs, as Triton says them.

        `inputs` and `outputs` have the latter with types.

        C: ``TRITONSERVER_ServerModelMetadata``
        """
        return self._reader.metadata()

    def config(self) -> dict[str, JSON]:
        """Return the model's whole configuration, as Triton completed it.

        C: ``TRITONSERVER_ServerModelConfig``
        """
        return self._reader.config()

    def inputs(self) -> dict[str, TensorSpec]:
        """Return what the model takes: the data type and shape of each input, by name.

        C: ``TRITONSERVER_ServerModelMetadata``, ``TRITONSERVER_ServerModelConfig``
        """
        return dict(self._starter.refresh().inputs)

    def outputs(self) -> dict[str, TensorSpec]:
        """Return what the model gives: the data type and shape of each output, by name.

        C: ``TRITONSERVER_ServerModelMetadata``
        """
        return dict(self._starter.refresh().outputs)

    def statistics(self) -> ModelStatistics:
        """Return Triton's counts of this version of the model: requests, executions, times.

        Raises:
            NotFoundError: The model is not loaded.
            InvalidArgumentError: Several repositories have a model of that name
                (``model_namespacing``).

        C: ``TRITONSERVER_ServerModelStatistics``
        """
        try:
            reply = self._reader.json(lib.TRITONSERVER_ServerModelStatistics)
        except InvalidArgumentError as error:  # as which this function alone knows it
            self._reader.check_name()
            raise NotFoundError(str(error)) from None
        return read_statistics(reply).models[-1]

    def is_ready(self) -> bool:
        """Return whether the model takes requests; False also where there is no such model.

        C: ``TRITONSERVER_ServerModelIsReady``
        """
        return self._reader.is_ready()

    def batch_properties(self) -> ModelBatchFlag:
        """Return ``FIRST_DIM`` where the first axis of the inputs is a batch, else ``UNKNOWN``.

        C: ``TRITONSERVER_ServerModelBatchProperties``
        """
        return ModelBatchFlag(self._reader.flags(lib.TRITONSERVER_ServerModelBatchProperties))

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Return ``DECOUPLED`` where a request has any number of responses, else ``ONE_TO_ONE``.

        C: ``TRITONSERVER_ServerModelTransactionProperties``
        """
        return ModelTxnPropertyFlag(
            self._reader.flags(lib.TRITONSERVER_ServerModelTransactionProperties)
        )

    def infer(self, inputs: Inputs | Request, **keywords: Unpack[RequestKeywords]) -> Response:
        """Run one inference and wait for it.

        Args:
            inputs: Arrays by input name, or a `Request`.
            keywords: See `Request`.

        Returns:
            The outputs by name; each array owns its memory.

        Raises:
            InvalidArgumentError: The inputs do not fit the model; nothing was submitted.
            TypeError: An input is nothing that an array can be made of.
            TritonError: Triton refused the request, or the model failed.
            TimeoutError: ``timeout`` is up; the request was cancelled.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        check_own_call(self._lifecycle.functions, self.name)
        return finish(self.submit(inputs, **keywords))

    def submit(self, inputs: Inputs | Request, **keywords: Unpack[RequestKeywords]) -> Inference:
        """Start one inference and return at once.

        The inputs' memory is Triton's to read until the inference is over: do not write to the
        arrays before.

        Args:
            inputs: Arrays by input name, or a `Request`.
            keywords: See `Request`.

        Returns:
            What to ask for the result.

        Raises:
            InvalidArgumentError: The inputs do not fit the model; nothing was submitted.
            TypeError: An input is nothing that an array can be made of.
            TritonError: Triton refused the request.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        return self._starter.start(Inference, self._lifecycle.queue, inputs, keywords)

    def prepare(
        self, inputs: Mapping[str, object], **keywords: Unpack[RequestKeywords]
    ) -> PreparedCall:
        """Check a request once, for many that will differ from it in nothing but their data.

        Args:
            inputs: Arrays by input name; later ones have their dtypes and shapes.
            keywords: What is said with each of them; see `Request`. Not ``out`` and ``trace``,
                which serve one inference at a time.

        Returns:
            What to call with other arrays.

        Raises:
            InvalidArgumentError: The inputs do not fit the model, or are no arrays in CPU memory
                whose elements have a fixed size.

        Example::

            score = model.prepare({"image": first}, outputs=["score"])
            for image in images:
                print(score.infer({"image": image})["score"])
        """
        return PreparedCall(
            PreparedStarter(
                self._lifecycle,
                self.name,
                self.version,
                self._reader.spec,
                inputs=inputs,
                keywords=keywords,
            ),
            self._lifecycle,
            self.name,
        )

    def stream(
        self,
        inputs: Inputs | Request,
        *,
        max_pending: int | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> ResponseStream:
        """Start one inference and return its responses one by one, as they come.

        For decoupled models, which answer a request with any number of responses: with none, the
        stream is empty. Other models answer with one.

        Triton cannot be made to wait for a slow reader. So either unread responses pile up in
        memory, or ``max_pending`` bounds them: when one more comes, the request is cancelled, and
        in the place of that response a QueueFullError is raised; later ones are dropped.

        Args:
            inputs: Arrays by input name, or a `Request`.
            max_pending: How many responses may wait to be read; None: any number.
            keywords: See `Request`. When ``timeout`` is up before the end, waiting for a response
                raises TimeoutError and the request is cancelled.

        Raises:
            InvalidArgumentError: The inputs do not fit the model; nothing was submitted.
            TypeError: An input is nothing that an array can be made of.
            TritonError: Triton refused the request.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        return _stream.start(
            lambda make, queue: self._starter.start(make, queue, inputs, keywords),
            self._lifecycle,
            max_pending,
        )

    async def async_infer(
        self, inputs: Inputs | Request, **keywords: Unpack[RequestKeywords]
    ) -> Response:
        """Run one inference and await it, in any event loop.

        When the task is cancelled (also by ``asyncio.wait_for``), so is the request; its inputs
        stay Triton's to read until the model has stopped.

        Args:
            inputs: Arrays by input name, or a `Request`.
            keywords: See `Request`.

        Returns:
            The outputs by name; each array owns its memory.

        Raises:
            InvalidArgumentError: The inputs do not fit the model; nothing was submitted.
            TypeError: An input is nothing that an array can be made of.
            TritonError: Triton refused the request, or the model failed.
            TimeoutError: ``timeout`` is up; the request was cancelled.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        queue = _asyncio.queue_here(self._lifecycle)
        inference = self._starter.start(_asyncio.AwaitedInference, queue, inputs, keywords)
        return await inference.response()

    def async_stream(
        self,
        inputs: Inputs | Request,
        *,
        max_pending: int | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> AsyncResponseStream:
        """Start one inference in the running event loop, and return its responses as they come.

        `stream` says more; arguments and errors are the same.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        return _asyncio.stream(
            lambda make, queue: self._starter.start(make, queue, inputs, keywords),
            self._lifecycle,
            max_pending,
        )

    @overload
    def map(
        self,
        items: Iterable[Inputs | Request],
        *,
        in_flight: int = ...,
        ordered: bool = ...,
        return_errors: Literal[False] = ...,
        **keywords: Unpack[RequestKeywords],
    ) -> ResponseMap[Response]: ...

    @overload
    def map(
        self,
        items: Iterable[Inputs | Request],
        *,
        in_flight: int = ...,
        ordered: bool = ...,
        return_errors: bool,
        **keywords: Unpack[RequestKeywords],
    ) -> ResponseMap[Response | Exception]: ...

    def map(
        self,
        items: Iterable[Inputs | Request],
        *,
        in_flight: int = 32,
        ordered: bool = True,
        return_errors: bool = False,
        **keywords: Unpack[RequestKeywords],
    ) -> ResponseMap[Response] | ResponseMap[Response | Exception]:
        """Infer for each item of an iterable, several at a time.

        Items are read when there is room for one more in flight, and not before the first response
        is asked for; so they may be without end.

        Args:
            items: For each inference the arrays by input name, or a `Request`.
            in_flight: How many items may be read whose responses have not been handed out.
            ordered: Whether responses come in the order of the items; or else as they complete.
            return_errors: Whether what goes wrong with an item is handed out in the place of its
                response; or else it is raised there, and the next step goes on behind it.
            keywords: For all of them; see `Request`. ``out`` belongs into a `Request` of each item,
                or all responses would share the memory.

        An item's arrays are Triton's to read until its response is there: a generator that fills
        the same array again and again must give copies of it.

        Raises:
            InvalidArgumentError: ``out`` is among the keywords.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        check_own_call(self._lifecycle.functions, self.name)
        return start_map(
            self._starter,
            self._lifecycle,
            items,
            in_flight,
            keywords,
            ordered=ordered,
            return_errors=return_errors,
            what=f"model {self.name!r}",
        )

    @overload
    def async_map(
        self,
        items: Iterable[Inputs | Request] | AsyncIterable[Inputs | Request],
        *,
        in_flight: int = ...,
        ordered: bool = ...,
        return_errors: Literal[False] = ...,
        **keywords: Unpack[RequestKeywords],
    ) -> AsyncResponseMap[Response]: ...

    @overload
    def async_map(
        self,
        items: Iterable[Inputs | Request] | AsyncIterable[Inputs | Request],
        *,
        in_flight: int = ...,
        ordered: bool = ...,
        return_errors: bool,
        **keywords: Unpack[RequestKeywords],
    ) -> AsyncResponseMap[Response | Exception]: ...

    def async_map(
        self,
        items: Iterable[Inputs | Request] | AsyncIterable[Inputs | Request],
        *,
        in_flight: int = 32,
        ordered: bool = True,
        return_errors: bool = False,
        **keywords: Unpack[RequestKeywords],
    ) -> AsyncResponseMap[Response] | AsyncResponseMap[Response | Exception]:
        """Infer in the running event loop for each item of an iterable, several at a time.

        `map` says more. The iterable may be an asynchronous one; responses are handed out while the
        next item of it is awaited.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        check_map(items, keywords, f"model {self.name!r}")
        return AsyncResponseMap(
            lambda items, errors, queue, results: self._starter.start_each(
                functools.partial(AwaitedMapped, results=results), queue, items, keywords, errors
            ),
            items,
            in_flight,
            self._lifecycle,
            ordered=ordered,
            return_errors=return_errors,
        )

    def sequence(
        self,
        id: int | str | None = None,  # noqa: A002 (Triton's word)
        *,
        end_inputs: Inputs | Request | None = None,
    ) -> ModelSequence:
        """Make a sequence of requests, for a model that remembers what came before.

        Example::

            with model.sequence() as sequence:
                sequence.infer({"x": first})
                sequence.infer({"x": last}, sequence_end=True)

        Args:
            id: Its correlation id: a number of 64 bits, or a text of at most 128 bytes; not 0, and
                not empty. None: a fresh one, of the type that the model wants.
            end_inputs: Inputs of a request, or a `Request`, that is sent with ``sequence_end`` at
                the end of the ``with`` block if none has said so before.

        Raises:
            TypeError: The id is neither a number nor a text.
            InvalidArgumentError: The model's input for the id cannot hold it, or ``end_inputs`` is
                of another sequence, or starts one.

        C: ``TRITONSERVER_InferenceRequestSetCorrelationId``,
        ``TRITONSERVER_InferenceRequestSetCorrelationIdString``,
        ``TRITONSERVER_InferenceRequestSetFlags``
        """
        return _sequence.start(self._starter, self._lifecycle, id, end_inputs)
