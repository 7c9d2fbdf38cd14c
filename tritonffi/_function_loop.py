# SPDX-License-Identifier: Apache-2.0
"""
The event loop of a function model, in a thread of its own, and what its instances run there.

The instances' threads wait, and look now and then whether what they wait for is still wanted.

Where a coroutine forks, the child has the loop's thread alone. The loop ends there as soon as all
that can go on has come to where it waits: it would wait with the parent's selector, and take away
what wakes the parent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import CancelledError as FutureCancelledError
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar, cast

from tritonffi._errors import CancelledError, ClosedError, InternalError
from tritonffi._forks import Origin
from tritonffi._function_errors import persist

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from concurrent.futures import Future

T = TypeVar("T")

#: How often who waits for a coroutine looks whether it is still wanted.
_GLANCE_S = 0.1


class _Own(threading.local):
    """
    What belongs to a thread.

    Attributes:
        loop: The event loop that runs in it, if it is one of ours.
    """

    loop: asyncio.AbstractEventLoop | None = None


_own = _Own()


def _stop_own() -> None:
    """In a forked child: stop the loop of its only thread."""
    if _own.loop is not None:
        _own.loop.stop()


os.register_at_fork(after_in_child=_stop_own)


class EventLoop:
    """An event loop in a thread of its own, which begins with the first coroutine."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._origin = Origin()

    def run(
        self,
        coroutine: Coroutine[object, object, T],
        is_cancelled: Callable[[], bool] | None = None,
    ) -> T:
        """
        Run a coroutine in the loop, and wait for it.

        Args:
            coroutine: What is to be run.
            is_cancelled: Asked now and then; where it says so, the coroutine's task is cancelled,
                and may come to its end.

        Raises:
            CancelledError: It was cancelled by that.
            InternalError: The loop has ended.
        """
        import asyncio  # noqa: PLC0415  only who awaits pays for its import: a third of ours

        tasks: list[asyncio.Task[object]] = []
        done = threading.Event()
        try:
            loop, thread = self._begin()
            future = asyncio.run_coroutine_threadsafe(_noted(coroutine, tasks), loop)
        except BaseException:
            coroutine.close()
            raise
        future.add_done_callback(lambda _: done.set())
        was_cancelled = False

        def glance() -> None:
            nonlocal was_cancelled
            if tasks and is_cancelled is not None and not was_cancelled and is_cancelled():
                was_cancelled = True
                loop.call_soon_threadsafe(tasks[0].cancel)

        try:
            self._wait(thread, done.wait, glance)
            return _result(future, was_cancelled=was_cancelled)
        finally:
            if tasks and not future.done():  # something was thrown into this thread
                _call_soon(loop, tasks[0].cancel)
            tasks.clear()  # or an exception would hold itself, and what it was raised in
            del future

    def stream(
        self, made: AsyncGenerator[object, None], is_cancelled: Callable[[], bool]
    ) -> Generator[object, None, None]:
        """
        Run an async generator in the loop, and give what it yields.

        It goes on when the next value is asked for, and is closed in the end.

        Args:
            made: The generator.
            is_cancelled: Asked now and then, while a value is waited for; where it says so, the
                generator's task is cancelled.

        Raises:
            CancelledError: It was cancelled by that.
            InternalError: The loop has ended.
        """
        import asyncio  # noqa: PLC0415  as above

        loop, thread = self._begin()
        values = _Values(made)
        future = asyncio.run_coroutine_threadsafe(values.run(), loop)
        future.add_done_callback(values.end)

        cancel = values.cancel

        def glance() -> None:
            if is_cancelled():
                loop.call_soon_threadsafe(cancel)

        try:
            while True:
                loop.call_soon_threadsafe(values.ask)
                self._wait(thread, values.wait, glance)
                if not values.got:
                    break
                yield values.got.pop()
            _result(future, was_cancelled=values.was_cancelled)
        finally:
            if not future.done():
                _call_soon(loop, values.close)
                self._wait(thread, values.wait_for_end, lambda: None)
                with contextlib.suppress(FutureCancelledError):  # by that
                    future.result()
            del future

    def close(self) -> None:
        """End the loop, with all that is left in it."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._is_over = True
        if loop is not None and thread is not None:
            _call_soon(loop, loop.stop)
            thread.join()

    def _wait(
        self, thread: threading.Thread, wait: Callable[[float], bool], glance: Callable[[], None]
    ) -> None:
        """Wait for something of the loop's, which may end meanwhile."""
        while not wait(_GLANCE_S):
            if not thread.is_alive():
                if wait(0):  # it was the last thing that the loop did
                    break
                raise InternalError(f"{self._model}: its event loop has ended")
            glance()

    def _begin(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        """Return the loop and its thread; where it has ended, or never begun, a new one."""
        import asyncio  # noqa: PLC0415  as above

        if self._origin.is_left():
            raise ClosedError(f"{self._model}: its event loop is not in this forked child")
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is not None and thread is not None and thread.is_alive():
                return loop, thread
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=self._work, args=(loop,), name=f"tritonffi: loop of {self._model}"
            )
            thread.daemon = True
            try:
                thread.start()
            finally:
                if thread.is_alive():
                    self._loop, self._thread = loop, thread
                else:
                    loop.close()
            return loop, thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # noqa: PLC0415  as above

        def work() -> bool:
            # Where what was thrown in has kept it from noticing its own end, it cannot run again.
            is_over = self._is_over or self._origin.is_left() or loop.is_running()
            if not is_over:
                loop.run_forever()
            return is_over

        asyncio.set_event_loop(loop)
        _own.loop = loop
        try:
            # SystemExit and KeyboardInterrupt leave the loop too; they are the task's result. So
            # does what another thread throws into this one.
            persist(work)
            if self._origin.is_left():
                return
            loop.run_until_complete(_cancel_others())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            if not self._origin.is_left():
                asyncio.set_event_loop(None)
                loop.close()  # which takes its pipe out of the selector, also out of the parent's


