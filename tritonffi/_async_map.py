# SPDX-License-Identifier: Apache-2.0
"""Many inferences one after the other in an event loop, some of them in flight at a time."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tritonffi._asyncio import (
    asyncio_module,
    call_in,
    check_loop,
    queue_here,
    resolve,
    running_loop,
    set_future,
    until,
)
from tritonffi._closing import Unique
from tritonffi._errors import ClosedError
from tritonffi._map import Mapped, Results, check_in_flight, no_end, read_together, send

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from typing_extensions import Self

    from tritonffi._asyncio import LoopQueue
    from tritonffi._inference import Inference
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._request import Inputs, Request

T_co = TypeVar("T_co", covariant=True)


class AwaitedResults(Results):
    """Results for which the tasks of one event loop wait."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[asyncio.Future[None]] = []

    def report(self, inference: Mapped) -> None:
        """Put an inference among the finished ones, and wake the waiters."""
        super().report(inference)
        self.wake()

    def wake(self) -> None:
        """Wake all waiters, from whichever thread."""
        while self.waiters:
            resolve(self.waiters.pop())


class AwaitedMapped(Mapped):
    """An inference of a map in an event loop."""

    __slots__ = ()

    _results: AwaitedResults

    def wake(self) -> None:
        """Wake who waits for the map."""
        self._results.wake()

    def orphan(self) -> None:
        """Be given up. Only this has kept the waiting tasks of a closed loop alive."""
        self.cancel()
        self._results.waiters.clear()


class Reading:
    """What a map and the task that reads its asynchronous iterable have in common.

    One task reads all items, each when the map asks for it: what a generator has around its items
    (timeouts, context variables, cancel scopes) belongs to the task in which it goes on.

    Attributes:
        items: That were read, one at most but for what is said in `run`.
        is_left: Whether the map is closed.
    """

    __slots__ = ("_asked", "_wake", "is_left", "items")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._asked: asyncio.Future[None] | None = None
        self.items: deque[Inputs | Request] = deque()
        self.is_left = False

    def ask(self) -> None:
        """Have the next item read, unless one is being read."""
        if self._asked is not None:
            set_future(self._asked)

    async def run(self, source: AsyncIterator[Inputs | Request]) -> None:
        """Read the first item, and another one each time that the map asks."""
        coming: Awaitable[Inputs | Request] = anext(source)
        while True:
            try:
                self.items.append(await coming)
            except StopAsyncIteration:
                return
            is_left = self.is_left
            if is_left:  # and the source has gone on in spite of it: nobody asks any more
                self.items.clear()
                return
            self._asked = running_loop().create_future()
            self._wake()
            try:
                await self._asked
                coming = anext(source)
            except asyncio_module().CancelledError as error:
                # By a timeout around the items, say, which is to see it.
                if self.is_left or not isinstance(source, AsyncGenerator):
                    raise
                coming = source.athrow(error)
            finally:
                self._asked = None


