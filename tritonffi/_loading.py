# SPDX-License-Identifier: Apache-2.0
"""Loads and unloads, and what becomes of them where nobody waits any more.

All of them go through a model's turn, hold what Triton lets go, and can be left: by a timeout, by
Ctrl-C, and where a process of the python backend will never be heard of again.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from tritonffi import _log, _python_backend
from tritonffi._call import check, encode_name, interruptible, parameters
from tritonffi._errors import InternalError, NotFoundError, TritonError
from tritonffi._functions import check_own_unload
from tritonffi._index import made_of
from tritonffi._limits import named
from tritonffi._mending import Mending
from tritonffi._native import lib
from tritonffi._turns import NEVER, check_lost, turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from tritonffi._call import ParameterValue
    from tritonffi._functions import FunctionModel
    from tritonffi._lifecycle import Lifecycle
    from tritonffi._native import CData

# How long a load waits for requests at work in the model that it replaced.
_REPLACED_S = 0.25
_LATE_S = 0.5

#: What a load says to Triton beside the name (a JSON text as ``config``, bytes as ``file:<path>``),
#: and what notices, and raises, when it will never be over.
Prepared: TypeAlias = "tuple[Mapping[str, ParameterValue], _python_backend.StubWatch | None]"

_KEPT = (
    "A request of it failed while one of its steps was running, and Triton does not give such a "
    "request back (triton-inference-server/core#483)"
)


def load_with(
    lifecycle: Lifecycle,
    name: str,
    prepare: Callable[[], AbstractContextManager[Prepared]],
    timeout: float | None,
    function: FunctionModel | None = None,
) -> None:
    """Load a model with the load parameters of the C API.

    Args:
        lifecycle: The server's.
        name: The model's name.
        prepare: Has the model's folder as the load needs it, in the model's turn: other loads of it
            want it otherwise. What is raised in the block is that the load has failed.
        timeout: Seconds to wait; the load goes on in the background.
        function: The callable that it stands for, where it does. Where its warm-up has failed it
            is unloaded again; where the caller has left, unless it has taken another one's place.

    C: ``TRITONSERVER_ServerLoadModel``, ``TRITONSERVER_ServerLoadModelWithParameters``
    """
    encode_name(name)  # at once: a wrong name waits for no turn
    load = _Load(lifecycle, name, prepare, function)
    try:
        failure = interruptible(
            load.run,
            f"loading model {name!r}",
            timeout=timeout,
            abandoned=load.abandoned,
            watch=load.look if function is None else None,
        )
    except TritonError as error:
        if load.mark is not None:  # or else Triton knows nothing of it
            lifecycle.explain(error, load.mark, name)
        raise
    finally:
        _log.capture.forward()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # or it and this frame would hold each other


class _Load:
    """A load in its turn, which the caller of `load_with` may have left by then.

    Attributes:
        mark: Of the log, where it begins; None: it has not begun.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        name: str,
        prepare: Callable[[], AbstractContextManager[Prepared]],
        function: FunctionModel | None,
    ) -> None:
        self._lifecycle = lifecycle
        self._name = name
        self._prepare = prepare
        self._function = function
        self._watch: _python_backend.StubWatch | None = None
        self._is_reload = False
        self.mark: int | None = None

    def run(self) -> BaseException | None:
        """Wait for the turn, and load; return what a callable raised in its warm-up."""
        lifecycle, name, function = self._lifecycle, self._name, self._function
        with turn(lifecycle, name):
            if function is not None and not function.begin_load():
                return None  # its caller has left while this waited
            try:
                with named(f"model {name!r}"), self._prepare() as (overrides, watch):
                    self._watch = watch
                    self.mark = _log.capture.mark()
                    self._is_reload = _load_in_turn(lifecycle, name, overrides, watch)
            except BaseException as error:
                if function is not None:
                    function.fail_load(error)
                raise
            _follow(lifecycle, name, function)
        # Here, where no signal comes: a handler that raises would leave the model half loaded.
        return None if function is None else _warmed_up(lifecycle, name, function)

    def look(self) -> None:
        """Raise when it will never be over."""
        if self._watch is not None:
            self._watch()
        # In another load, for which Triton has this one wait.
        check_lost(self._lifecycle, self._name, self._watch)

    def abandoned(self, failure: BaseException | None) -> None:
        """Unload a callable for which nobody waits any more."""
        function = self._function
        if function is None or function.is_closed or failure is not None or self._is_reload:
            return  # a model that was there before would be there no more
        with suppress(TritonError, TimeoutError):
            unload(
                self._lifecycle, self._name, dependents=False, timeout=_REPLACED_S, only=function
            )


def _load_in_turn(
    lifecycle: Lifecycle,
    name: str,
    overrides: Mapping[str, ParameterValue],
    watch: _python_backend.StubWatch | None,
) -> bool:
    """Load a model; return whether there was one of the name."""
    try:
        with lifecycle.use():
            server = lifecycle.handle()
            is_reload = name in lifecycle.loaded(server)
            if watch is not None:
                lifecycle.loads[threading.get_ident()] = name, watch
            mending = Mending(lifecycle, server, name, overrides)
            # A load lets the model go that had the name, whose calls may take longer than this one.
            with lifecycle.letting_go(server, {name}, _REPLACED_S):
                _load_now(lifecycle, server, name, mending.overrides, is_reload=is_reload)
            if not mending.loaded():
                with lifecycle.letting_go(server, {name}, _REPLACED_S):
                    _load_now(lifecycle, server, name, mending.overrides, is_reload=True)
                mending.mended()
            _remember(lifecycle, name, mending.overrides)
            return is_reload
    finally:
        lifecycle.loads.pop(threading.get_ident(), None)


