# SPDX-License-Identifier: Apache-2.0
"""Prepared calls: inferences that differ in nothing but the data of their inputs.

Names, dtypes, shapes and keywords are checked when the call is prepared. What is left for each
inference is to see that its arrays are like those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from tritonffi import _asyncio
from tritonffi._closing import Unique
from tritonffi._errors import InvalidArgumentError
from tritonffi._functions import check_own_call
from tritonffi._inference import Inference, finish
from tritonffi._map import start_map
from tritonffi._request import Request, request_of
from tritonffi._starter import Starter
from tritonffi._template import Template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tritonffi._lifecycle import Lifecycle
    from tritonffi._map import ResponseMap
    from tritonffi._native import CData
    from tritonffi._request import Inputs, RequestKeywords
    from tritonffi._response import Response
    from tritonffi._spec import ModelSpec

_NO_KEYWORDS: RequestKeywords = {}


class _Prepared(Template):
    """The C structs of requests that were checked, and may differ in nothing but the arrays."""

    __slots__ = ()

    def describe(
        self,
        inputs: Mapping[str, object],
        request: Request | None = None,
        pins: list[CData] | None = None,
    ) -> list[CData]:
        """Describe the one to be checked; what is not like that later is refused."""
        if request is None and pins is None:
            if not all(place.takes(inputs[place.name]) for place in self.places):
                raise self.unlike(inputs)
            return [place.write(inputs[place.name]) for place in self.places]
        return super().describe(inputs, request, pins)


class PreparedStarter(Starter):
    """Starts inferences that are like an example.

    Args:
        lifecycle: The server's.
        name: The model's name.
        version: Its version, or -1.
        read: Reads what the model takes and gives.
        inputs: The example.
        keywords: What goes with each of them.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        name: str,
        version: int,
        read: Callable[[], ModelSpec],
        *,
        inputs: Mapping[str, object],
        keywords: RequestKeywords,
    ) -> None:
        super().__init__(lifecycle, name, version, read)
        self._what = f"model {name!r}"
        if not isinstance(inputs, Mapping):
            raise TypeError(
                f"{self._what}: inputs must be a mapping of names to arrays, not "
                f"{type(inputs).__name__}"
            )
        for keyword in ("out", "trace"):
            if keywords.get(keyword):
                raise InvalidArgumentError(
                    f"{self._what}: {keyword}= serves one inference at a time, and a prepared call "
                    "many"
                )
        self._request = request_of(inputs, keywords, self._what)
        # Others are made like the first one, for as many threads as call at the same time.
        self._likes: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {}
        template = self._prepare(inputs, [])
        # What else was said is kept as it is now. The arrays are not kept, nor what is the
        # caller's to change.
        self._request = dataclasses.replace(
            self._request,
            inputs={},
            outputs=tuple(self._request.outputs),
            labels=dict(self._request.labels),
            parameters=dict(self._request.parameters),
        )
        for place in template.places:
            if place.alike is None or place.storage is None:
                raise InvalidArgumentError(
                    f"{self._what}, input {place.name!r}: a prepared call takes arrays in CPU "
                    f"memory whose elements have a fixed size, not {place.datatype} like this"
                )
            self._likes[place.name] = place.alike, place.storage

    def _prepare(self, inputs: Mapping[str, object], home: list[Template]) -> Template:
        template = _Prepared(self.spec(), self._version, tuple(inputs), home, self._changes)
        template.prepare(inputs, self._request)
        return template

    def _make(self, names: tuple[str, ...], home: list[Template]) -> Template:
        examples = {name: np.empty(shape, dtype) for name, (shape, dtype) in self._likes.items()}
        template = self._prepare(examples, home)
        if set(names) != set(examples):
            raise template.unlike(dict.fromkeys(names))
        return template

    def _read_item(
        self, item: Inputs | Request, keywords: RequestKeywords
    ) -> tuple[Mapping[str, object], Request | None]:
        if isinstance(item, Mapping) and not keywords:
            return dict(item), None
        kind = type(item).__name__
        raise TypeError(f"{self._what}: a prepared call takes a mapping of arrays, not {kind}")


class PreparedCall(Unique):
    """A request that was checked once, to be made again and again with other data.

    `Model.prepare` makes it. Its methods are those of the model, and take mappings of numpy arrays
    in C order that have the names, dtypes and shapes for which the call was prepared, and no
    keywords. They may be called from any thread. When the model is loaded again the call is checked
    against what the model takes then.

    Attributes:
        model_name: The model.

    C: ``TRITONSERVER_ServerInferAsync``
    """

    def __init__(self, starter: PreparedStarter, lifecycle: Lifecycle, model_name: str) -> None:
        """Leave this to `Model.prepare`."""
        self.model_name = model_name
        self._starter = starter
        self._lifecycle = lifecycle

    def __repr__(self) -> str:
        return f"<PreparedCall of {self.model_name!r}>"

    def infer(self, inputs: Mapping[str, object]) -> Response:
        """Run one inference and wait for it, as `Model.infer` does.

        Args:
            inputs: Arrays by input name.

        Raises:
            InvalidArgumentError: An array is not like the one for which the call was prepared.
            TypeError: An input is no array.
            TritonError: Triton refused the request, or the model failed.
            TimeoutError: ``timeout`` is up; the request was cancelled.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        check_own_call(self._lifecycle.functions, self.model_name)
        return finish(self.submit(inputs))

    def submit(self, inputs: Mapping[str, object]) -> Inference:
        """Start one inference and return at once, as `Model.submit` does.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        return self._starter.start(Inference, self._lifecycle.queue, inputs, _NO_KEYWORDS)

    async def async_infer(self, inputs: Mapping[str, object]) -> Response:
        """Run one inference and await it, as `Model.async_infer` does.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        queue = _asyncio.queue_here(self._lifecycle)
        start = self._starter.start
        return await start(_asyncio.AwaitedInference, queue, inputs, _NO_KEYWORDS).response()

    @overload
    def map(
        self,
        items: Iterable[Mapping[str, object]],
        *,
        in_flight: int = ...,
        ordered: bool = ...,
        return_errors: Literal[False] = ...,
    ) -> ResponseMap[Response]: ...

    @overload
    def map(
        self,
        items: Iterable[Mapping[str, object]],
        *,
        in_flight: int = ...,
        ordered: bool = ...,
        return_errors: bool,
    ) -> ResponseMap[Response | Exception]: ...

    def map(
        self,
        items: Iterable[Mapping[str, object]],
        *,
        in_flight: int = 32,
        ordered: bool = True,
        return_errors: bool = False,
    ) -> ResponseMap[Response] | ResponseMap[Response | Exception]:
        """Infer for each item of an iterable, several at a time, as `Model.map` does.

        C: ``TRITONSERVER_ServerInferAsync``
        """
        check_own_call(self._lifecycle.functions, self.model_name)
        return start_map(
            self._starter,
            self._lifecycle,
            items,
            in_flight,
            _NO_KEYWORDS,
            ordered=ordered,
            return_errors=return_errors,
            what=f"model {self.model_name!r}",
        )
