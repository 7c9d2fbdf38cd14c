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
once, in one of their threads. Of a class that is called like a function neither is: both would be
meant for its objects.

Where a call, `initialize` or `finalize` gives a coroutine, that runs in the model's one event loop,
a thread of its own, and the instance waits for it. So there are as many calls at a time as there
are instances, in one loop, in which they may share what belongs to a loop. An async generator runs
there too, all of it in one task. The task is cancelled when all requests of its batch are.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import AsyncGenerator, Generator
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Protocol, cast

from tritonffi._calling import caller
from tritonffi._function_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tritonffi._call import JSON
    from tritonffi._calling import Calling
    from tritonffi._function_config import Declared
    from tritonffi._function_context import Context
    from tritonffi._tensor import Array

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
        if inspect.isclass(given) and issubclass(given, type):
            raise TypeError(
                f"{model}: {given.__name__} is a class of classes, which takes no inputs"
            )
        self._given = given
        self._model = model
        self._is_class = _is_model_class(given)
        self._users = 0
        self._function = _unbound(given) if self._is_class else _bound(given, model)
        if any(map(_is_old_coroutine, (self._function, getattr(self._function, _CALL, None)))):
            raise TypeError(
                f"{model}: the function is a coroutine of types.coroutine, which the event loops "
                "of newer Pythons do not run: make it an 'async def'"
            )
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
        try:
            self._calling = caller(self._function, inputs, self._model)
        except TypeError as error:
            if inspect.isclass(self._given) and not self._is_class:
                raise TypeError(
                    f"{error}. Class {self._given.__name__} is called like a function, because it "
                    "has no method __call__ or execute; those that its objects get by themselves, "
                    "in __init__ or by __getattr__, are not known before: give an object, or "
                    "define one in the class"
                ) from None
            raise
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
        if self._users == 0 and not inspect.isclass(self._given):
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
            if self._users and not inspect.isclass(self._given):
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
            return self._loop.stream(made, is_cancelled)
        return cast("Generator[object, None, None]", made)


def _is_generator(function: object) -> bool:
    candidates = (function, getattr(function, _CALL, None))
    return any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in candidates)


def _is_old_coroutine(function: object) -> bool:
    """Tell whether it is a generator function that gives coroutines, as types.coroutine makes."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


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