def _remember(lifecycle: Lifecycle, name: str, overrides: Mapping[str, ParameterValue]) -> None:
    """Keep the config of a model that is in no repository, and has it from nowhere else."""
    config = overrides.get("config")
    if isinstance(config, str) and (lifecycle.repository / name).is_dir():
        lifecycle.configs[name] = config


def _follow(lifecycle: Lifecycle, name: str, function: FunctionModel | None) -> None:
    """Have the name stand for what was loaded, which is a callable or not."""
    previous = lifecycle.functions.pop(name, None)
    if function is not None:
        lifecycle.functions[name] = function
        lifecycle.parts.pop(name, None)
        lifecycle.configs.pop(name, None)
    if previous is not None:
        lifecycle.retire(previous)


def _warmed_up(lifecycle: Lifecycle, name: str, function: FunctionModel) -> BaseException | None:
    """Return what a callable raised in its warm-up, for which its model is unloaded again."""
    try:
        function.loaded()
    except BaseException as error:  # noqa: BLE001 (it is raised where the caller waits)
        # Triton takes the model for loaded, and it must not stay.
        unload(lifecycle, name, dependents=False, timeout=None, only=function)
        return error
    return None


def _load_now(
    lifecycle: Lifecycle,
    server: CData,
    name: str,
    overrides: Mapping[str, ParameterValue],
    *,
    is_reload: bool,
) -> None:
    native_name = encode_name(name)
    context = f"model {name!r}"
    try:
        if not overrides:
            check(lib.TRITONSERVER_ServerLoadModel(server, native_name), context)
            return
        with parameters(overrides, context) as (array, count):
            check(
                lib.TRITONSERVER_ServerLoadModelWithParameters(server, native_name, array, count),
                context,
            )
    except TritonError as error:
        # What Triton refuses before it has tried leaves nothing.
        if is_reload and "load failed for model" in str(error):
            lifecycle.failed_reloads.add(name)
        raise


def _still_there(
    lifecycle: Lifecycle, name: str, timeout: float | None, deadline: float
) -> NoReturn:
    """Raise that a model is not unloaded: never will be, or not in time."""
    if time.monotonic() < deadline:
        lost = _KEPT if lifecycle.keeps(name) else _python_backend.LOST
        raise InternalError(f"model {name!r}: it does not unload. {lost}")
    why = f". {_KEPT}" if lifecycle.keeps(name) else ""
    raise TimeoutError(f"model {name!r}: still not unloaded after {timeout:g} s{why}")


def unload(
    lifecycle: Lifecycle,
    name: str,
    *,
    dependents: bool,
    timeout: float | None,
    only: FunctionModel | None = None,
) -> None:
    """Unload a model and wait for it; `Server.unload` has the arguments.

    Args:
        lifecycle: The server's.
        name: The model's name.
        dependents: As of `Server.unload`.
        timeout: Likewise.
        only: Do nothing where the name stands for anything but this callable.

    C: ``TRITONSERVER_ServerUnloadModel``, ``TRITONSERVER_ServerUnloadModelAndDependents``
    """
    check_own_unload(lifecycle.functions, name)
    native_name = encode_name(name)
    context = f"model {name!r}"
    deadline = NEVER if timeout is None else time.monotonic() + timeout

    unload_model = (
        lib.TRITONSERVER_ServerUnloadModelAndDependents
        if dependents
        else lib.TRITONSERVER_ServerUnloadModel
    )

    def call() -> None:
        with turn(lifecycle, name, deadline):
            if only is not None and lifecycle.functions.get(name) is not only:
                return
            with lifecycle.use():
                server = lifecycle.handle()
                lifecycle.find_hidden(server, None if dependents else name)
                names = {name}
                if dependents:  # but for what was loaded by its own name, as functions are
                    names |= made_of(server, name).keys() - lifecycle.functions.keys()
                with lifecycle.showing(name):
                    patience = deadline - time.monotonic()
                    with lifecycle.letting_go(server, names, patience) as ready:
                        # The index tells of all models, and takes longer with each.
                        is_known = name in lifecycle.hidden or name in ready
                        is_known = is_known or any(
                            entry["name"] == name for entry in lifecycle.known(server, name)
                        )
                        check(unload_model(server, native_name), context)
                        if not is_known:
                            raise NotFoundError(f"{context}: there is none of that name to unload")
                    if not lifecycle.wait_unloaded(server, {name}, deadline):
                        _still_there(lifecycle, name, timeout, deadline)
                lifecycle.hidden.discard(name)
            lifecycle.configs.pop(name, None)
            function = lifecycle.functions.pop(name, None)
            if function is not None:
                lifecycle.retire(function)

    # `call` keeps to the time by itself, unless C does not.
    limit = None if timeout is None else timeout + _LATE_S
    what = f"unloading {context}"
    try:
        interruptible(call, what, timeout=limit)
    except TimeoutError as error:
        if not str(error).startswith(what):  # that of the call itself
            raise
        raise TimeoutError(f"{context}: still not unloaded after {timeout:g} s") from None
    _log.capture.forward()
