# SPDX-License-Identifier: Apache-2.0
"""How a model's inferences are started: one by one, or several in one call of C.

A `Starter` is what a handle on a model knows for this: the model's inputs and outputs, as fresh as
the server's last load, and the templates of requests made so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from tritonffi._errors import InvalidArgumentError, TritonError
from tritonffi._functions import check_own_call
from tritonffi._inference import Inference
from tritonffi._input import Raw
from tritonffi._map import no_end
from tritonffi._native import lib
from tritonffi._request import Request, request_of
from tritonffi._template import SequencedTemplate, Template

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from tritonffi._completion import CompletionQueue
    from tritonffi._inference import AnyInference, Make
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._request import Inputs, RequestKeywords
    from tritonffi._spec import ModelSpec

#: Completions that may wait to be taken: to take them one by one costs an eighth of an inference.
_FEW = 16

#: Names in their orders that are remembered.
_ORDERS = 256

#: Where C counts how often a model of any server may have changed.
model_changes = lib.tffi_model_changes()


def _raise_strange(failure: Exception | None) -> None:
    """Raise what came of items of which none failed by itself: a signal handler has raised it.

    But for what Triton, or fresh metadata, may have had to say.
    """
    if failure is not None and not isinstance(failure, TritonError):
        raise no_end(failure, "an item")


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
        self._changes = -1  # as of which the spec is fresh
        # By names in the order in which they came, and in any order.
        self._templates: dict[tuple[str, ...] | frozenset[str], list[Template]] = {}

    def spec(self) -> ModelSpec:
        """Return what the model takes and gives, read anew after each load or unload."""
        spec = self._spec
        if spec is None or self._changes != model_changes[0]:
            spec = self.refresh()
        return spec

    def start(
        self,
        make: Make[AnyInference],
        queue: CompletionQueue,
        inputs: Inputs | Request,
        keywords: RequestKeywords,
    ) -> AnyInference:
        """Submit an inference of any kind, whose completions go to any queue of the server's.

        Args:
            make: Makes the inference.
            queue: Of the server or, before this, added to its further ones.
            inputs: As the user gave them.
            keywords: See `Request`.
        """
        if make is not Inference:  # those are always waited for
            check_own_call(self._lifecycle.functions, self._name)
        lifecycle = self._lifecycle
        if not queue.is_served and (lifecycle.queue.ready[0] > _FEW or lifecycle.left):
            self._take_what_came()
        was_refreshed = False
        template = None
        while True:
            try:
                if keywords or type(inputs) is not dict:
                    arrays, request = self._read_item(inputs, keywords)
                else:
                    arrays, request = inputs, None
                template = self._take(arrays)
                pins = template.alike(arrays)
                if pins is None or request is not None or not template.is_steady:
                    pins = template.describe(arrays, request, pins)
                inference = make(queue, template.terms, pins)
                template.submit(lifecycle, inference)
            except InvalidArgumentError:  # noqa: PERF203 (once more, and not again and again)
                # The model may have been reloaded behind our back (control mode POLL, another
                # handle on the repository): only what fails against fresh metadata is the caller's
                # fault.
                if was_refreshed or self._refresh_for(template):
                    raise
                was_refreshed = True
            else:
                template.home.append(template)
                return inference

    def start_each(
        self,
        make: Make[AnyInference],
        queue: CompletionQueue,
        items: list[Inputs | Request],
        keywords: RequestKeywords,
        errors: deque[Exception],
    ) -> list[AnyInference | None]:
        """Do as `start` for several items; those that are alike are submitted in one call of C.

        Returns:
            For each item the inference; None: what was raised instead is appended to `errors`.
        """
        if not queue.is_served:
            self._take_what_came()
        outcomes: list[AnyInference | None] = []
        burst: list[AnyInference] = []
        try:
            while len(outcomes) < len(items):
                left = items[len(outcomes) :]
                burst = []
                are_started, failure = self._start_alike(make, queue, left, keywords, burst)
                if are_started:
                    outcomes += burst
                    continue
                # What failed is tried once more by itself: `start` finds the reason, and fresh
                # metadata.
                tried: Sequence[AnyInference | None] = burst or [None]
                had = len(errors)
                for item, inference in zip(left, tried, strict=False):
                    is_started = inference is not None and inference.token
                    outcomes.append(
                        inference if is_started else self._try(make, queue, item, keywords, errors)
                    )
                if len(errors) == had:
                    _raise_strange(failure)
        except BaseException:  # of a handler: nobody gets any of them
            for given_up in (*burst, *outcomes):
                if given_up is not None and not given_up.is_over:
                    if given_up.live_token():
                        given_up.cancel()
                    else:
                        given_up.leave()
            raise
        return outcomes

    def _start_alike(
        self,
        make: Make[AnyInference],
        queue: CompletionQueue,
        items: list[Inputs | Request],
        keywords: RequestKeywords,
        burst: list[AnyInference],
    ) -> tuple[bool, Exception | None]:
        """Start the first of some items, and those behind it that are like it.

        Args:
            make: Makes the inferences.
            queue: Gets the completions.
            items: One or more.
            keywords: See `Request`.
            burst: Gets the inferences as they are made.

        Returns:
            Whether all in `burst` are in flight, and what was raised; those are in flight that have
            a token.
        """
        if len(items) == 1 or type(items[0]) is not dict or "trace" in keywords:
            return False, None
        try:
            first, request = self._read_item(items[0], keywords)
            template = self._take(first)
            pins = template.describe(first, request, template.alike(first))
            terms = template.terms
            burst.append(make(queue, terms, pins))
            for item in islice(items, 1, None):
                others = template.alike(item)
                if others is None:
                    break
                burst.append(make(queue, terms, others))
            are_started = template.submit_each(self._lifecycle, burst)
            template.home.append(template)
        except Exception as error:  # noqa: BLE001 (it comes again, or it does not)
            for inference in burst:
                if not inference.token:
                    inference.leave()
            return False, error
        return are_started, None

    def _try(
        self,
        make: Make[AnyInference],
        queue: CompletionQueue,
        item: Inputs | Request,
        keywords: RequestKeywords,
        errors: deque[Exception],
    ) -> AnyInference | None:
        try:
            return self.start(make, queue, item, keywords)
        except Exception as error:  # noqa: BLE001 (it is handed out)
            errors.append(no_end(error, "an item"))
            return None

    def _read_item(
        self, item: Inputs | Request, keywords: RequestKeywords
    ) -> tuple[Mapping[str, object], Request | None]:
        """Take apart what the user gave for one inference."""
        if isinstance(item, Request):
            if keywords:
                raise TypeError(f"a Request says all: no further {', '.join(keywords)}")
            return self._mapping(item.inputs), item
        inputs = self._mapping(item)
        if keywords:
            return inputs, request_of(inputs, keywords, f"model {self._name!r}")
        return inputs, None

    def _mapping(self, inputs: Inputs) -> Mapping[str, object]:
        if isinstance(inputs, Mapping):
            return inputs
        if isinstance(inputs, Raw):
            return {self.spec().only_input(): inputs}
        kind = type(inputs).__name__
        raise TypeError(
            f"model {self._name!r}: inputs must be a mapping of names to arrays, not {kind}"
        )

    def _take_what_came(self) -> None:
        """Take what nobody has asked for yet, before it becomes more than what is in flight."""
        self._lifecycle.queue.drain()
        if self._lifecycle.left:
            self._lifecycle.sweep()

    def _take(self, inputs: Mapping[str, object]) -> Template:
        """Take a template for inputs of these names, which is not to be shared meanwhile."""
        if self._changes != model_changes[0]:
            self.refresh()
        try:
            return self._templates[tuple(inputs)].pop()
        except (KeyError, IndexError):
            return self._take_anew(tuple(inputs))

    def _take_anew(self, names: tuple[str, ...]) -> Template:
        """Take a template that has served for the names in another order, or make one."""
        templates = self._templates
        home = templates.get(frozenset(names), [])
        try:
            template = home.pop()
        except IndexError:
            template = self._make(names, home)
        # Only now: the names are the model's. There are many orders, and many choices of inputs.
        if len(templates) >= _ORDERS:
            templates.clear()
        templates[names] = templates[frozenset(names)] = home
        return template

    def _make(self, names: tuple[str, ...], home: list[Template]) -> Template:
        spec = self.spec()
        kind = Template if spec.sequenced is None else SequencedTemplate
        return kind(spec, self._version, names, home, self._changes)

    def _refresh_for(self, template: Template | None) -> bool:
        """Read what the model takes and gives; return whether a template was made for just that.

        What is not known any more was: another thread has read it anew meanwhile.
        """
        spec = self._spec  # first: it is the template's if that stands in a home afterwards
        homes = list(self._templates.values())
        is_known = template is not None and any(home is template.home for home in homes)
        return self.refresh() == spec and is_known

    def refresh(self) -> ModelSpec:
        """Read what the model takes and gives, and forget what was made from it before."""
        changes = model_changes[0]
        spec = self._read()
        # Also where it is as it was: requests of Triton's that wait are none of the new model's.
        # Both with no call between, so that other threads see both or neither.
        self._spec = spec
        self._templates = {}
        self._changes = changes
        return spec
