# SPDX-License-Identifier: Apache-2.0
"""Inference in event loops: one completion queue and one eventfd for each loop, no thread.

The loop watches the eventfd; one wake-up takes all completions that are there, delivers them to
their inferences and sets the futures for which tasks wait. A server holds the queue of a loop until
the loop is closed and what it left in flight is over, or until the server itself is closed.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from tritonffi._closing import Unique
from tritonffi._completion import CompletionQueue, Inference
from tritonffi._errors import ClosedError, TritonError
from tritonffi._native import lib
from tritonffi._response import Response
from tritonffi._stream import Feed, check_max_pending

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from tritonffi._lifecycle import Lifecycle
    from tritonffi._native import CData


class LoopQueue(CompletionQueue):
    """The queue of a server for one event loop."""

    __slots__ = ("_descriptor", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = weakref.ref(loop, self._loop_is_gone)
        self._descriptor: int = lib.tffi_queue_fd(self.native)
        if self._descriptor < 0:
            super().close()
            raise OSError("no file descriptor for the completions of an event loop")
        loop.add_reader(self._descriptor, self.drain)

    def is_left(self) -> bool:
        """Return whether the loop is closed."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def give_up(self) -> None:
        """Make everyone who waits here, now or later, raise ClosedError."""
        super().give_up()
        for inference in list(self.in_flight.values()):
            inference.wake()

    def close(self) -> None:
        """Have the loop forget the descriptor, then let go of the C queue, which closes it."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            super().close()
        elif _is_running(loop):
            self._part(loop)
        else:
            # Only the loop's own thread may change what it watches.
            _parting.add(self)
            try:
                loop.call_soon_threadsafe(self._part, loop)
            except RuntimeError:  # closed meanwhile
                _parting.discard(self)
                super().close()

    def _part(self, loop: asyncio.AbstractEventLoop) -> None:
        _parting.discard(self)
        loop.remove_reader(self._descriptor)
        super().close()

    def _loop_is_gone(self, _: object) -> None:
        """Close what was left for a loop that was closed before it came to `_part`."""
        if self in _parting:
            _parting.discard(self)
            super().close()


# Closed queues whose loop still has to take notice.
_parting: set[LoopQueue] = set()


class Awaited(Inference):
    """An inference for which tasks of one event loop wait; what the kinds of them share."""

    __slots__ = ()

    _waiters: list[asyncio.Future[None]]

    def deliver(self, completion: CData) -> None:
        """Take a completion, and wake the waiters."""
        try:
            super().deliver(completion)
        finally:
            if self._waiters:
                self.wake()

    def wake(self) -> None:
        """Wake all waiters, from whichever thread."""
        while self._waiters:
            resolve(self._waiters.pop())

    def orphan(self) -> None:
        """Be given up. Only this has kept the waiting tasks of a closed loop alive."""
        self.cancel()
        self._waiters.clear()

    async def until(self, is_ready: Callable[[], bool]) -> None:
        """Wait until something is the case that completions bring about.

        Raises:
            TimeoutError: The request's own ``timeout`` is up; it has been cancelled.
            ClosedError: The server was closed and gave up waiting for the model.
        """
        import asyncio  # noqa: PLC0415  only who awaits pays for its import: a third of ours

        loop = asyncio.get_running_loop()
        while not is_ready():
            if self.queue.is_given_up:
                raise ClosedError(f"model {self.model_name!r}: {self.queue.reason}")
            waiter = loop.create_future()
            self._waiters.append(waiter)
            timer = None
            if self.deadline is not None:
                left = max(0.0, self.deadline - time.monotonic())
                timer = loop.call_later(left, set_future, waiter)
            try:
                # Once more: another thread may have delivered before it could see the waiter.
                if not is_ready() and not self.queue.is_given_up:
                    await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            if not is_ready():
                self.check_deadline()


class AwaitedInference(Awaited):
    """An inference whose one response is awaited."""

    __slots__ = ("_waiters",)

    def __init__(
        self,
        queue: CompletionQueue,
        model_name: str,
        request_id: str,
        timeout: float | None,
        pins: list[CData],
    ) -> None:
        self._waiters = []
        super().__init__(queue, model_name, request_id, timeout, pins)


class AwaitedFeed(Awaited, Feed):
    """An inference whose responses are read one by one in an event loop."""

    __slots__ = ("_waiters",)

    def __init__(
        self,
        queue: CompletionQueue,
        model_name: str,
        request_id: str,
        timeout: float | None,
        pins: list[CData],
        *,
        max_pending: int = 0,
    ) -> None:
        self._waiters = []
        Feed.__init__(self, queue, model_name, request_id, timeout, pins, max_pending=max_pending)


def call_in(
    loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object
) -> None:
    """Make a call in an event loop, from whichever thread; none where the loop is closed."""
    if _is_running(loop):
        call(*arguments)
    else:
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(call, *arguments)


def resolve(waiter: asyncio.Future[None]) -> None:
    """Wake who waits for a future, from whichever thread."""
    call_in(waiter.get_loop(), set_future, waiter)


def set_future(waiter: asyncio.Future[None]) -> None:
    """Set a future unless that was done already."""
    if not waiter.done():
        waiter.set_result(None)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    import asyncio  # noqa: PLC0415  as above

    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def queue_here(lifecycle: Lifecycle) -> LoopQueue:
    """Return the server's queue for the running loop; it is made at the first call."""
    import asyncio  # noqa: PLC0415  as above

    loop = asyncio.get_running_loop()
    queue = lifecycle.loops.get(loop)
    if queue is None:
        lifecycle.sweep()
        queue = LoopQueue(loop)
        lifecycle.adopt(queue)
        lifecycle.left[queue] = None  # whether the loop is closed is seen only by looking
        lifecycle.loops[loop] = queue
    return queue


