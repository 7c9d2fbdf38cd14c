# SPDX-License-Identifier: Apache-2.0
"""
What runs inside the stubs of the python backend: a model whose `execute` raises can be unloaded.

And a stub ends with the server's process, also where nobody has waited for that yet.

It is linked into the home of the stubs and imported at their start, so it needs nothing but the
standard library. Where `execute` raises, the stub tells Triton so in shared memory, and one field
of that it does not write: whether the factories of the responses are gone. If something else has
lain there before, Triton takes it for yes, and keeps the factory, and the model with it, for ever.
The field is written only where a model answers a request twice. So that is what a model does here:
it answers with its error, which closes the request, and then once more, in vain.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import importlib.machinery
import os
import select
import sys
import time
import types
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence
    from importlib.abc import Loader
    from typing import Protocol

    class Sender(Protocol):
        """What sends the responses of a request."""

        def send(self, response: object = None, flags: int = 0) -> None:
            """Send one, or the end."""

    class Request(Protocol):
        """An InferenceRequest."""

        def get_response_sender(self) -> Sender:
            """Return what sends its responses."""

        def set_release_flags(self, flags: int) -> None:
            """Set what becomes of it after `execute`."""


MODULE = "tritonffi_execute"
_CLASS = "TritonPythonModel"
_BACKEND = "triton_python_backend_utils"
# Where in the command line these are: the model's file, the shared memory, the server's process,
# and the instance.
_FILE = 1
_REGION = 2
_PARENT = 5
_INSTANCE = 8
# What Triton's own end of a stub gets, which is tidier, before ours; and how often the parent is
# looked for, where nothing tells of its end.
_GRACE_S = 1.0
_LOOK_S = 1.0


def wrapped(execute: Callable[..., object], instance: str) -> Callable[..., object]:
    """Return an `execute` that answers with what the given one raises, where the stub calls it.

    Calls of the model's own pass: it may catch what it raises, or take a batch in parts.

    Args:
        execute: The model's.
        instance: Its name, for the message.
    """
    thread = _thread.get_ident()  # in which the stub loads a model, and calls it

    @functools.wraps(execute)
    def answering(*args: object, **kwargs: object) -> object:
        try:
            sys._getframe(1)  # noqa: SLF001  a call from C++ has none below
        except ValueError:
            if _thread.get_ident() == thread:
                model, requests = cast("tuple[object, list[Request]]", args)
                return _answered(execute, model, requests, instance)
        return execute(*args, **kwargs)

    return answering


def _answered(
    execute: Callable[..., object], model: object, requests: list[Request], instance: str
) -> object:
    """Return what the stub gets for what `execute` returns or raises."""
    given = list(requests)  # a model may take them out
    returned = None
    awaited = False
    try:
        returned = execute(model, requests)
        import asyncio  # noqa: PLC0415  the stub does so here, too, and asks it likewise

        awaited = asyncio.iscoroutine(returned)
        trouble = None if awaited else _trouble(returned, given)
    except BaseException as error:  # noqa: BLE001  the stub, too, takes whatever comes
        trouble = describe(error)
    if awaited:
        return _awaited(cast("Awaitable[object]", returned), requests, given, instance)
    requests[:] = given  # their responses go by their places in it
    return returned if trouble is None else _fail(given, instance, trouble)


async def _awaited(
    coroutine: Awaitable[object], requests: list[Request], given: list[Request], instance: str
) -> object:
    trouble = None
    try:
        if isinstance(coroutine, types.GeneratorType):  # asyncio takes them up to Python 3.11
            coroutine = _delegated(coroutine)
        returned = await coroutine
        unfit = _trouble(returned, given)
    except BaseException as error:  # noqa: BLE001  as above
        trouble = describe(error)
    requests[:] = given
    if trouble is not None:
        return _fail(given, instance, trouble)
    return returned if unfit is None else _Unfit(lambda: _fail(given, instance, unfit))


@types.coroutine
def _delegated(generator: Generator[object, object, object]) -> Generator[object, object, object]:
    """Make a generator one that can be awaited."""
    return (yield from generator)


class _Unfit(list[object]):
    """What a coroutine has returned, which is an error as soon as the stub looks at it.

    Of a decoupled model the stub does not: such a one may return what it likes.
    """

    def __init__(self, fail: Callable[[], list[object]]) -> None:
        super().__init__()
        self._fail = fail

    def __len__(self) -> int:
        self[:] = self._fail()
        return super().__len__()


def _trouble(returned: object, given: list[Request]) -> str | None:
    """Return why the stub would raise for what `execute` did return; None: it would not."""
    # By the type, as the stub: the class that an object tells may be another one.
    if returned is None:
        return None
    if not issubclass(type(returned), list):
        return f"execute has to return a list, and returned {type(returned).__name__}"
    items = cast("list[object]", returned)
    if len(items) != len(given):
        return f"execute returned {len(items)} responses for {len(given)} requests"
    kind = sys.modules[_BACKEND].InferenceResponse
    for item in items:
        if item is not None and not issubclass(type(item), kind):
            return f"execute returned {type(item).__name__} in place of an InferenceResponse"
    return None


def describe(error: BaseException) -> str:
    """Return what the stub says of an error."""
    try:
        text = str(error) or "<EMPTY MESSAGE>"
    except BaseException as other:  # noqa: BLE001  of the user's own class
        text = f"<unprintable: {type(other).__name__}>"
    lines = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != __file__:
            lines.append(f"  {code.co_filename}({trace.tb_lineno}): {code.co_name}\n")
        trace = trace.tb_next
    return f"{type(error).__name__}: {text}\n\nAt:\n{''.join(reversed(lines))}"


def _fail(requests: list[Request], instance: str, trouble: str) -> list[object]:
    """Answer requests with an error, and return what the stub refuses.

    Args:
        requests: What the stub has given; its list has to have them, too, or it would compare its
            length first, and not get to the field.
        instance: The name of the model's instance.
        trouble: What there is.
    """
    message = f"Failed to process the request(s) for model '{instance}', message: {trouble}"
    message = message.encode(errors="backslashreplace").decode()  # of surrogates there is no UTF-8
    backend = sys.modules[_BACKEND]
    backend.Logger.log_error(message)
    final = backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    # One for all: it may be large, and a `send` returns when Triton has read it.
    response = backend.InferenceResponse(error=backend.TritonError(message))
    for request in requests:
        request.set_release_flags(backend.TRITONSERVER_REQUEST_RELEASE_ALL)  # nor does it come anew
        sender = request.get_response_sender()
        try:
            sender.send(response, flags=final)
        except Exception:  # noqa: BLE001  it has answered already
            with contextlib.suppress(Exception):  # to the end
                sender.send(flags=final)
    return [response] * len(requests)


class _Loader:
    """Loads the model's module, and wraps its `execute`."""

    def __init__(self, loader: Loader, instance: str) -> None:
        self._loader = loader
        self._instance = instance

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Make the module as ever."""
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module."""
        self._loader.exec_module(module)
        with contextlib.suppress(BaseException):  # a metaclass may refuse, with whatever it likes
            model = getattr(module, _CLASS)
            # As it was defined: a static method, say, is another thing.
            bases = [vars(base) for base in model.__mro__]
            execute = next(names["execute"] for names in bases if "execute" in names)
            if isinstance(execute, types.FunctionType):
                setattr(model, "execute", wrapped(execute, self._instance))  # noqa: B010


