# SPDX-License-Identifier: Apache-2.0
"""How a model's inferences are started: one by one, or several in one call of C.

A `Starter` is what a handle on a model knows for this: the model's inputs and outputs, as fresh as
the server's last load, and the templates of requests made so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from tritonffi._completion import Inference
from tritonffi._errors import InvalidArgumentError
from tritonffi._functions import check_own_call
from tritonffi._input import Raw
from tritonffi._request import Request, Template, request_of, submit_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritonffi._completion import CompletionQueue
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._request import Inputs, RequestKeywords
    from tritonffi._spec import ModelSpec

AnyInference = TypeVar("AnyInference", bound=Inference)


class Starter:
    """Starts inferences of a model.

    Args:
        lifecycle: The server's.
        name: The model's name.
        version: Its version, or -1.
        read: Reads what the model takes and gives.
    """

    def __init__(
        self, lifecycle: Lifecycle, name: str, version: int, read: Callable[[], ModelSpec]
    ) -> None:
        self._lifecycle = lifecycle
        self._name = name
        self._version = version
        self._read = read
        self._spec: ModelSpec | None = None
        self._epoch = -1
        self._templates: dict[tuple[str, ...], list[Template]] = {}

    def spec(self) -> ModelSpec:
        """Return what the model takes and gives, read anew after each load or unload."""
        spec = self._spec
        if spec is None or self._epoch != self._lifecycle.epoch:
            spec = self.refresh()
        return spec

    def start(
        self,
        make: Callable[[CompletionQueue, str, str, float | None], AnyInference],
        queue: CompletionQueue,
        inputs: Inputs | Request,
        keywords: RequestKeywords,
    ) -> AnyInference:
        """Submit an inference of any kind, whose completions go to any queue of the server's.

        Args:
            make: Makes the inference of queue, model name, request id and timeout.
            queue: Of the server or, before this, added to its further ones.
            inputs: As the user gave them.
            keywords: See `Request`.
        """
        read, request = self._read_item(inputs, keywords)
        if make is not Inference:  # those are always waited for
            check_own_call(self._lifecycle.functions, self._name)
        self._take_what_came()
        spec = self.spec()
        try:
            return self._submit(make, queue, spec, read, request)
        except InvalidArgumentError:
            # The model may have been reloaded behind our back (control mode POLL, another handle
            # on the repository): only what fails against fresh metadata is the caller's fault.
            fresh = self.refresh()
            if fresh == spec:
                raise
            return self._submit(make, queue, fresh, read, request)

    def start_each(
        self,
        make: Callable[[CompletionQueue, str, str, float | None], AnyInference],
        queue: CompletionQueue,
        items: list[Inputs | Request],
        keywords: RequestKeywords,
    ) -> list[AnyInference | Exception]:
        """Do as `start` for several items, submitted in one call of C.

        Returns:
            For each item the inference, or what was raised instead.
        """
        outcomes: list[AnyInference | None] = [None] * len(items)
        if len(items) > 1:
            self._take_what_came()
            described: dict[int, tuple[Template, AnyInference]] = {}
            try:
                for i, item in enumerate(items):
                    pair = self._try_describe(make, queue, item, keywords)
                    if pair is not None:
                        described[i] = pair
            except BaseException:
                for _, inference in described.values():
                    inference.leave()
                raise
            submit_each(self._lifecycle, queue, list(described.values()))
            for i, (template, inference) in described.items():
                outcomes[i] = inference
                self._templates.setdefault(template.names, []).append(template)
        # What failed is tried once more by itself: `start` finds the reason, and fresh metadata.
        return [
            self._try(make, queue, item, keywords)
            if outcome is None or outcome.token == 0
            else outcome
            for item, outcome in zip(items, outcomes, strict=True)
        ]

    def _try_describe(
        self,
        make: Callable[[CompletionQueue, str, str, float | None], AnyInference],
        queue: CompletionQueue,
        item: Inputs | Request,
        keywords: RequestKeywords,
    ) -> tuple[Template, AnyInference] | None:
        try:
            inputs, request = self._read_item(item, keywords)
            if request is not None and request.trace is not None:
                return None  # a trace cannot be used twice, so there must be no second try
            return self._describe(make, queue, self.spec(), inputs, request)
        except Exception:  # noqa: BLE001 (the second try finds it again)
            return None

    def _try(
        self,
        make: Callable[[CompletionQueue, str, str, float | None], AnyInference],
        queue: CompletionQueue,
        item: Inputs | Request,
        keywords: RequestKeywords,
    ) -> AnyInference | Exception:
        try:
            return self.start(make, queue, item, keywords)
        except Exception as error:  # noqa: BLE001 (it is handed out)
            return error

    def _read_item(
        self, item: Inputs | Request, keywords: RequestKeywords
    ) -> tuple[Inputs, Request | None]:
        if isinstance(item, Request):
            if keywords:
                raise TypeError(f"a Request says all: no further {', '.join(keywords)}")
            return item.inputs, item
        if keywords:
            return item, request_of(item, keywords, f"model {self._name!r}")
        return item, None

    def _take_what_came(self) -> None:
        lifecycle = self._lifecycle
        lifecycle.queue.drain()
        if lifecycle.left:
            lifecycle.sweep()

    def _submit(
        self,
        make: Callable[[CompletionQueue, str, str, float | None], AnyInference],
        queue: CompletionQueue,
        spec: ModelSpec,
        inputs: Inputs,
        request: Request | None,
    ) -> AnyInference:
        template, inference = self._describe(make, queue, spec, inputs, request)
        template.submit(self._lifecycle, inference)
        self._templates.setdefault(template.names, []).append(template)
        return inference

    def _describe(
        self,
        make: Callable[[CompletionQueue, str, str, float | None], AnyInference],
        queue: CompletionQueue,
        spec: ModelSpec,
        inputs: Inputs,
        request: Request | None,
    ) -> tuple[Template, AnyInference]:
        """Check a request and write it into a template, which is not to be shared meanwhile."""
        if type(inputs) is not dict:
            inputs = self._mapping(spec, inputs)
        names = tuple(inputs)
        try:
            template = self._templates[names].pop()
        except (KeyError, IndexError):
            template = Template(spec, self._version, names)
        if request is None:
            inference = make(queue, self._name, "", None)
        else:
            inference = make(queue, self._name, request.request_id, request.timeout)
        template.describe(inference, spec, inputs, request)
        return template, inference

    def _mapping(self, spec: ModelSpec, inputs: Inputs) -> Mapping[str, object]:
        if isinstance(inputs, Raw):
            return {spec.only_input(): inputs}
        if isinstance(inputs, Mapping):
            return inputs
        kind = type(inputs).__name__
        raise TypeError(
            f"model {self._name!r}: inputs must be a mapping of names to arrays, not {kind}"
        )

    def refresh(self) -> ModelSpec:
        """Read what the model takes and gives, and forget what was made from it before."""
        epoch = self._lifecycle.epoch
        spec = self._read()
        if spec != self._spec:
            self._templates = {}
            self._spec = spec
        self._epoch = epoch
        return self._spec
