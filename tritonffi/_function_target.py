# SPDX-License-Identifier: Apache-2.0
"""
What stands behind a function model: a callable, an object, or a class with an object per instance.

- A function, or anything else that can be called, is called by all instances, each in its thread.
- A class whose objects can be called, or have a method `execute`, gives each instance an object of
  its own, made without arguments in the instance's thread. Other classes are callables like others:
  what they make is the result.
- An object that cannot be called but has a method `execute` is called by that.

An object may have `initialize`, which gets the model's config, or nothing, before the first call,
and `finalize`, which is called after the last. Of an object that all instances share each is called
once, in one of their threads.

Where a call, `initialize` or `finalize` gives a coroutine, that runs in the model's one event loop,
a thread of its own, and the instance waits for it. So there are as many calls at a time as there
are instances, in one loop, in which they may share what belongs to a loop. An async generator runs
there too. The task is cancelled when all requests of its batch are.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import CancelledError as FutureCancelledError
from types import MethodType
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from tritonffi._calling import caller
from tritonffi._errors import CancelledError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from tritonffi._call import JSON
    from tritonffi._calling import Calling
    from tritonffi._function_config import Declared
    from tritonffi._function_context import Context
    from tritonffi._tensor import Array

T = TypeVar("T")

#: How often who waits for a coroutine looks whether it is still wanted.
_GLANCE_S = 0.1

_CALL = "__call__"
_EXECUTE = "execute"


class SupportsExecute(Protocol):
    """An object that is called by its method `execute`, which takes the inputs as any callable."""

    @property
    def execute(self) -> Callable[..., object]:
        """Return the results, or yield them."""
        ...


class Target:
    """
    What was given to `load_function`.

    Attributes:
        is_decoupled: Whether each call gives any number of results: a generator function.
        wants_context: Whether it is called with a context.
    """

    def __init__(self, given: object, model: str) -> None:
        """
        Look at what was given, without calling anything.

        Args:
            given: The callable, object or class.
            model: "model 'x'", for errors.

        Raises:
            TypeError: It cannot be called.
        """
        self._given = given
        self._model = model
        self._is_class = _is_model_class(given)
        self._users = 0
        self._function = _unbound(given) if self._is_class else _bound(given, model)
        self._inputs: Sequence[Declared] = ()
        self._calling: Calling | None = None
        self._loop = EventLoop(model)
        self.is_decoupled = _is_generator(self._function)
        self.wants_context = False

    def bind(self, inputs: Sequence[Declared]) -> None:
        """
        Find out how it is called.

        Args:
            inputs: What the model takes.

        Raises:
            TypeError: It does not take the inputs.
        """
        self._inputs = inputs
        self._calling = caller(self._function, inputs, self._model)
        self.wants_context = self._calling.wants_context

    def enter(self, config: Mapping[str, JSON]) -> Instance:
        """
        Make what an instance calls; in the instance's thread, one after the other.

        Args:
            config: The model config, for `initialize`.

        Raises:
            Exception: What the class or `initialize` raised.
        """
        if self._is_class:
            made = cast("Callable[[], object]", self._given)()
            self._initialize(made, config)
            method = getattr(made, _method_name(type(made)))
            calling = caller(method, self._inputs, self._model)
            return Instance(calling, made, self._loop, is_decoupled=self.is_decoupled)
        if self._users == 0:
            self._initialize(self._given, config)
        self._users += 1
        calling = cast("Calling", self._calling)
        return Instance(calling, None, self._loop, is_decoupled=self.is_decoupled)

    def leave(self, instance: Instance) -> None:
        """Finalize an instance's own object; in its thread."""
        if instance.own is not None:
            self._finalize(instance.own)

    def close(self) -> None:
        """Finalize the object that all share, if it was initialized, and end the loop."""
        try:
            if self._users:
                self._finalize(self._given)
        finally:
            self._loop.close()

    def _initialize(self, instance: object, config: Mapping[str, JSON]) -> None:
        initialize = getattr(instance, "initialize", None)
        if initialize is None:
            return
        takes_nothing = _takes(initialize) and not _takes(initialize, config)
        arguments = () if takes_nothing else (json.loads(json.dumps(config)),)
        self._run(initialize(*arguments))

    def _finalize(self, instance: object) -> None:
        finalize = getattr(instance, "finalize", None)
        if finalize is not None:
            self._run(finalize())

    def _run(self, value: object) -> None:
        if inspect.iscoroutine(value):
            self._loop.run(value)