class Finder:
    """Finds the model's module, once."""

    def __init__(self, file: str, instance: str) -> None:
        """
        Remember what to look for.

        Args:
            file: The model's file.
            instance: The name of the instance that the process is for.
        """
        self._file = file
        self._name = os.path.basename(file)[: -len(".py")]  # noqa: PTH119
        self._instance = instance

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how the model's module is loaded; None: this is another one."""
        if name.rpartition(".")[2] != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or not _is_same(spec.origin, self._file):
            return None
        sys.meta_path.remove(self)
        spec.loader = _Loader(spec.loader, self._instance)  # type: ignore[assignment]
        return spec


def _is_same(one: str | None, other: str) -> bool:
    try:
        return one is not None and os.path.samefile(one, other)  # noqa: PTH121
    except OSError:
        return False


def end_with(parent: int, region: str) -> None:
    """End this process when another one, which has started it, has ended.

    Triton looks by a signal whether that is there, and it is as long as nobody has waited for it:
    who reads what it writes does not wait before all is read, and a stub holds the pipe open.

    Args:
        parent: Its number.
        region: The name of the memory that they share.
    """
    _await_end(parent)
    time.sleep(_GRACE_S)
    with contextlib.suppress(OSError):
        os.unlink(f"/dev/shm/{region.lstrip('/')}")  # noqa: PTH108, S108 (where Linux has it)
    os._exit(1)


def _await_end(parent: int) -> None:
    """Return when a process has ended, also before it is waited for."""
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # an old kernel, or a sandbox
        if os.getppid() == parent:  # its children are given to another one at once
            while os.getppid() == parent:
                time.sleep(_LOOK_S)
            return
        _thread.exit()  # it cannot be told
    # In the kernel, without the interpreter; a process that has ended can be read.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()


def _install() -> None:
    """Wait for the import of the model, and for the end of the server's process, in a stub."""
    try:
        with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123
            arguments = [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return
    if len(arguments) > _INSTANCE:
        sys.meta_path.insert(0, Finder(arguments[_FILE], arguments[_INSTANCE]))
        if arguments[_PARENT].isdigit():
            # Not by `threading`, whose threads the model may count.
            with contextlib.suppress(RuntimeError):  # there can be no more
                _thread.start_new_thread(end_with, (int(arguments[_PARENT]), arguments[_REGION]))


if __name__ == MODULE:
    _install()
