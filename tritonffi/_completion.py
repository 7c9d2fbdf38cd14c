# SPDX-License-Identifier: Apache-2.0
"""Inferences in flight, and the queue through which their completions come back.

The way of the data, as Python sees it (``csrc/tritonffi.h`` tells the C side):

1. ``_request`` describes the call in C structs over pinned memory and submits it. The `Inference`
   is in the queue's ``in_flight`` table before that, and holds the pins.
2. Triton's threads do the work. They push completions in C and never wait for Python.
3. Whoever wants a result waits in C, without the GIL, for completions of that inference alone.
4. Completions come out as a C list. Each is delivered to its inference through the table, read
   into plain data (`_response.read`) and freed.
5. The last one is marked ``done``: Triton is through with the request. Only then are the pins
   dropped, on the Python thread that read it, and the inference leaves the table.

Several threads may take completions of one inference. Their numbers say in which order they count
(`Inference.deliver`), so that the last one is the last whichever thread is faster.

Inferences that the caller has dropped stay in the table until their completion has been taken;
each submit, result and close takes what is ready (`CompletionQueue.drain`), so they do not pile up.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tritonffi._closing import Unique
from tritonffi._errors import ClosedError, InternalError, InvalidArgumentError, TritonError
from tritonffi._native import ffi, lib
from tritonffi._response import Response, read
from tritonffi._waiting import GLANCE_NS, LONG_S, PATIENCE_S, is_within, slice_ns

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from tritonffi._native import CData
    from tritonffi._output import Wanted
    from tritonffi._submission import Submission

_LIST = ffi.typeof("tffi_completion **")
_READY = lib.TFFI_WAIT_READY
_TIMEOUT = lib.TFFI_WAIT_TIMEOUT
_GONE = lib.TFFI_WAIT_GONE
_WOKEN = lib.TFFI_WAIT_WOKEN


def _token_of(inference: Inference) -> int:
    """Return the token; also where a signal came between its making and its storing."""
    submission = inference.submission
    if inference.token or submission is None:
        return inference.token
    return submission.token(inference.key)


def _is_underway(inference: Inference) -> bool:
    """Return whether it may be about to be submitted, or was just refused."""
    submission = inference.submission
    return submission is not None and submission.begun and not inference.is_over


AnyInference = TypeVar("AnyInference", bound="Inference")

#: Makes an inference of queue, model name, request id, timeout and pins.
Make: TypeAlias = "Callable[[CompletionQueue, str, str, float | None, list[CData]], AnyInference]"


class CompletionQueue:
    """Where the completions of a group of inferences arrive.

    Attributes:
        native: The ``tffi_queue *``; one reference to it is this object's.
        in_flight: Every inference that is submitted and not over, by key.
        ready: Where C counts the inferences that have something to be taken and nobody waiting.
        wakes: Where C counts how often those who wait were woken without a completion.
        next_key: Makes the key of the next one. Keys are never used again.
        early: What came of completions that were delivered before an earlier one of the same
            inference, by key and number.
        left: The server's queues at which nobody may be waiting any more.
        is_given_up: Whether the server stopped waiting for what is still in flight.
        reason: Why it did, for those who go on waiting.
    """

    __slots__ = (
        "_is_left",
        "early",
        "in_flight",
        "is_given_up",
        "left",
        "native",
        "next_key",
        "ready",
        "reason",
        "wakes",
    )

    def __init__(self) -> None:
        native = lib.tffi_queue_new()
        if native == ffi.NULL:
            raise MemoryError("no memory for a completion queue")
        # Let go of with the last user of this object: another thread may be about to call with it.
        self.native = ffi.gc(native, lib.tffi_queue_release)
        self.ready = lib.tffi_queue_ready(self.native)
        self.wakes = lib.tffi_queue_wakes(self.native)
        self.in_flight: dict[int, Inference] = {}
        self.early: dict[tuple[int, int], tuple[Response | TritonError | None, bool]] = {}
        self.next_key = itertools.count(1).__next__
        self.is_given_up = False
        self.reason = "the server was closed meanwhile"
        self._is_left = False
        self.left: dict[CompletionQueue, None] = {}

    def drain(self) -> None:
        """Deliver what is ready and not waited for, without waiting."""
        if self.ready[0]:
            self._collect(lib.tffi_queue_wait, self.native, self.wakes[0], 0)

    def wait(self, inference: Inference, deadline: float | None, wakes: int | None = None) -> bool:
        """Wait until something came for the inference.

        Args:
            inference: One of this queue's.
            deadline: On the clock of ``time.monotonic``; None is no deadline.
            wakes: What ``wakes[0]`` was before the caller saw a need to wait; None: it has looked
                at nothing but what is looked at here.

        Returns:
            False when the deadline passed first. True also where the waiter was only woken up.
        """
        token = _token_of(inference)
        if wakes is None:
            wakes = self.wakes[0]
        gone = 0.0  # since when
        while not inference.is_over:
            if self.is_given_up:
                raise ClosedError(f"model {inference.model_name!r}: {self.reason}")
            timeout_ns = slice_ns(deadline)
            result = self._collect(lib.tffi_inference_wait, token, wakes, timeout_ns)
            if result == _READY:
                return True
            if result == _TIMEOUT and timeout_ns == 0:
                return False
            if result == _WOKEN and not self.is_given_up:
                return True
            if result == _GONE and not inference.is_over:
                # Another thread has taken the completions and is about to deliver them: it needs
                # the GIL for that. Or it is being submitted, and has no token yet.
                now = time.monotonic()
                if timeout_ns >= 0 and deadline is not None and now >= deadline:
                    return False
                gone = gone or now
                if now - gone > LONG_S and is_within(CompletionQueue._collect, self):
                    raise InternalError(
                        f"model {inference.model_name!r}: a signal handler or a finalizer waits "
                        "for a result that the code which it has interrupted was about to take"
                    )
                time.sleep(0)
                token = _token_of(inference)
        return True

    def wait_any(self, deadline: float | None, wakes: int) -> bool:
        """Wait until something came for any inference that nobody waits for by itself.

        Args:
            deadline: On the clock of ``time.monotonic``; None is no deadline.
            wakes: What ``wakes[0]`` was before the caller saw a need to wait.

        Returns:
            False when the deadline passed first. True also where the waiter was only woken up.
        """
        while not self.is_given_up:
            timeout_ns = slice_ns(deadline)
            result = self._collect(lib.tffi_queue_wait, self.native, wakes, timeout_ns)
            if result in (_READY, _WOKEN):
                return True
            if result == _TIMEOUT and timeout_ns == 0:
                return False
        raise ClosedError(self.reason)

    def settle(self, deadline: float) -> bool:
        """Wait until nothing is in flight; False when the deadline passed first.

        Who waits here meanwhile for any completion is woken at the end. That may be tried again
        after `give_up`.
        """
        self.is_given_up = False
        try:
            return self._settle(deadline)
        finally:
            lib.tffi_queue_wake(self.native)

    def _settle(self, deadline: float) -> bool:
        patience = min(deadline, time.monotonic() + PATIENCE_S)
        for inference in list(self.in_flight.values()):
            while not inference.is_over:
                if _token_of(inference):
                    until = patience if inference.is_through() else deadline
                    if not self.wait(inference, until):
                        if not inference.is_through():
                            return False
                        break  # whoever has taken its end will deliver it
                elif not _is_underway(inference):
                    break  # it will be refused if the server is closed
                else:
                    # Another thread is about to submit it, or was interrupted right after.
                    if time.monotonic() >= deadline:
                        return False
                    self._collect(lib.tffi_queue_wait, self.native, self.wakes[0], GLANCE_NS)
        return True

    def is_submitting(self) -> bool:
        """Return whether a thread may be about to give the server's handle to Triton."""
        return any(
            _is_underway(one) and not _token_of(one) for one in list(self.in_flight.values())
        )

    def leave(self) -> None:
        """Say that nobody waits here any more, so that others take what still comes."""
        self._is_left = True
        self.left[self] = None
        lib.tffi_queue_wake(self.native)

    def is_left(self) -> bool:
        """Return whether nobody waits here any more."""
        return self._is_left

    def give_up(self) -> None:
        """Make everyone who waits here, now or later, raise ClosedError."""
        self.is_given_up = True
        lib.tffi_queue_wake(self.native)

    def close(self) -> None:
        """Drop what is there and what still comes; who waits raises ClosedError."""
        self.is_given_up = True
        lib.tffi_queue_close(self.native)

    def _collect(self, wait: CData, whose: CData, wakes: int, timeout_ns: int) -> int:
        """Call one of the two C waits and deliver what it took.

        What was taken stands in `out` and is delivered in ``finally``: a signal handler that
        raises as soon as the call returns must not lose it.
        """
        out = ffi.new(_LIST)
        try:
            result: int = wait(whose, wakes, timeout_ns, out)
        finally:
            first = out[0]
            if first:
                try:
                    self._deliver(first)
                finally:
                    lib.tffi_completion_free(first)
        return result

    def _deliver(self, following: CData) -> None:
        """Deliver the completions of a list."""
        in_flight = self.in_flight
        try:
            while following:
                completion = following
                following = completion.next
                inference = in_flight.get(completion.key)
                if inference is not None:
                    inference.deliver(completion)
        finally:
            if following:  # a signal handler has raised: the others come to theirs all the same
                self._deliver(following)


