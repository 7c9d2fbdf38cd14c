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
from tritonffi._completion import CompletionQueue
from tritonffi._errors import ClosedError, TritonError, UnsupportedError, anew
from tritonffi._inference import Inference
from tritonffi._native import lib
from tritonffi._response import Response
from tritonffi._stream import Feed, check_max_pending

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import ModuleType, TracebackType

    from typing_extensions import Self

    from tritonffi._lifecycle import Lifecycle
    from tritonffi._native import CData
    from tritonffi._terms import Terms


class LoopQueue(CompletionQueue):
    """The queue of a server for one event loop, which takes what comes there.

    Attributes:
        loop: Returns the loop, as long as there is one.
    """

    __slots__ = ("_descriptor", "loop")

    is_served = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = weakref.ref(loop, self._loop_is_gone)
        self._descriptor: int = lib.tffi_queue_fd(self.native)
        if self._descriptor < 0:
            super().close()
            raise OSError("no file descriptor for the completions of an event loop")
        try:
            loop.add_reader(self._descriptor, self.drain)
        except NotImplementedError as error:
            super().close()
            raise UnsupportedError(
                f"event loop {loop!r} has no add_reader, by which it would be told of responses: "
                "use another one, such as asyncio.SelectorEventLoop, or the method without async_ "
                "in its name in a thread"
            ) from error

    def is_left(self) -> bool:
        """Return whether the loop is closed."""
        loop = self.loop()
        return loop is None or loop.is_closed()

    def give_up(self) -> None:
        """Make everyone who waits here, now or later, raise ClosedError."""
        super().give_up()
        for inference in list(self.in_flight.values()):
            inference.wake()
        self._rouse()

    def settle(self, deadline: float) -> bool:
        """Wait until nothing is in flight; False when the deadline passed first."""
        try:
            return super().settle(deadline)
        finally:
            self._rouse()

    def _rouse(self) -> None:
        """Have the loop look at what is to be done.

        Where a signal handler closes the server, the loop may be waiting for events, and futures
        that are set in the handler are none.
        """
        loop = self.loop()
        if loop is not None:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(lambda: None)

    def close(self) -> None:
        """Have the loop forget the descriptor, then let go of the C queue, which closes it."""
        loop = self.loop()
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


class AwaitedInference(Inference):
    """An inference for whose one response a task of the queue's event loop waits."""

    __slots__ = ("_waiter",)

    def __init__(
        self,
        queue: CompletionQueue,
        terms: Terms,
        pins: list[CData],
    ) -> None:
        self._waiter: asyncio.Future[None] | None = None
        super().__init__(queue, terms, pins)

    def leave(self) -> None:
        """Be over, and wake the task.

        It stands in the table until then: who goes on after a signal handler finds it there.
        """
        self.is_over = True
        if self._waiter is not None:
            self.wake()
        Inference.leave(self)  # super() is slow

    def answer(self) -> None:
        """Wake the task, before it is over."""
        self.wake()

    def wake(self) -> None:
        """Wake the task, from whichever thread."""
        waiter = self._waiter
        if waiter is not None:
            resolve(waiter)

    def orphan(self) -> None:
        """Be given up. Only this has kept the waiting task of a closed loop alive."""
        self.cancel()
        self._waiter = None

    async def response(self) -> Response:
        """Wait for the response and return it; a task that is cancelled meanwhile cancels it.

        Raises:
            TritonError: The inference failed; the class says how.
            TimeoutError: The request's own ``timeout`` is up; it has been cancelled.
            ClosedError: The server was closed and gave up waiting for the model.
        """
        try:
            while not self.has_result():
                waiter = self._make_waiter()
                if self.deadline is None:
                    await waiter
                else:
                    await until(waiter, self.deadline)
                    if not self.has_result():
                        self.check_deadline()
        except BaseException:
            self.cancel()
            raise
        return self.result()

    def _make_waiter(self) -> asyncio.Future[None]:
        if self.queue.is_given_up:
            raise ClosedError(f"model {self.model_name!r}: {self.queue.reason}")
        self._waiter = waiter = _get_running_loop()().create_future()
        if self.has_result() or self.queue.is_given_up:  # only just, by another thread
            set_future(waiter)
        return waiter


