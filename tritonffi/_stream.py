# SPDX-License-Identifier: Apache-2.0
"""Responses of decoupled models, one by one.

A stream has a completion queue of its own, so that no other thread takes its responses while the
reader sleeps. When it is dropped half read, the inference is cancelled; the queue and what still
comes there are then the server's to clear away (`Lifecycle.sweep`).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tritonffi._closing import Closing
from tritonffi._completion import CompletionQueue
from tritonffi._errors import InvalidArgumentError, QueueFullError, TritonError, anew
from tritonffi._inference import Inference
from tritonffi._native import lib
from tritonffi._numbers import shown, whole
from tritonffi._response import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from tritonffi._lifecycle import Lifecycle
    from tritonffi._native import CData
    from tritonffi._terms import Terms

_UINT32_MAX = 2**32 - 1


class Feed(Inference):
    """An inference whose responses are read one by one, while more of them come.

    Attributes:
        outcomes: What is there and not yet read.
        is_abandoned: Whether nobody will read what comes.
        max_pending: How many responses may wait to be read; 0: any number.
    """

    __slots__ = ("_was_error", "is_abandoned", "max_pending", "outcomes")

    is_usual = False

    def __init__(
        self,
        queue: CompletionQueue,
        terms: Terms,
        pins: list[CData],
        *,
        max_pending: int = 0,
    ) -> None:
        super().__init__(queue, terms, pins)
        self._outcomes = self.outcomes = deque[Response | TritonError]()
        self.is_abandoned = False
        self.max_pending = max_pending
        self._was_error = False  # what was read last

    def outcome(self, completion: CData) -> Response | TritonError | None:
        """Read what there is to read of a completion; of an abandoned one only the end counts."""
        if self.is_abandoned:
            return None
        if completion.overflowed:
            return QueueFullError(
                f"model {self.model_name!r}: more than {self.max_pending} responses waited to be "
                "read (max_pending); the request was cancelled"
            )
        return super().outcome(completion)

    def _failed(self) -> bool:
        """Return whether the last thing that came is an error; it may have been read since."""
        try:
            return self.is_abandoned or isinstance(self.outcomes[-1], TritonError)
        except IndexError:
            return self._was_error

    def take(self) -> Response | TritonError | None:
        """Return what is to be read next; None: nothing is there now."""
        try:
            outcome = self.outcomes.popleft()
        except IndexError:
            return None
        self._was_error = isinstance(outcome, TritonError)
        if self.max_pending:
            lib.tffi_inference_consume(self.token)
        return outcome

    def next(self) -> Response | TritonError | None:
        """Wait for what is to be read next; None: there is nothing more."""
        while True:
            wakes = self.queue.wakes[0]
            # In this order: the last outcome stands there before `is_over` is set.
            is_last = self.has_ended()
            outcome = self.take()
            if outcome is not None or is_last:
                return outcome
            if not self.queue.wait(self, self.deadline, wakes):
                self.check_deadline()

    def has_ended(self) -> bool:
        """Return whether no more outcomes will come than are here."""
        return self.is_over or self.is_answered or self.is_abandoned

    def has_news(self) -> bool:
        """Return whether there is something to read, or never will be."""
        return bool(self.outcomes) or self.has_ended()

    def abandon(self) -> None:
        """Cancel it and drop what is unread and what still comes. Harmless at any time."""
        self.is_abandoned = True
        self.outcomes.clear()
        if not self.is_over:
            self.cancel()


class ResponseStream(Closing, Iterator[Response]):
    """The responses of one request, in the order in which the model sent them.

    Iterate over it. An error that the model sends in place of a response is raised at that place,
    and the next step goes on behind it. When the stream is closed or dropped before its end, the
    request is cancelled and unread responses are discarded; a ``with`` block closes it.

    Attributes:
        model_name: The model that was asked.
        request_id: The id given with the request.

    C: ``TRITONSERVER_ServerInferAsync``
    """

    def __init__(self, feed: Feed, release: Callable[[CompletionQueue], None]) -> None:
        """Leave this to `Model.stream`."""
        self.model_name = feed.model_name
        self.request_id = feed.request_id
        self._feed = feed
        self._release = release
        # Two readers would take each other's responses away and then wait for them.
        self._reading = threading.RLock()
        self._finalizer = weakref.finalize(self, _forgotten, feed)
        self._finalizer.atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Response:
        with self._reading:
            outcome = self._feed.next()
            if outcome is None:
                self.close()
                raise StopIteration
        if isinstance(outcome, TritonError):
            raise anew(outcome)  # or this frame would hold what it raises
        return outcome

    def __repr__(self) -> str:
        state = "over" if self._feed.is_over else "in flight"
        return f"<ResponseStream of {self.model_name!r}, {state}>"

    def close(self) -> None:
        """Cancel the request if it is not over, discard what is unread, and return at once.

        The inputs stay Triton's to read until the model has stopped. Closing twice is no error.
        """
        if not self._finalizer.alive:
            return
        self._feed.abandon()
        if self._feed.is_over:
            self._release(self._feed.queue)
        else:
            self._feed.queue.leave()
        self._finalizer.detach()  # not before: a signal handler may raise, and then it is needed

    def cancel(self) -> bool:
        """Ask Triton to give the request up; what comes until then can be read.

        A model that stops for it ends the stream with a CancelledError.

        Returns:
            False: it is over already.

        C: ``TRITONSERVER_InferenceRequestCancel``
        """
        return self._feed.cancel()

    def is_cancelled(self) -> bool:
        """Return whether `cancel` was called while it was in flight.

        C: ``TRITONSERVER_InferenceRequestIsCancelled``
        """
        return self._feed.is_cancelled()


def _forgotten(feed: Feed) -> None:
    """Clear away after a stream that was dropped before its end."""
    feed.abandon()
    feed.queue.leave()


def start(
    submit: Callable[[Callable[..., Feed], CompletionQueue], Feed],
    lifecycle: Lifecycle,
    max_pending: int | None,
) -> ResponseStream:
    """Start a stream.

    Args:
        submit: Submits an inference of the kind given, to the queue given.
        lifecycle: The server's.
        max_pending: As the user gave it.
    """
    make = functools.partial(Feed, max_pending=check_max_pending(max_pending))
    queue = CompletionQueue()
    try:
        lifecycle.adopt(queue)
        return ResponseStream(submit(make, queue), lifecycle.release)
    except BaseException:
        for inference in list(queue.in_flight.values()):  # after Ctrl-C
            inference.cancel()
        queue.leave()
        lifecycle.sweep()
        raise


def check_max_pending(value: int | None) -> int:
    """Refuse what is no bound; None becomes 0, which is none."""
    if value is None:
        return 0
    value = whole(value, "max_pending", "an int or None")
    if not 1 <= value <= _UINT32_MAX:
        raise InvalidArgumentError(
            f"max_pending must be between 1 and {_UINT32_MAX}, not {shown(value)}"
        )
    return value
