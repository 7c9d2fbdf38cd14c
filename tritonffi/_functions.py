# SPDX-License-Identifier: Apache-2.0
"""
Python callables as models: the Python side of csrc/backend.c.

Triton collects requests into a batch and calls the backend, which is this very extension. There, in
C, the inputs of the batch are gathered and handed to one of the model's workers, a Python thread
that sits in `tffi_function_next` without the GIL. It calls the callable with arrays over the
gathered memory, which is the batch's own and lives as long as any array over it, and hands the
results back to C, where each request gets its rows; the same call waits for the next batch, so that
there is one exchange of the GIL for each (csrc/linger.c tells what Triton does meanwhile). A
failure is the answer to exactly the requests of its batch; the worker goes on.

What the callable is called with is told in `_calling`, what it may return in `_function_results`,
what else may stand in its place in `_function_target`; `_function_serving` is one call of it.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeAlias, cast

from tritonffi._call import encode, interruptible, take_error
from tritonffi._errors import ClosedError, TritonError, UnavailableError, UnsupportedError, note
from tritonffi._forks import Origin
from tritonffi._function_config import check_model_name, function_config
from tritonffi._function_errors import error_text, persist
from tritonffi._function_inputs import InputReader
from tritonffi._function_results import ResultWriter
from tritonffi._function_serving import OwnCall, Serving, logger, own_call
from tritonffi._function_target import SupportsExecute, Target
from tritonffi._limits import check_threads
from tritonffi._native import ffi, lib
from tritonffi._waiting import seconds_left

if TYPE_CHECKING:
    from tritonffi._function_config import Declarations
    from tritonffi._function_inputs import FindPins
    from tritonffi._function_target import Instance
    from tritonffi._native import CData

Function: TypeAlias = Callable[..., object] | SupportsExecute

__all__ = ["FunctionModel", "check_model_name"]

#: Seconds that `close` waits for workers to leave.
_JOIN_TIMEOUT = 1.0


class FunctionModel:
    """
    A callable with the model config that makes Triton call it.

    The order is: make it, `start`, have Triton load `config`, `loaded`; in the end have Triton
    unload it, and `close`. A model that is loaded anew under its name is a new FunctionModel.

    Attributes:
        name: The model's name.
        config: The complete model config.
        token: What the config's parameter ``tritonffi.token`` says.
        instances: How many calls may run at a time.
        is_closed: Whether Triton can make no model of it (any more).
        is_cached: Whether Triton may answer in its place what it has answered before.
    """

    def __init__(
        self,
        name: str,
        function: Function,
        inputs: Declarations,
        outputs: Declarations,
        *,
        max_batch_size: int = 0,
        batch: bool = True,
        config: Mapping[str, object] | None = None,
        find_pins: FindPins = lambda _queue, _key: None,
    ) -> None:
        """
        Check everything that can be checked without Triton.

        Args:
            name: The model's name, one component of a path.
            function: The callable; `_calling` says how it is called.
            inputs: Name to data type, such as "FP32", and dimensions without the batch axis; -1 is
                any size.
            outputs: Likewise.
            max_batch_size: 0: each request is a call of its own. Otherwise arrays have a first axis
                of up to so many rows, along which requests are stacked.
            batch: False: no stacking, each request is a call of its own, with its rows.
            config: Whatever else the model config shall hold. Entries of `input` and `output` are
                merged into the declared ones of their names.
            find_pins: Finds what holds the inputs of an inference of the server's, which are lent
                to the callable then.

        Raises:
            TypeError: An argument is of the wrong type, or the callable does not take the inputs.
            InvalidArgumentError: A name, data type, dimension or part of the config is impossible.
            UnsupportedError: The config, or the kind of callable, is not supported.
        """
        if not isinstance(batch, bool):
            raise TypeError(f"model {name!r}: batch must be a bool, not {type(batch).__name__}")
        target = Target(function, f"model {name!r}")
        self._find_pins = find_pins
        self._is_decoupled = target.is_decoupled
        made = function_config(
            name, inputs, outputs, max_batch_size, config, decoupled=self._is_decoupled
        )
        self.name = name
        target.bind(made.inputs)
        self._target: Target | None = target
        self._inputs = made.inputs
        self._writer = ResultWriter(made.outputs, is_batching=made.is_batching)
        self.instances = made.instances
        self._workers: set[threading.Thread] = set()
        self._busy: set[threading.Thread] = set()
        self._lock = threading.RLock()  # again by the same thread: where a callable's end closes
        self._is_abandoned = False
        self.is_closed = False
        self._inside = 0
        self._plain_config = made.config
        self.is_cached = made.is_cached
        self._warm_up_error: BaseException | None = None
        self._belongs_to_triton = False  # from the beginning of its load on
        self._is_left = False
        self._origin = Origin()

        input_names = [ffi.new("char[]", declared.name.encode()) for declared in made.inputs]
        specs = ffi.new("tffi_tensor[]", len(input_names))
        for index, declared in enumerate(made.inputs):
            specs[index].name = input_names[index]
            specs[index].dim_count = len(declared.shape) + made.is_batching
        c_name = ffi.new("char[]", encode(name, "a model's name"))
        spec = ffi.new(
            "tffi_function_spec *",
            {
                "model_name": c_name,
                "inputs": specs,
                "warm_up_calls": made.warm_up_calls,
                "input_count": len(input_names),
                "worker_count": made.instances,
                "max_batch_size": max_batch_size if "dynamic_batching" in made.config else 0,
                "batching": made.is_batching,
                "stacking": made.is_batching and batch and not self._is_decoupled,
                "decoupled": self._is_decoupled,
                "describing": target.wants_context,
            },
        )
        token = ffi.new("uint64_t *")
        # First the owner and then the function, or a signal handler that raises could lose it.
        self._owner = ffi.gc(ffi.new("tffi_function **"), lib.tffi_function_release)
        lib.tffi_function_new(spec, token, self._owner)
        if not self._owner[0]:
            raise MemoryError(f"model {name!r}: no memory for one more function model")
        self._function: CData | None = self._owner[0]
        self.token = int(token[0])
        self.config = made.with_token(self.token)

    def start(self, timeout: float | None = None) -> None:
        """
        Start the worker threads and have each initialize what it calls, one after the other.

        Before the load: a warm-up calls the function inside it.

        Args:
            timeout: Seconds for all of it; None: as long as it takes.

        Raises:
            Exception: What a class, or `initialize`, raised.
            TimeoutError: The time is up.
            UnavailableError: There can be no more threads; Triton has one for each instance too.
        """
        try:
            # On a thread that gets no signals: a worker that runs is known, or it could be robbed.
            interruptible(lambda: self._start(timeout), f"initializing model {self.name!r}")
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, (TritonError, TimeoutError)):
                note(error, f"while model {self.name!r} was initialized")
            self.drop(error)
            raise

    def _start(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        for number in range(self.instances):
            ready: Future[None] = Future()
            worker = threading.Thread(
                target=self._work,
                args=(number, ready),
                name=f"tritonffi: {self.name} #{number}",
                daemon=True,
            )
            with self._lock:
                if self.is_closed:
                    raise ClosedError(f"model {self.name!r}: nobody waits for it any more")
                try:
                    worker.start()
                except RuntimeError as error:
                    raise UnavailableError(
                        f"model {self.name!r}: this process can start no more threads, of which a "
                        "function has one for each instance"
                    ) from error
                self._workers.add(worker)
                self._inside += 1
            self._wait_initialized(ready, seconds_left(deadline))
        check_threads(self.instances, f"model {self.name!r}:")

    def _wait_initialized(self, ready: Future[None], timeout: float | None) -> None:
        try:
            if not wait([ready], timeout).done:
                raise TimeoutError(f"model {self.name!r}: it was not initialized in time")
            ready.result()
        finally:
            del ready  # or the exception would hold itself, and what it was raised in

    def loaded(self) -> None:
        """
        Tell that Triton has loaded the model.

        A warm-up that fails would crash Triton: it is answered as if it had not, and raised here.

        Raises:
            Exception: What the callable raised in the warm-up. The model must be unloaded.
            TritonError: Something else failed in it.
        """
        with self._lock:
            if self._function is None:
                return
            error = lib.tffi_function_set_loaded(self._function)
        cause, self._warm_up_error = self._warm_up_error, None
        if not error:
            return
        if not isinstance(cause, Exception):
            raise self._warm_up_failure(error) from cause
        take_error(error)  # the same in Triton's form
        note(cause, f"in the warm-up of model {self.name!r}, during its load")
        try:
            raise cause
        finally:
            del cause  # or it and this frame would hold each other, and the callable's arrays

    def _warm_up_failure(self, error: CData) -> TritonError:
        failure = take_error(error)
        model = f"model {self.name!r}"
        text = str(failure).removeprefix(f"{model}: ")
        failure.args = (f"{model}, warm-up: {text}",)
        return failure

    def abandon(self) -> int:
        """
        Give up what the callable has not finished: its requests are answered with an error.

        Returns:
            How many batches that were.
        """
        with self._lock:
            if self._function is None:
                return 0
            self._is_abandoned = True
            return int(lib.tffi_function_abandon(self._function))

    def drop(self, error: BaseException) -> None:
        """Let a model go whose start or load came to nothing; at once after Ctrl-C or a timeout."""
        self.abandon()
        is_waited_for = isinstance(error, Exception) and not isinstance(error, TimeoutError)
        self.close(_JOIN_TIMEOUT if is_waited_for else 0)

    def begin_load(self) -> bool:
        """Be about to be loaded by Triton; False: nobody wants it any more."""
        with self._lock:
            self._belongs_to_triton = not self.is_closed
            return self._belongs_to_triton

    def fail_load(self, error: BaseException) -> None:
        """Have not been loaded; whoever has left meanwhile does not let it go any more."""
        with self._lock:
            self._belongs_to_triton = False
            is_left = self._is_left
        if is_left:
            self.drop(error)

    def leave(self, error: BaseException) -> None:
        """Let it go, unless Triton has it, or is about to: it would fail to load for want of it."""
        with self._lock:
            self._is_left = True
            belongs_to_triton = self._belongs_to_triton
        if not belongs_to_triton:
            self.drop(error)

    def is_executing(self) -> bool:
        """Return whether an instance of the model is in the middle of a call, as Triton sees it."""
        with self._lock:
            function = self._function
            return function is not None and lib.tffi_function_executing(function) > 0

    def close(self, timeout: float = _JOIN_TIMEOUT, *, for_calls: bool = True) -> bool:
        """
        Have the workers leave, which they do as soon as Triton has let the model go.

        Where a call still runs then, its worker leaves after it; if it never ends, the worker ends
        with the process. It may be called again.

        Args:
            timeout: How many seconds to wait for them. After `abandon`, those in a call are not
                waited for.
            for_calls: Whether those in a call are waited for before that.

        Returns:
            Whether all have left.
        """
        target = self._target  # whose finalizer shall not run in the lock
        with self._lock:
            self.is_closed = True
            if self._function is not None:
                lib.tffi_function_close(self._function)
            workers = self._workers - {threading.current_thread()}
            self._release_if_over()
        del target
        deadline = time.monotonic() + timeout
        for worker in workers:
            if worker not in self._busy or (for_calls and not self._is_abandoned):
                worker.join(max(0.0, deadline - time.monotonic()))
        return self._function is None

    def _release_if_over(self) -> None:
        """Let the C function and the callable go, once nobody is left to use them; in the lock."""
        if self.is_closed and not self._workers and self._function is not None:
            self._function = None
            self._target = None
            lib.tffi_function_release(self._owner)

    def _work(self, number: int, ready: Future[None]) -> None:
        """
        Serve the batches of one instance until there will be no more: what a worker thread does.

        The workers keep this object and the C function, and neither of these keeps the server.

        A child that is forked in here has this thread alone. It leaves without a word: those who
        wait for it, and those who hold the locks, are in the parent.

        Args:
            number: Of the instance.
            ready: Told when the instance is initialized, or why it is not.
        """
        with self._lock:  # until `start` has entered this worker
            target = self._target
        instance = None
        try:
            try:
                instance = cast("Target", target).enter(self._plain_config)
                serving = self._serving(number, instance)
            except BaseException as error:  # noqa: BLE001 -- it is raised where the model is loaded
                if not self._origin.is_left():
                    ready.set_exception(error)
            else:
                if not self._origin.is_left():
                    ready.set_result(None)
                    self._serve_all(number, serving)
        finally:
            del ready
            if not self._origin.is_left():
                self._leave(instance)

    def _serving(self, number: int, instance: Instance) -> Serving:
        stop_lending = functools.partial(lib.tffi_function_stop_lending, self._function)
        return Serving(
            self,
            number,
            instance,
            reader=InputReader(self.name, self._inputs, self._find_pins, stop_lending),
            writer=self._writer,
            note_warm_up=self._note_warm_up,
            busy=self._busy,
        )

    def _serve_all(self, number: int, serving: Serving) -> None:
        function = self._function
        batch = ffi.new("tffi_batch **")

        def serve() -> bool:
            if self._origin.is_left():
                return True
            # Whatever came out of there is a failure to tell of a failure; or another thread has
            # thrown it into this one, too late for the call that it was meant for.
            serving.recover(batch)
            serving.serve(batch)
            while (
                not self._origin.is_left()
                and lib.tffi_function_next(function, number, -1, batch) == lib.TFFI_WAIT_READY
            ):
                serving.serve(batch)
            return True

        persist(serve)
        own_call.set(OwnCall(self))  # in which the end of the instance runs

    def _note_warm_up(self, error: BaseException) -> None:
        if self._warm_up_error is None:
            self._warm_up_error = error

    def _leave(self, instance: Instance | None) -> None:
        """Finalize what this worker calls, and what all shared, if it is the last one."""
        target = cast("Target", self._target)
        with self._lock:
            self._inside -= 1
            is_last = self._inside == 0
        try:
            if instance is not None:
                self._finalize(target.leave, instance)
            if is_last and not self._origin.is_left():
                self._finalize(target.close)
        finally:
            if not self._origin.is_left():
                with self._lock:
                    self._workers.discard(threading.current_thread())
                    self._release_if_over()

    def _finalize(self, finalize: Callable[..., None], *arguments: Instance) -> None:
        try:
            finalize(*arguments)
        except BaseException as error:  # noqa: BLE001 -- nobody waits for it
            message = f"model {self.name!r}: finalize: {error_text(error, self.name)}"
            logger.log(logging.ERROR, "%s", message, exc_info=error)


def is_own_call(name: str) -> bool:
    """Say whether it is the callable of a model of this name that runs in this thread, or task."""
    model = own_call.get().model
    return model is not None and model.name == name


def check_own_unload(functions: Mapping[str, FunctionModel], name: str) -> None:
    """
    Refuse to unload a model in its own callable: that would wait for the very call.

    Args:
        functions: The function models of the server that is asked.
        name: The model to be unloaded.

    Raises:
        UnsupportedError: It is the one whose callable runs.
    """
    model = own_call.get().model
    if model is not None and functions.get(name) is model:
        raise UnsupportedError(
            f"model {name!r}: its function unloads the model itself, which would wait for that "
            "very call for ever"
        )


def check_own_call(functions: Mapping[str, FunctionModel], name: str) -> None:
    """
    Refuse to wait for a model in its own callable, where that would be for ever.

    Args:
        functions: The function models of the server that is asked.
        name: The model that is asked.

    Raises:
        UnsupportedError: The only instance of the model would wait for itself.
    """
    model = own_call.get().model
    if model is None or model.name != name or functions.get(name) is not model:
        return
    if model.instances == 1:
        raise UnsupportedError(
            f"model {name!r}: its function calls the model itself, whose only instance is busy "
            "with that very call, and would wait for ever; give it more instances (config: "
            "instance_group), or call the function"
        )
