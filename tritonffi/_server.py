# SPDX-License-Identifier: Apache-2.0
"""The server: life cycle, repository, metadata, metrics. The top of the package."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tritonffi import _library, _load_input, _loading, _repository
from tritonffi._call import check_duration, json_object, out_bool, plain_text
from tritonffi._closing import Closing
from tritonffi._enums import ModelControlMode
from tritonffi._errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    TritonError,
    UnsupportedError,
    check_keywords,
)
from tritonffi._functions import FunctionModel, check_model_name
from tritonffi._lifecycle import Lifecycle
from tritonffi._metrics import metrics_text
from tritonffi._metrics_text import parse_metrics
from tritonffi._model import Model
from tritonffi._native import lib
from tritonffi._numbers import shown, whole
from tritonffi._options import ServerOptions
from tritonffi._statistics import read_statistics
from tritonffi._waiting import seconds_left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tritonffi._call import JSON
    from tritonffi._function_inputs import FindPins
    from tritonffi._functions import Function
    from tritonffi._metrics_text import MetricFamilySamples
    from tritonffi._native import CData
    from tritonffi._options import Path
    from tritonffi._statistics import ServerStatistics

logger = logging.getLogger("tritonffi")

_LATEST = -1
_LAST = 2**63 - 1
# How long the garbage collector waits for a server that it has found.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class ModelStatus:
    """What the model index says of one version of a model.

    Attributes:
        name: The model's name.
        version: Its version; None where none has been tried to load.
        state: ``READY``, ``LOADING``, ``UNLOADING``, ``UNAVAILABLE``, or empty: never loaded.
        reason: Why it is in that state.
    """

    name: str
    version: int | None
    state: str
    reason: str


class Server(Closing):
    """Triton in this process: finds the library, starts, and returns when it is ready.

    Use it in a ``with`` block or call `close`. Methods may be called from any thread. After a fork
    the child cannot use it.

    Example::

        with tritonffi.Server("models") as server:
            response = server.model("resnet50").infer({"image": batch})

    Args:
        model_repository: A folder of models, or several; None: only models that are loaded from
            a config or a Python callable.
        options: What else to start with.
        library: The libtritonserver file, or a folder that holds one. None looks where
            `LibraryNotFoundError` would say. One library a process.
        start_timeout: Seconds for the start; None: as long as it takes.
        fields: Fields of `ServerOptions`, over those in ``options``.

    Raises:
        LibraryNotFoundError: There is no library to load.
        TritonError: The server did not start; the message holds what Triton logged about it.
        TypeError: An option is of the wrong type, or there is no such option.
        TimeoutError: ``start_timeout`` is up.

    C: ``TRITONSERVER_ServerNew``
    """

    def __init__(
        self,
        model_repository: Path | Sequence[Path] | None = None,
        *,
        options: ServerOptions | None = None,
        library: Path | None = None,
        start_timeout: float | None = None,
        **fields: object,
    ) -> None:
        if options is not None and not isinstance(options, ServerOptions):
            raise TypeError(f"options must be ServerOptions, not {type(options).__name__}")
        if model_repository is not None:
            if "model_repository" in fields:
                raise TypeError("model_repository is given twice")
            fields["model_repository"] = model_repository
        check_duration(start_timeout, "start_timeout")
        check_keywords(fields, ServerOptions.__dataclass_fields__, "Server")
        self.options = dataclasses.replace(options or ServerOptions(), **fields)  # type: ignore[arg-type]
        self._lifecycle = Lifecycle(self.options, _library.load(library))
        # Before the start: a signal handler may raise when that is just over.
        self._finalizer = weakref.finalize(self, _forgotten, self._lifecycle)
        self._finalizer.atexit = False  # the process closes what is open by itself, silently
        self._lifecycle.start(start_timeout)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Server {self.options.server_id!r}, {state}>"

    @property
    def closed(self) -> bool:
        """Whether the server takes no calls any more."""
        return self._lifecycle.is_closed

    def close(self, timeout: float | None = None) -> None:
        """Stop the server: refuse new work, cancel what is in flight, unload, stop.

        Arrays, responses and inferences that are over stay valid. Closing twice is no error.

        Args:
            timeout: Seconds; None: the option ``exit_timeout``.

        Raises:
            TimeoutError: The time is up and a model has not let go: the message says which, and
                how many inferences it still has. Call again to try again.
            TritonError: Triton could not stop, and never will: it is left behind.

        C: ``TRITONSERVER_ServerStop``, ``TRITONSERVER_ServerDelete``
        """
        check_duration(timeout, "timeout")
        self._lifecycle.close(timeout)
        if self._lifecycle.is_over:  # and not where a handler has interrupted another close
            self._finalizer.detach()

    def is_live(self) -> bool:
        """Return whether the server runs.

        C: ``TRITONSERVER_ServerIsLive``
        """
        return self._ask(lib.TRITONSERVER_ServerIsLive)

    def is_ready(self) -> bool:
        """Return whether the server takes requests: by default, when all of its models are ready.

        C: ``TRITONSERVER_ServerIsReady``
        """
        return self._ask(lib.TRITONSERVER_ServerIsReady)

    def _ask(self, function: Callable[..., CData]) -> bool:
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            return out_bool(function, server, context=f"server {self.options.server_id!r}")

    def metadata(self) -> dict[str, JSON]:
        """Return the server's name, version and extensions.

        C: ``TRITONSERVER_ServerMetadata``
        """
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            return json_object(
                lib.TRITONSERVER_ServerMetadata,
                server,
                context=f"server {self.options.server_id!r}",
            )

    def models(self) -> list[ModelStatus]:
        """Return the model index: every model that the server knows of, and its state.

        C: ``TRITONSERVER_ServerModelIndex``
        """
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            entries = self._lifecycle.index(server)
        return [
            ModelStatus(
                name=entry["name"],
                version=int(entry["version"]) if entry.get("version") else None,
                state=entry.get("state", ""),
                reason=entry.get("reason", ""),
            )
            for entry in entries
        ]

    def model(self, name: str, version: int = _LATEST) -> Model:
        """Return a handle on a model, loaded or not.

        Args:
            name: The model's name.
            version: -1 is the latest, whichever that is when a request is made.
        """
        version = whole(version, "version")
        if version != _LATEST and not 0 <= version <= _LAST:
            text = f"version must be between 0 and 2**63 - 1, or -1: {shown(version)}"
            raise InvalidArgumentError(text)
        return Model(self, self._lifecycle, plain_text(name, "a model name"), version)

    def statistics(self) -> ServerStatistics:
        """Return Triton's counts of all models that are ready, by name.

        With ``model_namespacing`` that leaves out models whose name several repositories have.

        C: ``TRITONSERVER_ServerModelStatistics``
        """
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            reply = self._lifecycle.statistics(server)
        return read_statistics(reply)

    def metrics(self) -> str:
        """Return the metrics of the process, all servers together, as Prometheus text.

        C: ``TRITONSERVER_ServerMetrics``, ``TRITONSERVER_MetricsFormatted``
        """
        with self._lifecycle.use():
            server = self._lifecycle.handle()
            return metrics_text(server, f"server {self.options.server_id!r}")

    def metrics_dict(self) -> dict[str, MetricFamilySamples]:
        """Return the metrics of the process, all servers together, by name.

        C: ``TRITONSERVER_ServerMetrics``, ``TRITONSERVER_MetricsFormatted``
        """
        return parse_metrics(self.metrics())

    def load(
        self,
        name: str,
        config: Mapping[str, object] | None = None,
        files: Mapping[str, bytes | bytearray | memoryview] | None = None,
        *,
        timeout: float | None = None,
    ) -> Model:
        """Load a model, or load it anew, and return when it is ready.

        A loaded model of which neither config nor files have changed keeps its instances, but for
        those of the python backend whose process is dead: the whole model is made anew then.

        Args:
            name: The model's name: a folder in a model repository, unless ``config`` is all that
                the model needs.
            config: A model configuration to use in place of the repository's. Loads without one
                keep to it until the model is unloaded, or its files in a repository change.
            files: The model's files in place of all those in the repository, for this load:
                content by path below the model's folder, ``{"1/model.onnx": content}``. They make
                it anew, and need a ``config``. They are written to a temporary folder; those of a
                model that is in no repository stay there until the server is closed.
            timeout: Seconds to wait; the load goes on in the background.

        Loads and unloads of one model by several threads come one after the other.

        Raises:
            NotFoundError: It is in no model repository.
            TritonError: It did not load; the message holds what Triton logged about it.
            TimeoutError: ``timeout`` is up.

        C: ``TRITONSERVER_ServerLoadModel``, ``TRITONSERVER_ServerLoadModelWithParameters``
        """
        check_duration(timeout, "timeout")
        name = check_model_name(name)
        _repository.load(self._lifecycle, name, config, files, timeout)
        return self.model(name)

    def unload(self, name: str, *, dependents: bool = False, timeout: float | None = None) -> None:
        """Unload a model and return when it is unloaded.

        Args:
            name: The model's name.
            dependents: True: unload what the model is made of too (an ensemble's parts).
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            NotFoundError: There is no such model; one that is not loaded is no error.
            TritonError: Triton refused; it does where ``model_control_mode`` is not EXPLICIT.
            TimeoutError: ``timeout`` is up; the model unloads when its last request is done.

        C: ``TRITONSERVER_ServerUnloadModel``, ``TRITONSERVER_ServerUnloadModelAndDependents``
        """
        check_duration(timeout, "timeout")
        name = plain_text(name, "a model name")
        _loading.unload(self._lifecycle, name, dependents=dependents, timeout=timeout)

    def poll(self, *, timeout: float | None = None) -> None:
        """Look through the repositories for models that were added, changed or removed.

        In ``model_control_mode`` ``POLL`` only. Returns when what has changed is loaded or
        unloaded. A model that does not load is no error here: `models` and the log tell of it.

        Args:
            timeout: Seconds to wait; the polling goes on in the background.

        Raises:
            UnsupportedError: The server is in another mode.
            TimeoutError: ``timeout`` is up.

        C: ``TRITONSERVER_ServerPollModelRepository``
        """
        check_duration(timeout, "timeout")
        _repository.poll(self._lifecycle, timeout)

    def register_repository(
        self, path: Path, name_mapping: Mapping[str, str] | None = None
    ) -> None:
        """Add a model repository. Nothing of it is loaded before `load` is called.

        Args:
            path: A folder of models, or a URL that Triton knows.
            name_mapping: Names for models by their folder in there, for those that shall not be
                called as their folders are.

        Raises:
            InvalidArgumentError: There is no such folder, or the names are none.
            AlreadyExistsError: The repository is there already, or one of the names is taken.
            UnsupportedError: ``model_control_mode`` is not EXPLICIT.

        C: ``TRITONSERVER_ServerRegisterModelRepository``
        """
        _repository.register(self._lifecycle, path, name_mapping)

    def unregister_repository(self, path: Path) -> None:
        """Take a model repository away. What is loaded from it stays loaded.

        Args:
            path: As it was registered, or given at the start.

        Raises:
            InvalidArgumentError: There is no such repository.
            UnsupportedError: ``model_control_mode`` is not EXPLICIT.

        C: ``TRITONSERVER_ServerUnregisterModelRepository``
        """
        _repository.unregister(self._lifecycle, path)

    def load_function(
        self,
        name: str,
        function: Function,
        *,
        inputs: Mapping[str, tuple[str, Sequence[int]]],
        outputs: Mapping[str, tuple[str, Sequence[int]]],
        max_batch_size: int = 0,
        batch: bool = True,
        config: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Model:
        """Load a Python callable as a model of this server, in this process.

        Requests reach it through Triton's scheduler like those of any model. With
        ``max_batch_size`` above 0 and ``{"dynamic_batching": {}}`` in ``config``, requests that
        wait at the same time become one call.

        - A generator function makes a decoupled model, which is called for one request at a time:
          what it yields are the responses. It is closed when the request is cancelled.
        - A coroutine function or async generator runs in an event loop of the model's own. Its task
          is cancelled when all requests of the batch are.
        - A class gives each instance an object of its own, with ``__call__`` or ``execute``; an
          object is shared by all. Either may have ``initialize(config)`` and ``finalize()``
          (`tritonffi._function_target` has the whole rule).
        - All of them may call other models of the server. A model must not wait for itself, which
          is refused where it has one instance.

        Args:
            name: The model's name; it must not be one in a model repository.
            function: Called with one read-only ndarray for each input (object arrays of ``bytes``
                for BYTES), by keyword if it takes the names, otherwise by place or all in one dict
                (`tritonffi._calling` has the whole rule), and, if it has a parameter ``context``,
                with a `Context`. Where the model batches, the first axis is the whole batch.
                It returns a mapping of output name to array with as many rows, or a `Result` that
                holds one. What it raises becomes the error of exactly the requests of the batch.
            inputs: Data type and shape by name, ``{"a": ("FP32", [-1])}``, without the batch axis.
            outputs: The same for what it returns.
            max_batch_size: The longest batch; 0: no batch axis, one request a call.
            batch: False: one request a call, also where arrays have a batch axis.
            config: More of a model configuration, such as ``dynamic_batching``,
                ``instance_group`` (each instance is one Python thread) or ``parameters``.
            timeout: Seconds to wait for objects to be made and for the load.

        Returns:
            The model, ready.

        Raises:
            TypeError, InvalidArgumentError: The description is wrong.
            AlreadyExistsError: A model repository has a model of that name.
            TritonError: Triton refused the model; the message holds what it logged.
            Exception: What the callable raised while a warm-up ran, or a class while it was made.
                After a failed warm-up no model of that name is left, also where there was one;
                all other failures leave it as it was.
            TimeoutError: ``timeout`` is up. A load that Triton has begun goes on: where there was a
                model of that name, the new one serves in its place when it is through.

        C: ``TRITONSERVER_ServerLoadModelWithParameters`` and, behind it, the ``TRITONBACKEND_``
        entry points in ``csrc/backend.c``.
        """
        if self.options.model_control_mode is not ModelControlMode.EXPLICIT:
            raise UnsupportedError(
                f"model {name!r}: callables are loaded in model_control_mode EXPLICIT only, "
                f"not {self.options.model_control_mode.name}"
            )
        check_duration(timeout, "timeout")
        name = check_model_name(name)
        if _repository.is_in_repositories(self._lifecycle, name):
            raise AlreadyExistsError(f"model {name!r} is in a model repository")
        model = FunctionModel(
            name,
            function,
            inputs=inputs,
            outputs=outputs,
            max_batch_size=max_batch_size,
            batch=batch,
            config=config,
            find_pins=_pins_of(weakref.ref(self._lifecycle)),
        )
        lifecycle = self._lifecycle
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            text = _load_input.config_text(name, model.config)
            model.start(timeout)
            left = seconds_left(deadline)
            prepare = partial(
                _repository.new_version, lifecycle, name, text, is_new=model.is_cached
            )
            _loading.load_with(lifecycle, name, prepare, left, model)
        except BaseException as error:
            model.leave(error)
            raise
        return self.model(name)


def _pins_of(reference: weakref.ref[Lifecycle]) -> FindPins:
    """Return what finds the inputs of a server's inferences, and does not keep the server."""

    def find(native: CData, key: int) -> object:
        lifecycle = reference()
        queues = () if lifecycle is None else (lifecycle.queue, *list(lifecycle.queues))
        for queue in queues:
            if queue.native == native and (inference := queue.in_flight.get(key)) is not None:
                return inference.pins
        return None

    return find


def _forgotten(lifecycle: Lifecycle) -> None:
    """Close a server that was dropped without `close`, or whose close has not come to its end.

    On a thread of its own: the garbage collector runs in whatever thread, which may hold a lock
    that the close needs, or a thread that it waits for. So it is not waited for to its end, either.
    """
    if lifecycle.is_over:
        return
    try:
        if not lifecycle.is_closed:
            warnings.warn(
                f"server {lifecycle.name!r} was not closed: use 'with' or call close()",
                ResourceWarning,
                stacklevel=2,
            )
    finally:  # also where warnings are errors
        closing = threading.Thread(
            target=_close,
            args=(lifecycle,),
            name="tritonffi: closing garbage",
            daemon=True,
        )
        with suppress(RuntimeError):  # the process ends, and closes by itself what is open
            closing.start()
            closing.join(_PATIENCE_S)


def _close(lifecycle: Lifecycle) -> None:
    try:
        lifecycle.close()
    except (TimeoutError, TritonError) as error:
        logger.error("a server was dropped, and does not close: %s", error)  # noqa: TRY400