class Inference(Unique):
    """A submitted request: ask it for the result, wait for it, or cancel it.

    An inference that is dropped goes on; its inputs stay pinned and its result is discarded.
    Methods may be called from any thread.

    Attributes:
        model_name: The model that was asked.
        request_id: The id given with the request.
        is_over: Whether the last response is there and Triton is through with the inputs.
        pins: The addresses of the inputs, each of which keeps its memory, until it is over.
        token: The C handle; harmless when it is stale.
        submission: How it comes to Triton; None: nothing was done for it yet.
        wanted: What is wanted of the outputs, until it is over; None: nothing special.

    C: ``TRITONSERVER_ServerInferAsync``
    """

    __slots__ = (
        "_arrived",
        "_outcomes",
        "_timeout",
        "deadline",
        "is_over",
        "key",
        "model_name",
        "pins",
        "queue",
        "request_id",
        "submission",
        "token",
        "wanted",
    )

    #: How many responses may wait to be read; 0: any number.
    max_pending = 0

    def __init__(
        self,
        queue: CompletionQueue,
        model_name: str,
        request_id: str,
        timeout: float | None,
        pins: list[CData],
    ) -> None:
        """Stand in the table of inferences in flight, holding the pins; before the submission."""
        self.model_name = model_name
        self.request_id = request_id
        self.is_over = False
        self.token = 0
        self.submission: Submission | None = None
        self.queue = queue
        self.pins: list[CData] | None = pins
        self._outcomes: list[Response | TritonError] | deque[Response | TritonError] = []
        self._arrived = 0
        self.wanted: Wanted | None = None
        self._timeout = timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.key = key = queue.next_key()
        queue.in_flight[key] = self

    def leave(self) -> None:
        """Be over: Triton has given the inputs back, or never took them."""
        self.pins = self.wanted = None
        self.is_over = True
        self.queue.in_flight.pop(self.key, None)

    def deliver(self, completion: CData) -> None:
        """Take a completion of this inference: read the response, note the end."""
        outcome: Response | TritonError | None = None
        is_whole = completion.whole
        if is_whole or completion.has_response:
            try:
                outcome = read(completion, self.model_name, self.request_id, self.wanted)
            except BaseException:  # a signal handler's
                outcome = InternalError(
                    f"model {self.model_name!r}: the reading of a response was interrupted"
                )
                self._arrive(completion.number, outcome, completion.done)
                raise
            if is_whole:
                self._outcomes.append(outcome)
                self.leave()
                return
        self._arrive(completion.number, outcome, completion.done)

    def _arrive(self, number: int, outcome: Response | TritonError | None, done: bool) -> None:  # noqa: FBT001
        """Note what came of the completion of a number, after all those before it."""
        if number == self._arrived:
            if outcome is not None:
                self._outcomes.append(outcome)
            self._arrived = number + 1
            if done:
                self.leave()
        else:
            # Another thread has taken an earlier one and not yet delivered it.
            self.queue.early[self.key, number] = (outcome, done)
        while self.queue.early:
            # Popping decides which thread goes on where both could.
            following = self.queue.early.pop((self.key, self._arrived), None)
            if following is None:
                break
            outcome, is_last = following
            if outcome is not None:
                self._outcomes.append(outcome)
            self._arrived += 1
            if is_last:
                self.leave()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over.

        Args:
            timeout: Seconds; None waits for as long as it takes, or until the request's own
                ``timeout`` is up.

        Returns:
            Whether it is over.

        Raises:
            TimeoutError: The request's own ``timeout`` is up; it has been cancelled.
            ClosedError: The server was closed and gave up waiting for the model.
        """
        if self.is_over:
            return True
        # With what came of others: one call of C takes all of it.
        self.queue.drain()
        limit = None if timeout is None else time.monotonic() + timeout
        deadline = self.deadline
        if limit is not None and (deadline is None or limit < deadline):
            deadline = limit
        while not self.is_over:
            if not self.queue.wait(self, deadline):
                self.check_deadline()
                return False
        return True

    def check_deadline(self) -> None:
        """Cancel the request and raise TimeoutError if its own ``timeout`` is up."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.cancel()
            raise TimeoutError(
                f"model {self.model_name!r}: no result within {self._timeout:g} seconds; "
                "the request was cancelled"
            )

    def result(self, timeout: float | None = None) -> Response:
        """Wait for the response and return it; again and again, if called again.

        Args:
            timeout: Seconds to wait; None: as long as it takes. When they are up the inference
                goes on, and may be asked again. (The ``timeout`` given with the request is
                another one: it cancels.)

        Raises:
            TritonError: The inference failed; the class says how. CancelledError: it was cancelled.
            TimeoutError: The time is up.
            InvalidArgumentError: A decoupled model sent no response, or several.
        """
        if not self.is_over and not self.wait(timeout):
            raise TimeoutError(
                f"model {self.model_name!r}: no result within {timeout:g} seconds; it goes on"
            )
        outcomes = self._outcomes
        if len(outcomes) != 1:
            raise InvalidArgumentError(
                f"model {self.model_name!r}: sent {len(outcomes)} responses where one was "
                "expected: stream() gives any number of them"
            )
        outcome = outcomes[0]
        if isinstance(outcome, TritonError):
            raise outcome
        return outcome

    def is_done(self) -> bool:
        """Return whether the last response has been delivered; without looking for it."""
        return self.is_over

    def done(self) -> bool:
        """Return whether `result` would return or raise at once."""
        if not self.is_over:
            self.queue.wait(self, time.monotonic())
        return self.is_over

    def is_through(self) -> bool:
        """Return whether Triton has nothing to do with it (any more), taken news or not."""
        token = _token_of(self)
        return bool(lib.tffi_inference_is_over(token)) if token else not _is_underway(self)

    def cancel(self) -> bool:
        """Ask Triton to give the inference up.

        Queues and models look at this when they can; some run to their end all the same. The
        result is then a CancelledError, or the response after all.

        Returns:
            False: it is over already.

        C: ``TRITONSERVER_InferenceRequestCancel``
        """
        return bool(lib.tffi_inference_cancel(_token_of(self)))

    def wake(self) -> None:
        """Wake the tasks that wait for it; where there is an event loop there may be some."""

    def orphan(self) -> None:
        """Be given up, because those who waited are gone."""
        self.cancel()

    def is_cancelled(self) -> bool:
        """Return whether `cancel` was called while it was in flight.

        C: ``TRITONSERVER_InferenceRequestIsCancelled``
        """
        return bool(lib.tffi_inference_is_cancelled(_token_of(self)))

    def __repr__(self) -> str:
        state = "over" if self.is_over else "in flight"
        return f"<Inference of {self.model_name!r}, {state}>"


def finish(inference: Inference) -> Response:
    """Wait for the result; whoever does not wait to the end cancels."""
    try:
        return inference.result()
    except BaseException:
        # Ctrl-C, above all. Without effect where the inference is over.
        if not inference.is_over:
            inference.cancel()
        raise