class AwaitedFeed(Feed):
    """An inference whose responses are read one by one in an event loop."""

    __slots__ = ("_waiters",)

    def __init__(
        self,
        queue: CompletionQueue,
        terms: Terms,
        pins: list[CData],
        *,
        max_pending: int = 0,
    ) -> None:
        self._waiters: list[asyncio.Future[None]] = []
        super().__init__(queue, terms, pins, max_pending=max_pending)

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

    async def news(self) -> None:
        """Wait until there is something to read, or never will be.

        Raises:
            TimeoutError: The request's own ``timeout`` is up; it has been cancelled.
            ClosedError: The server was closed and gave up waiting for the model.
        """
        while not self.has_news():
            if self.queue.is_given_up:
                raise ClosedError(f"model {self.model_name!r}: {self.queue.reason}")
            check_loop(self.queue, f"model {self.model_name!r}")
            waiter = running_loop().create_future()
            self._waiters.append(waiter)
            try:
                # Once more: another thread may have delivered before it could see the waiter.
                if not self.has_news() and not self.queue.is_given_up:
                    await until(waiter, self.deadline)
            finally:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            if not self.has_news():
                self.check_deadline()


@functools.cache
def asyncio_module() -> ModuleType:
    """Import asyncio: a third of our import, and only who awaits pays for it."""
    import asyncio  # noqa: PLC0415

    return asyncio


@functools.cache
def _get_running_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what returns the event loop that runs in this thread, or raises RuntimeError."""
    get: Callable[[], asyncio.AbstractEventLoop] = asyncio_module().get_running_loop
    return get


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs in this thread."""
    return _get_running_loop()()


def check_loop(queue: CompletionQueue, what: str) -> None:
    """Refuse to wait for what only a closed event loop would take."""
    if queue.is_left():
        raise ClosedError(f"{what}: the event loop in which this was begun is closed")


async def until(waiter: asyncio.Future[None], deadline: float | None) -> None:
    """Wait for a future, but not longer than until a deadline; None: without end."""
    timer = None
    if deadline is not None:
        left = max(0.0, deadline - time.monotonic())
        timer = waiter.get_loop().call_later(left, set_future, waiter)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()


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
    loop = waiter.get_loop()
    if _is_running(loop):  # as `call_in` does, but without a call: this is done for each inference
        set_future(waiter)
    else:
        call_in(loop, set_future, waiter)


def set_future(waiter: asyncio.Future[None]) -> None:
    """Set a future unless that was done already; a signal handler may do it at any moment."""
    try:
        waiter.set_result(None)
    except asyncio_module().InvalidStateError:
        pass


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return _get_running_loop()() is loop
    except RuntimeError:
        return False


def queue_here(lifecycle: Lifecycle) -> LoopQueue:
    """Return the server's queue for the running loop; it is made at the first call.

    Raises:
        RuntimeError: No loop runs in this thread.
    """
    try:
        loop = _get_running_loop()()
    except RuntimeError as error:
        raise RuntimeError(
            f"server {lifecycle.name!r}: no running event loop, in which the inference would be "
            "awaited: call this in a coroutine, or the method without async_ in its name"
        ) from error
    queue = lifecycle.loops.get(id(loop))
    if queue is None or queue.loop() is not loop:  # the id is that of one that was closed
        lifecycle.sweep()
        queue = LoopQueue(loop)
        lifecycle.adopt(queue)
        lifecycle.left[queue] = None  # whether the loop is closed is seen only by looking
        for key, other in list(lifecycle.loops.items()):
            if other.is_left():
                lifecycle.loops.pop(key, None)
        lifecycle.loops[id(loop)] = queue
    return queue


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
                await feed.news()
            except BaseException:
                feed.cancel()  # and no more: whoever goes on reading must not take this for the end
                raise
            outcome = feed.take()
        if outcome is None:
            self._close()
            raise StopAsyncIteration
        if isinstance(outcome, TritonError):
            raise anew(outcome)  # or this frame would hold what it raises
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