async def infer(
    submit: Callable[[Callable[..., AwaitedInference], CompletionQueue], AwaitedInference],
    lifecycle: Lifecycle,
) -> Response:
    """Submit an inference and wait for it; a task that is cancelled cancels it."""
    inference = submit(AwaitedInference, queue_here(lifecycle))
    try:
        await inference.until(inference.is_done)
    except BaseException:
        inference.cancel()
        raise
    return inference.result()


class AsyncResponseStream(Unique, AsyncIterator[Response]):
    """The responses of one request, in the order in which the model sent them, in an event loop.

    Iterate over it with ``async for``. An error that the model sends in place of a response is
    raised at that place, and the next step goes on behind it. When the stream is closed or dropped
    before its end, the request is cancelled and unread responses are discarded; an ``async with``
    block closes it. When a task is cancelled that waits for a response, that is as if it had called
    `cancel`.

    Attributes:
        model_name: The model that was asked.
        request_id: The id given with the request.

    C: ``TRITONSERVER_ServerInferAsync``
    """

    def __init__(self, feed: AwaitedFeed) -> None:
        """Leave this to `Model.async_stream`."""
        self.model_name = feed.model_name
        self.request_id = feed.request_id
        self._feed = feed
        self._finalizer = weakref.finalize(self, feed.abandon)
        self._finalizer.atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Response:
        feed = self._feed
        outcome = feed.take()
        while outcome is None and not feed.has_ended():
            try:
                await feed.until(feed.has_news)
            except BaseException:
                feed.cancel()  # and no more: whoever goes on reading must not take this for the end
                raise
            outcome = feed.take()
        if outcome is None:
            self._close()
            raise StopAsyncIteration
        if isinstance(outcome, TritonError):
            raise outcome
        return outcome

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def __repr__(self) -> str:
        state = "over" if self._feed.is_over else "in flight"
        return f"<AsyncResponseStream of {self.model_name!r}, {state}>"

    async def aclose(self) -> None:
        """Cancel the request if it is not over, discard what is unread, and return at once.

        The inputs stay Triton's to read until the model has stopped. Closing twice is no error.
        """
        self._close()

    def _close(self) -> None:
        if self._finalizer.detach() is not None:
            self._feed.abandon()
            self._feed.wake()

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


def stream(
    submit: Callable[[Callable[..., AwaitedFeed], CompletionQueue], AwaitedFeed],
    lifecycle: Lifecycle,
    max_pending: int | None,
) -> AsyncResponseStream:
    """Start a stream in the running loop."""
    make = functools.partial(AwaitedFeed, max_pending=check_max_pending(max_pending))
    return AsyncResponseStream(submit(make, queue_here(lifecycle)))
