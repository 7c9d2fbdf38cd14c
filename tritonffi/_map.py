# SPDX-License-Identifier: Apache-2.0
"""Many inferences one after the other, some of them in flight at a time.

In order, a map is a row of inferences whose first is waited for. As completed, it has a completion
queue of its own, whose waits give whatever is there; no other thread takes what it sleeps for.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from tritonffi._closing import Closing
from tritonffi._completion import CompletionQueue
from tritonffi._errors import InvalidArgumentError, TritonError, check_keywords
from tritonffi._inference import Inference
from tritonffi._numbers import shown, whole
from tritonffi._request import RequestKeywords

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from tritonffi._lifecycle import Lifecycle
    from tritonffi._native import CData
    from tritonffi._request import Inputs, Request
    from tritonffi._response import Response
    from tritonffi._starter import Starter
    from tritonffi._terms import Terms

# Items that come within this time are submitted together.
_TOGETHER_S = 1e-4

T_co = TypeVar("T_co", covariant=True)


class Results:
    """Inferences of one map in the order in which they become over.

    Attributes:
        finished: Those to be handed out; None: an error is, which the map itself has.
        unreported: Those in flight that are not in ``finished``, by key.
    """

    __slots__ = ("_lock", "finished", "unreported")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the server's close reports too
        self.finished: deque[Inference | None] = deque()
        self.unreported: dict[int, Mapped] = {}

    def report(self, inference: Mapped) -> None:
        """Put an inference among the finished ones, once."""
        with self._lock:
            if inference.key in self.unreported:
                # With no call between the two, after which a signal handler could raise.
                del self.unreported[inference.key]
                self.finished.append(inference)

    def is_empty(self) -> bool:
        """Return whether there are no results and none will come."""
        with self._lock:
            return not self.unreported and not self.finished

    def take_back(self, mark: int) -> None:
        """Cancel and forget the inferences whose keys come behind this one."""
        with self._lock:
            for key, inference in list(self.unreported.items()):
                if key > mark:
                    del self.unreported[key]
                    inference.cancel()
            for entry in list(self.finished):
                if entry is not None and entry.key > mark:
                    self.finished.remove(entry)

    def expire(self) -> None:
        """Report those whose own ``timeout`` is up: asked for the result, they cancel and raise."""
        now = time.monotonic()
        for inference in list(self.unreported.values()):
            if inference.deadline is not None and inference.deadline <= now:
                self.report(inference)

    def deadline(self) -> float | None:
        """Return when the first of them expires."""
        deadlines = [inference.deadline for inference in list(self.unreported.values())]
        return min((at for at in deadlines if at is not None), default=None)


class Mapped(Inference):
    """An inference that puts itself among the results of a map when it is over."""

    __slots__ = ("_results",)

    is_usual = False

    def __init__(
        self,
        queue: CompletionQueue,
        terms: Terms,
        pins: list[CData],
        *,
        results: Results,
    ) -> None:
        super().__init__(queue, terms, pins)
        self._results = results

    def enter(self) -> None:
        """Be about to be submitted, and stand in the map."""
        self._results.unreported[self.key] = self

    def answer(self) -> None:
        """Be among the results, before it is over."""
        self._results.report(self)

    def leave(self) -> None:
        """Be over; in the table until it stands in the map, as an awaited one is woken before."""
        self.is_over = True
        if self.token or self._outcomes:
            self._results.report(self)
        else:  # Triton has refused it
            self._results.unreported.pop(self.key, None)
        super().leave()


class ResponseMap(Closing, Iterator[T_co]):
    """Responses to the items of an iterable, of which some are in flight at a time.

    Iterate over it, in one thread at a time. What goes wrong with one item is raised at its place,
    and the next step goes on behind it; what the iterable itself raises comes after everything that
    it has given, and ends the map. Where a signal handler raises in a step, as Ctrl-C does, the
    next one gives what that would have given. When the map is closed or dropped before its end,
    what is in flight is cancelled; a ``with`` block closes it.
    """

    _results: Results | None = None

    def __init__(
        self,
        submit: Callable[[list[Inputs | Request], deque[Exception]], Sequence[Inference | None]],
        items: Iterable[Inputs | Request],
        in_flight: int,
        queue: CompletionQueue,
        *,
        return_errors: bool,
    ) -> None:
        """Leave this to `Model.map`."""
        in_flight = check_in_flight(in_flight)
        self._submit = submit
        self._source: Iterator[Inputs | Request] | None = iter(items)
        self._in_flight = in_flight
        self._half = in_flight // 2
        self._queue = queue
        self._return_errors = return_errors
        self._failure: Exception | None = None
        self._pending: list[Inputs | Request] = []  # read, and not in the row yet
        # What the finalizer has must not lead back to the map, or it would keep it: an error does,
        # by its traceback. So errors stand in a row of their own, and None in their places.
        self._row: deque[Inference | None] = deque()
        self._errors: deque[Exception] = deque()
        self._finalizer = self._finalize()
        self._finalizer.atexit = False

    def _finalize(self) -> weakref.finalize[..., Self]:
        return weakref.finalize(self, cancel_all, self._row)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        row = self._next()
        # It leaves the row last, with no call behind that: where a signal handler raises before,
        # Ctrl-C above all, the map can be asked again.
        head = row[0]
        try:
            if head is None:
                raise self._errors[0]  # noqa: TRY301 (as the results of others do)
            result = head.result()
            if row:  # or another thread has closed the map
                del row[0]
            return result  # type: ignore[return-value]  # noqa: TRY300 (nothing may come between)
        except Exception as error:
            if head is not None and not _is_outcome(head, error):
                raise
            if row:
                del row[0]
                if head is None:
                    del self._errors[0]
            if self._return_errors:
                return error  # type: ignore[return-value]
            raise

    def _next(self) -> deque[Inference | None]:
        """Return the row, whose first is to be handed out; its result may still be to come."""
        row = self._row
        if self._source is not None or self._pending:
            present = len(row)
            # As long as the next response is there Triton is the faster side, and the next items
            # had better come to it several at a time: between single ones the model's thread falls
            # asleep, and to wake it costs more than the inference.
            if present <= self._half or not self._has_come(row[0]):
                self._fill(self._in_flight - present)
        if not row:
            self._end()
        return row

    def _has_come(self, head: Inference | None) -> bool:
        if head is None or head.is_over:
            return True
        self._queue.drain()
        return head.has_result()

    def _fill(self, room: int) -> None:
        """Submit as many items as there is room for, together as far as they come quickly."""
        pending = self._pending
        while room > 0:
            if not pending:
                if self._source is None:
                    return
                is_end, failure = read_together(self._source, room, pending)
                if self._source is None:  # the iterable has closed the map, or another thread
                    pending.clear()
                    return
                if is_end:
                    self._failure = failure
                    self._source = None
            if pending:
                room -= len(pending)
                if not send(
                    pending,
                    self._send,
                    self._row,
                    self._errors,
                    queue=self._queue,
                    results=self._results,
                ):
                    self._drop()

    def _send(self) -> Sequence[Inference | None]:
        return self._submit(self._pending, self._errors)

    def _drop(self) -> None:
        cancel_all(self._row)

    def _end(self) -> None:
        """Raise what ends the iteration."""
        self.close()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # or it and this frame would hold each other
        raise StopIteration

    def close(self) -> None:
        """Cancel what is in flight, and return at once. Closing twice is no error."""
        self._source = None
        self._pending.clear()
        self._finalizer()


class CompletedMap(ResponseMap[T_co]):
    """The same in the order in which they complete."""

    def __init__(
        self,
        submit: Callable[
            [list[Inputs | Request], deque[Exception], CompletionQueue, Results],
            Sequence[Inference | None],
        ],
        items: Iterable[Inputs | Request],
        in_flight: int,
        lifecycle: Lifecycle,
        *,
        return_errors: bool,
    ) -> None:
        results = Results()
        self._results: Results = results
        queue = CompletionQueue()
        self._release = lifecycle.release
        try:
            lifecycle.adopt(queue)
            super().__init__(
                lambda together, errors: submit(together, errors, queue, results),
                items,
                in_flight,
                queue,
                return_errors=return_errors,
            )
        except BaseException:
            lifecycle.release(queue)
            raise
        self._row = results.finished

    def _finalize(self) -> weakref.finalize[..., Self]:
        return weakref.finalize(self, _leave, self._queue, self._results)

    def _drop(self) -> None:
        _leave(self._queue, self._results)

    def close(self) -> None:
        """Cancel what is in flight, and return at once. Closing twice is no error."""
        self._drop()
        super().close()
        if not self._queue.in_flight:
            self._release(self._queue)

    def _next(self) -> deque[Inference | None]:
        results, queue, row = self._results, self._queue, self._row
        while True:
            wakes = queue.wakes[0]
            queue.drain()
            present = len(results.unreported) + len(row)
            if (self._source is not None or self._pending) and (present <= self._half or not row):
                self._fill(self._in_flight - present)
            if row:
                return row
            if results.is_empty():
                self._end()
            if not queue.wait_any(results.deadline(), wakes):
                results.expire()


def start_map(
    starter: Starter,
    lifecycle: Lifecycle,
    items: Iterable[Inputs | Request],
    in_flight: int,
    keywords: RequestKeywords,
    *,
    ordered: bool,
    return_errors: bool,
    what: str,
) -> ResponseMap[Response]:
    """Make a map.

    Args:
        starter: Starts its inferences.
        lifecycle: The server's.
        items: As in `Model.map`; and so
        in_flight: this,
        keywords: this,
        ordered: this,
        return_errors: and this.
        what: Whose map it is, for messages.
    """
    check_map(items, keywords, what)
    if ordered:
        return ResponseMap(
            lambda items, errors: starter.start_each(
                Inference, lifecycle.queue, items, keywords, errors
            ),
            items,
            in_flight,
            lifecycle.queue,
            return_errors=return_errors,
        )
    return CompletedMap(
        lambda items, errors, queue, results: [  # inferences come into the row when they are over
            entry
            for entry in starter.start_each(
                functools.partial(Mapped, results=results), queue, items, keywords, errors
            )
            if entry is None
        ],
        items,
        in_flight,
        lifecycle,
        return_errors=return_errors,
    )


def read_together(
    source: Iterator[Inputs | Request], room: int, items: list[Inputs | Request]
) -> tuple[bool, Exception | None]:
    """Read items as long as they come quickly.

    Args:
        source: Gives them.
        room: How many, at most.
        items: Gets them, one or more unless there are no more; the map's own, so that it has what
            was read where a signal handler raises.

    Returns:
        Whether there are no more; what the source has raised.
    """
    limit = time.perf_counter() + _TOGETHER_S
    try:
        for item in islice(source, room):
            items.append(item)
            if time.perf_counter() > limit:
                return False, None
    except Exception as error:  # noqa: BLE001 (it is raised at its place)
        return True, no_end(error, "the iterable")
    return len(items) < room, None


def send(
    items: list[Inputs | Request],
    submit: Callable[[], Sequence[Inference | None]],
    row: deque[Inference | None],
    errors: deque[Exception],
    *,
    queue: CompletionQueue,
    results: Results | None,
) -> bool:
    """Submit items and put what came of it into a row: all of that, or nothing.

    Args:
        items: They leave this list. Where a signal handler raises they stay, to be sent again.
        submit: Submits them.
        row: Gets the entries.
        errors: Gets errors, by `submit`.
        queue: Gives the keys of the inferences.
        results: Has them too; None: the row has them alone.

    Returns:
        False: the map was closed meanwhile.
    """
    had = len(errors)
    mark = queue.next_key()
    entries: Sequence[Inference | None] = ()
    try:
        entries = submit()
        is_open = bool(items)
        row += entries
        items.clear()  # with no call between, after which a handler could raise
    except BaseException:
        if items:
            while len(errors) > had:
                errors.pop()
            if results is None:
                cancel_all(deque(entries))
            else:
                results.take_back(mark)
        raise
    return is_open


def no_end(error: Exception, who: str) -> Exception:
    """Return what may be raised in a step of an iteration, in place of what was raised.

    As from a generator (PEP 479): what ends iterations would end that of the map, silently.
    """
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        wrapped = RuntimeError(f"{who} raised {type(error).__name__}")
        wrapped.__cause__ = error
        return wrapped
    return error


def _is_outcome(inference: Inference, error: Exception) -> bool:
    """Say whether an error is what came of an inference; or else a signal handler has raised it."""
    if isinstance(error, TritonError) or inference.has_result():
        return True
    return inference.deadline is not None and time.monotonic() >= inference.deadline


def cancel_all(row: deque[Inference | None]) -> None:
    """Cancel what is in flight of a map that nobody reads any more."""
    while row:
        entry = row.popleft()
        if entry is not None and not entry.is_over:
            entry.cancel()


def _leave(queue: CompletionQueue, results: Results) -> None:
    """Clear away after a map that has a queue of its own."""
    for inference in list(results.unreported.values()):
        inference.cancel()
    results.unreported.clear()
    results.finished.clear()
    queue.leave()


def check_map(items: object, keywords: RequestKeywords, what: str) -> None:
    """Refuse one item, keywords that there are not, and what cannot be meant for all alike."""
    if isinstance(items, Mapping):  # which is iterable too: its names
        raise TypeError(f"{what}: map takes an iterable of mappings, not one of them")
    check_keywords(keywords, RequestKeywords.__annotations__, what)
    if keywords.get("out"):
        raise InvalidArgumentError(
            "out= would give all items of a map the same memory: make a Request of each item, with "
            "an out of its own"
        )


def check_in_flight(value: int) -> int:
    """Refuse what is no number of inferences."""
    if not 1 <= (value := whole(value, "in_flight")) <= sys.maxsize:
        raise InvalidArgumentError(f"in_flight must be between 1 and 2**63 - 1, not {shown(value)}")
    return value