class AsyncResponseMap(Unique, AsyncIterator[T_co]):
    """Responses to the items of an iterable, of which some are in flight at a time.

    Iterate over it with ``async for``, in one task at a time. What goes wrong with one item is
    raised at its place, and the next step goes on behind it; what the iterable itself raises comes
    after everything that it has given, and ends the map. When the map is closed or dropped before
    its end, or the task is cancelled that waits for it, what is in flight is cancelled; an
    ``async with`` block closes it. In the last case it may be read on: what was in flight is a
    CancelledError at its place.
    """

    def __init__(
        self,
        submit: Callable[
            [list[Inputs | Request], deque[Exception], LoopQueue, AwaitedResults],
            Sequence[Mapped | None],
        ],
        items: Iterable[Inputs | Request] | AsyncIterable[Inputs | Request],
        in_flight: int,
        lifecycle: Lifecycle,
        *,
        ordered: bool,
        return_errors: bool,
    ) -> None:
        """Leave this to `Model.async_map`."""
        in_flight = check_in_flight(in_flight)
        self._queue = queue_here(lifecycle)
        self._submit = submit
        self._source: Iterator[Inputs | Request] | None = None
        self._async_source: AsyncIterator[Inputs | Request] | None = None
        if isinstance(items, AsyncIterable):
            self._async_source = aiter(items)
        else:
            self._source = iter(items)
        self._in_flight = in_flight
        self._ordered = ordered
        self._return_errors = return_errors
        self._failure: Exception | None = None
        self._results = AwaitedResults()
        # In order of submission, where that is the order wanted.
        self._row: deque[Inference | None] = deque()
        self._errors: deque[Exception] = deque()  # None in the rows is one of these: see `_map`
        self._pending: list[Inputs | Request] = []  # read, and not submitted yet
        self._reading = Reading(self._results.wake)
        self._readers: list[asyncio.Task[None]] = []  # the one task that does it, when there is one
        self._finalizer = weakref.finalize(
            self, _leave, self._row, self._results, self._reading, self._readers
        )
        self._finalizer.atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        try:
            head = await self._next()
        except asyncio_module().CancelledError:
            # And no more: whoever goes on must not take this for the end.
            for inference in list(self._results.unreported.values()):
                inference.cancel()
            raise
        try:
            if isinstance(head, Exception):
                raise head  # noqa: TRY301 (as the results of others do)
            return head.result()  # type: ignore[return-value]
        except Exception as error:
            if self._return_errors:
                return error  # type: ignore[return-value]
            raise
        finally:
            del head  # or an error and this frame would hold each other

    async def _next(self) -> Inference | Exception:
        while True:
            # As in ResponseMap: as long as the next response is there, items go together.
            if self._room() * 2 >= self._in_flight:
                self._fill()
            head = self._take()
            if head is not None:
                return head
            waiter = running_loop().create_future()
            self._results.waiters.append(waiter)
            try:
                self._fill()
                head = self._take()
                if head is not None:
                    return head
                if self._has_ended() and not self._row and self._results.is_empty():
                    self._end()
                if self._queue.is_given_up:
                    raise ClosedError("the server was closed meanwhile")
                check_loop(self._queue, "map")
                await self._until(waiter)
            finally:
                with suppress(ValueError):
                    self._results.waiters.remove(waiter)

    async def _until(self, waiter: asyncio.Future[None]) -> None:
        """Wait for a wake-up; at most until the ``timeout`` of one of the requests is up."""
        deadline = self._results.deadline()
        await until(waiter, deadline)
        if deadline is not None:
            self._results.expire()

    def _take(self) -> Inference | Exception | None:
        """Return what is to be handed out, if it is there."""
        finished = self._results.finished
        if not self._ordered:
            return self._pop(finished) if finished else None
        finished.clear()
        if not self._row:
            return None
        head = self._row[0]
        if isinstance(head, Mapped) and head.key in self._results.unreported:
            return None
        return self._pop(self._row)

    def _pop(self, row: deque[Inference | None]) -> Inference | Exception:
        head = row.popleft()
        return self._errors.popleft() if head is None else head

    def _fill(self) -> None:
        """Submit items until there are enough in flight, or the next has to be awaited."""
        pending = self._pending
        row = self._row if self._ordered else self._results.finished
        while True:
            if not pending and (room := self._room()) > 0:
                self._read(room)
            if not pending:
                return
            if not send(
                pending, self._send, row, self._errors, queue=self._queue, results=self._results
            ):
                self._leave()

    def _send(self) -> Sequence[Inference | None]:
        entries = self._submit(self._pending, self._errors, self._queue, self._results)
        if self._ordered:
            return entries
        return [entry for entry in entries if entry is None]

    def _read(self, room: int) -> None:
        """Read the next items, unless there are no more or the next one is awaited."""
        if self._source is not None:
            is_end, failure = read_together(self._source, room, self._pending)
            if self._source is None:  # the iterable has closed the map
                self._pending.clear()
            elif is_end:
                self._failure = failure
                self._source = None
        elif self._async_source is not None and not self._queue.is_left():
            self._read_async(self._async_source)

    def _read_async(self, source: AsyncIterator[Inputs | Request]) -> None:
        reading, readers, pending = self._reading, self._readers, self._pending
        if reading.items:
            pending += [reading.items[0]]
            del reading.items[0]  # with no call between: a signal handler could raise there
        elif not readers:
            reader = asyncio_module().ensure_future(reading.run(source))
            readers.append(reader)
            wake = self._results.wake
            reader.add_done_callback(lambda _: wake())
        elif not readers[0].done():
            reading.ask()
        else:
            try:
                readers.pop().result()
            except Exception as error:  # noqa: BLE001 (it is raised at its place)
                self._failure = no_end(error, "the iterable")
            self._async_source = None

    def _room(self) -> int:
        """Return how many more items may be read."""
        if self._has_ended():
            return 0
        if self._ordered:
            return self._in_flight - len(self._row)
        results = self._results
        return self._in_flight - len(results.unreported) - len(results.finished)

    def _has_ended(self) -> bool:
        """Return whether there are no more items to be read."""
        return self._source is None and self._async_source is None

    def _end(self) -> None:
        self._close()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # or it and this frame would hold each other
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel what is in flight. Closing twice is no error.

        It returns at once, but where the next item of an asynchronous iterable is awaited: that is
        cancelled too, and its end is waited for.
        """
        readers = list(self._readers)
        self._close()
        for reader in readers:
            if not reader.done() and reader.get_loop() is running_loop():
                asyncio = asyncio_module()
                if reader is not asyncio.current_task():  # the iterable itself closes the map
                    await asyncio.wait([reader])

    def _close(self) -> None:
        self._source = self._async_source = None
        self._pending.clear()
        self._finalizer()

    def _leave(self) -> None:
        _leave(self._row, self._results, self._reading, self._readers)


def _leave(
    row: deque[Inference | None],
    results: AwaitedResults,
    reading: Reading,
    readers: list[asyncio.Task[None]],
) -> None:
    """Cancel what is in flight of a map that nobody reads any more."""
    reading.is_left = True
    for inference in list(results.unreported.values()):
        inference.cancel()
    results.unreported.clear()
    results.finished.clear()
    row.clear()
    for reader in readers:
        if not reader.done():
            call_in(reader.get_loop(), reader.cancel)
        elif not reader.cancelled():
            reader.exception()  # or the loop would complain at its end that nobody has asked
    readers.clear()
    reading.items.clear()
    results.wake()