class _Values:
    """
    What an async generator yields, one value after the other as they are asked for.

    One task runs it from its beginning to its end, as that does which has an ``async for``: what
    is open around a yield, such as a timeout, a task group or a context variable, is of one task.
    """

    def __init__(self, made: AsyncGenerator[object, None]) -> None:
        import asyncio  # noqa: PLC0415  as above

        self._made = made
        self._outbox: SimpleQueue[list[object]] = SimpleQueue()
        # Of the loop's thread alone:
        self._turn = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_asked = False
        self._is_closed = False
        self.was_cancelled = False
        # Of the instance's thread alone:
        self.got: list[object] = []

    def wait(self, seconds: float) -> bool:
        """Have the value that was asked for in `got`, or nothing there: it was the last one."""
        try:
            self.got = self._outbox.get(timeout=seconds)
        except Empty:
            return False
        return True

    def wait_for_end(self, seconds: float) -> bool:
        """Wait for the end, and forget the value that may come before it."""
        return self.wait(seconds) and not self.got

    def ask(self) -> None:
        """Have it go on to its next value."""
        self._is_asked = True
        self._turn.set()

    def cancel(self) -> None:
        """Cancel the task, once, where it works on a value."""
        if self._is_asked and self._task is not None and not self.was_cancelled:
            self.was_cancelled = True
            self._task.cancel()

    def close(self) -> None:
        """Close it where it is."""
        self._is_closed = True
        self._turn.set()
        if self._is_asked and self._task is not None:
            self._task.cancel()

    def end(self, _: Future[None]) -> None:
        """Tell that there is nothing more."""
        self._outbox.put([])

    async def run(self) -> None:
        """Be the task."""
        import asyncio  # noqa: PLC0415  as above

        made = self._made
        self._task = asyncio.current_task()
        early: list[object] = []
        try:
            while True:
                try:
                    await self._turn.wait()
                except asyncio.CancelledError as error:
                    if self._is_closed:
                        return
                    # It is meant for what is open around the yield.
                    early.append(await made.athrow(error))
                    continue
                if self._is_closed:
                    return
                self._turn.clear()
                self._give(early.pop(0) if early else await made.__anext__())
        except StopAsyncIteration:
            return
        finally:
            self._task = None
            await made.aclose()

    def _give(self, value: object) -> None:
        self._is_asked = False
        self._outbox.put([value])


def _result(future: Future[T], *, was_cancelled: bool) -> T:
    try:
        return future.result()
    except FutureCancelledError:
        if was_cancelled:
            raise CancelledError("the request was cancelled") from None
        raise
    finally:
        del future  # or an exception would hold itself, and what it was raised in


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(function)


async def _noted(coroutine: Coroutine[object, object, T], tasks: list[asyncio.Task[object]]) -> T:
    import asyncio  # noqa: PLC0415  as above

    tasks.append(cast("asyncio.Task[object]", asyncio.current_task()))
    return await coroutine


async def _cancel_others() -> None:
    import asyncio  # noqa: PLC0415  as above

    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