class Instance:
    """
    What one instance calls.

    Attributes:
        own: The object that it alone has.
        is_decoupled: Whether to `generate`, and not to `call`.
    """

    def __init__(
        self, calling: Calling, own: object, loop: EventLoop, *, is_decoupled: bool
    ) -> None:
        self._call = calling.call
        self._loop = loop
        self.own = own
        self.is_decoupled = is_decoupled

    def call(
        self,
        arrays: dict[str, Array],
        context: dict[str, Context],
        is_cancelled: Callable[[], bool],
    ) -> object:
        """
        Call the callable; where it is a coroutine function, return what that returns.

        Args:
            arrays: The inputs.
            context: What goes in beside them.
            is_cancelled: Whether nobody wants the result any more; coroutines are cancelled then.
        """
        value = self._call(arrays, context)
        return self._loop.run(value, is_cancelled) if inspect.iscoroutine(value) else value

    def generate(
        self,
        arrays: dict[str, Array],
        context: dict[str, Context],
        is_cancelled: Callable[[], bool],
    ) -> Generator[object, None, None]:
        """Call the generator function, and give what it yields; see `call`."""
        made = self._call(arrays, context)
        if isinstance(made, AsyncGenerator):
            return self._drive(made, is_cancelled)
        return cast("Generator[object, None, None]", made)

    def _drive(
        self, made: AsyncGenerator[object, None], is_cancelled: Callable[[], bool]
    ) -> Generator[object, None, None]:
        try:
            while True:
                try:
                    value = self._loop.run(_next(made), is_cancelled)
                except StopAsyncIteration:
                    return
                yield value
                del value
        finally:
            self._loop.run(made.aclose())


class EventLoop:
    """An event loop in a thread of its own, which begins with the first coroutine."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

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
        """
        import asyncio  # noqa: PLC0415  only who awaits pays for its import: a third of ours

        loop = self._begin()
        tasks: list[asyncio.Task[object]] = []
        done = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_noted(coroutine, tasks), loop)
        future.add_done_callback(lambda _: done.set())
        was_cancelled = False
        while not done.wait(None if is_cancelled is None or was_cancelled else _GLANCE_S):
            if tasks and is_cancelled is not None and is_cancelled():
                was_cancelled = True
                loop.call_soon_threadsafe(tasks[0].cancel)
        try:
            return future.result()
        except FutureCancelledError:
            if was_cancelled:
                raise CancelledError("the request was cancelled") from None
            raise
        finally:
            tasks.clear()  # or an exception would hold itself, and what it was raised in
            del future

    def close(self) -> None:
        """End the loop, with all that is left in it."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._is_over = True
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _begin(self) -> asyncio.AbstractEventLoop:
        import asyncio  # noqa: PLC0415  as above

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._work, args=(self._loop,), name=f"tritonffi: loop of {self._model}"
                )
                self._thread.daemon = True
                self._thread.start()
            return self._loop

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # noqa: PLC0415  as above

        asyncio.set_event_loop(loop)
        try:
            while not self._is_over:
                # SystemExit and KeyboardInterrupt leave the loop too; they are the task's result.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
            loop.run_until_complete(_cancel_others())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def _noted(coroutine: Coroutine[object, object, T], tasks: list[asyncio.Task[object]]) -> T:
    import asyncio  # noqa: PLC0415  as above

    tasks.append(cast("asyncio.Task[object]", asyncio.current_task()))
    return await coroutine


async def _next(made: AsyncGenerator[T, None]) -> T:
    return await made.__anext__()


async def _cancel_others() -> None:
    import asyncio  # noqa: PLC0415  as above

    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_generator(function: object) -> bool:
    candidates = (function, getattr(function, _CALL, None))
    return any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in candidates)


def _is_model_class(given: object) -> bool:
    return inspect.isclass(given) and (_has_call(given) or hasattr(given, _EXECUTE))


def _has_call(kind: type) -> bool:
    return any(_CALL in vars(base) for base in kind.__mro__)


def _method_name(kind: type) -> str:
    return _CALL if _has_call(kind) else _EXECUTE


def _unbound(given: object) -> Callable[..., object]:
    """Return the method of a class that its objects will be called by, with something for self."""
    kind = cast("type", given)
    name = _method_name(kind)
    static = inspect.getattr_static(kind, name)
    if inspect.isfunction(static):
        return MethodType(static, kind)
    return cast("Callable[..., object]", getattr(kind, name))


def _bound(given: object, model: str) -> Callable[..., object]:
    """Return what an object is called by."""
    method = given if callable(given) else getattr(given, _EXECUTE, None)
    if not callable(method):
        raise TypeError(f"{model}: the function must be callable, not {type(given).__name__}")
    return cast("Callable[..., object]", method)


def _takes(function: Callable[..., object], *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # it shows no signature
        return True
    return True
