# SPDX-License-Identifier: Apache-2.0
"""Inferences in flight: one object for each, which `_completion` has in its table."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tritonffi._call import check_duration
from tritonffi._closing import Unique
from tritonffi._errors import (
    CancelledError,
    ClosedError,
    InternalError,
    InvalidArgumentError,
    TritonError,
    anew,
)
from tritonffi._native import lib
from tritonffi._response import Response, read

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Mapping

    from tritonffi._completion import CompletionQueue
    from tritonffi._native import CData
    from tritonffi._submission import Submission
    from tritonffi._terms import Terms

AnyInference = TypeVar("AnyInference", bound="Inference")

#: Makes an inference of queue, terms and pins.
Make: TypeAlias = "Callable[[CompletionQueue, Terms, list[CData]], AnyInference]"


class Inference(Unique):
    """A submitted request: ask it for the result, wait for it, or cancel it.

    An inference that is dropped goes on; its inputs stay pinned and its result is discarded.
    Methods may be called from any thread.

    Attributes:
        terms: What it has in common with others that are alike.
        is_answered: Whether the last response is there and Triton is not through with the inputs,
            and perhaps never will be: so it is where a step of an ensemble fails beside others.
        is_over: Whether the last response is there and Triton is through with the inputs.
        pins: The addresses of the inputs, each of which keeps its memory, until it is over.
        token: The C handle; harmless when it is stale.
        deadline: When it is cancelled, on the clock of ``time.monotonic``; None: never.
        submission: How it comes to Triton; None: nothing was done for it yet.

    C: ``TRITONSERVER_ServerInferAsync``
    """

    __slots__ = (
        "_arrived",
        "_count",
        "_is_cut",
        "_outcomes",
        "_was_cancelled",
        "deadline",
        "is_answered",
        "is_over",
        "key",
        "pins",
        "queue",
        "submission",
        "terms",
        "token",
    )

    #: How many responses may wait to be read; 0: any number.
    max_pending = 0
    #: Whether there is neither such a bound nor something for `enter` to do.
    is_usual = True

    def __init__(self, queue: CompletionQueue, terms: Terms, pins: list[CData]) -> None:
        """Hold the pins; `Template.submit` puts it into the table of inferences in flight."""
        self.terms = terms
        self.is_over = self.is_answered = False
        self.token = 0
        self.submission: Submission | None = None
        self.queue = queue
        self.pins: list[CData] | None = pins
        # None: there is none yet.
        self._outcomes: list[Response | TritonError] | deque[Response | TritonError] | None = None
        self._arrived = 0
        self._count = -1  # of completions; known with the last one
        timeout = terms.timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.key = queue.next_key()

    @property
    def model_name(self) -> str:
        """The model that was asked."""
        return self.terms.model_name

    @property
    def request_id(self) -> str:
        """The id given with the request."""
        return self.terms.request_id

    @property
    def timeout(self) -> float | None:
        """Seconds from its making until it is cancelled; None: none."""
        return self.terms.timeout

    def enter(self) -> None:
        """Be about to be submitted."""

    def live_token(self) -> int:
        """Return the token; also where a signal came between its making and its storing."""
        submission = self.submission
        if self.token or submission is None:
            return self.token
        return submission.token(self.key)

    def leave(self) -> None:
        """Be over: Triton has given the inputs back, or never took them."""
        self.pins = None
        if self.terms.wanted is not None:
            self.terms = self.terms.without_wanted()
        self.is_over = True
        self.queue.in_flight.pop(self.key, None)

    def deliver(self, completion: CData) -> None:
        """Take a completion of this inference: read the response, note the end."""
        if completion.whole and self._outcomes is None:
            outcome = read(completion, self.terms)
            self._arrived = self._count = 1  # as in `_arrive`
            self._outcomes = [outcome]
            self.leave()
            return
        self._arrive(completion.number, self.outcome(completion), completion.done)
        if completion.answered:
            self.note_answer()

    def outcome(self, completion: CData) -> Response | TritonError | None:
        """Read what there is to read of a completion."""
        if completion.has_response:
            return read(completion, self.terms)
        if completion.cancelled:
            self._is_cut = True
        return None

    def end(self) -> None:
        """Be over, with an error where a model has stopped for a cancel and not said so.

        It has sent a final flag and nothing else, and what was there before looks complete.
        """
        if getattr(self, "_is_cut", False) and self._outcomes is not None and not self._failed():
            self._outcomes.append(
                CancelledError(f"model {self.model_name!r}: the request was cancelled")
            )
        self.leave()

    def _failed(self) -> bool:
        """Return whether the last thing that came is an error."""
        outcomes = self._outcomes
        return outcomes is not None and len(outcomes) > 0 and isinstance(outcomes[-1], TritonError)

    def note_answer(self) -> None:
        """Note that the last response is there, which has been taken, before it is over.

        Another thread may be about to wait for it, and as long as it is not over C would let it.
        """
        self.is_answered = True
        self.answer()
        self.queue.wake()

    def fail(self, error: TritonError) -> None:
        """End it with an error, where Triton may have the request for ever: it is never over."""
        outcomes = self._outcomes
        if outcomes is None:
            self._outcomes = outcomes = []
        try:
            outcomes.append(error)
        finally:
            self.is_answered = True  # where a signal handler raises, it is not told twice
            self.note_answer()
            self.wake()

    def answer(self) -> None:
        """Tell those who wait that the last response is there, before it is over."""

    def miss(self, completion: CData) -> None:
        """Take a completion whose response a signal handler cut in two."""
        outcome = InternalError(
            f"model {self.model_name!r}: the reading of a response was interrupted"
        )
        self._arrive(completion.number, outcome, completion.done)
        if completion.answered:
            self.note_answer()

    def has(self, number: int) -> bool:
        """Return whether the completion of a number has been taken."""
        return number < self._arrived or (self.key, number) in self.queue.early

    def is_complete(self) -> bool:
        """Return whether all completions have been taken."""
        return self._arrived == self._count

    def _arrive(self, number: int, outcome: Response | TritonError | None, done: bool) -> None:  # noqa: FBT001
        """Note what came of the completion of a number, after all those before it.

        Python looks for signals when a call is over. So a number is counted, and what it stands for
        kept, with no call between: a signal handler that raises finds it done, or not begun.
        """
        if done:
            self._count = number + 1
        outcomes = self._outcomes
        if outcomes is None:
            self._outcomes = outcomes = []
        if number == self._arrived:
            self._arrived = number + 1
            if outcome is not None:
                outcomes.append(outcome)
        else:
            # Another thread has taken an earlier one and not yet delivered it.
            self.queue.early[self.key, number] = outcome
        while self.queue.early:
            following = self.key, self._arrived
            try:
                outcome = self.queue.early[following]
                del self.queue.early[following]
            except KeyError:
                break  # it is still to come, or another thread goes on with it
            self._arrived += 1
            if outcome is not None:
                outcomes.append(outcome)
        if self._arrived == self._count:
            self.end()

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
        check_duration(timeout, "timeout")
        if self.has_result():
            return True
        # With what came of others: one call of C takes all of it.
        self.queue.drain()
        limit = None if timeout is None else time.monotonic() + timeout
        deadline = self.deadline
        if limit is not None and (deadline is None or limit < deadline):
            deadline = limit
        while True:
            wakes = self.queue.wakes[0]
            if self.has_result():
                return True
            if not self.queue.wait(self, deadline, wakes):
                self.check_deadline()
                return False

    def check_deadline(self) -> None:
        """Cancel the request and raise TimeoutError if its own ``timeout`` is up."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.cancel()
            raise TimeoutError(
                f"model {self.model_name!r}: no result within {self.terms.timeout:g} s; "
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
                f"model {self.model_name!r}: no result within {timeout:g} s; it goes on"
            )
        outcomes = self._outcomes
        # Where a stream has failed, what it had sent before is not what was asked for.
        if not outcomes or (len(outcomes) > 1 and not isinstance(outcomes[-1], TritonError)):
            raise InvalidArgumentError(
                f"model {self.model_name!r}: sent {len(outcomes or ())} responses where one was "
                "expected: stream() gives any number of them"
            )
        outcome = outcomes[-1]
        if isinstance(outcome, TritonError):
            raise anew(outcome)
        return outcome

    def done(self) -> bool:
        """Return whether `result` would return or raise at once."""
        now = time.monotonic()
        if not self.is_over and not self.queue.is_given_up:
            try:
                self.queue.wait(self, now)
            except ClosedError:
                if not self.queue.is_given_up:  # another one's, from a signal handler
                    raise
        is_late = self.deadline is not None and now >= self.deadline
        return self.has_result() or is_late or self.queue.is_given_up

    def has_result(self) -> bool:
        """Return whether the last response has been delivered; without looking for it."""
        return self.is_over or self.is_answered

    def is_settled(self) -> bool:
        """Return whether Triton has nothing to say of it any more, taken news or not."""
        return self.is_answered or self.is_through()

    def is_through(self) -> bool:
        """Return whether Triton has nothing to do with it (any more), taken news or not."""
        token = self.live_token()
        if token:
            return bool(lib.tffi_inference_is_over(token))
        return self.key not in self.queue.in_flight

    def cancel(self) -> bool:
        """Ask Triton to give the inference up.

        Queues and models look at this when they can; some run to their end all the same. The
        result is then a CancelledError, or the response after all.

        Returns:
            False: it is over already.

        C: ``TRITONSERVER_InferenceRequestCancel``
        """
        is_asked = bool(lib.tffi_inference_cancel(self.live_token()))
        if is_asked:
            self._was_cancelled = True
        return is_asked

    def wake(self) -> None:
        """Wake the tasks that wait for it; where there is an event loop there may be some."""

    def orphan(self) -> None:
        """Be given up, because those who waited are gone."""
        self.cancel()

    def is_cancelled(self) -> bool:
        """Return whether `cancel` was called while it was in flight.

        C: ``TRITONSERVER_InferenceRequestIsCancelled``
        """
        if getattr(self, "_was_cancelled", False):
            return True
        return bool(lib.tffi_inference_is_cancelled(self.live_token()))

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


def kept_in(inferences: Iterable[Inference]) -> set[str]:
    """Return the models of which Triton has answered a request and may keep it for ever."""
    return {i.model_name for i in inferences if i.is_answered and not i.is_through()}


def unanswered(inferences: Iterable[Inference]) -> set[str]:
    """Return the models of which Triton still owes an answer."""
    return {i.model_name for i in inferences if not i.is_settled()}


def why_left(
    failed_reloads: Iterable[str],
    lost_loads: Iterable[str],
    lost: Iterable[str],
    inferences: Iterable[Inference],
) -> str:
    """Return after what Triton cannot stop a server; empty: it can.

    Args:
        failed_reloads: Models that did not load while they were loaded.
        lost_loads: Models whose loads will never be over.
        lost: Models that will never be unloaded, because their python processes have died.
        inferences: What is in flight, in models that were told to unload.
    """
    reasons = [
        (failed_reloads, "failed reloads of {}"),
        (lost_loads, "loads of {} whose python process has died"),
        (lost, "requests of {} whose python process has died"),
        (kept_in(inferences), "requests of {} that failed while a step was running"),
    ]
    for models, reason in reasons:
        names = ", ".join(map(repr, sorted(models)))
        if names:
            return reason.format(names)
    return ""


def still_there(alive: Iterable[Mapping[str, str]], inferences: Iterable[Inference]) -> str:
    """Say which models have not let go, and what of ours is in flight there, such models first.

    Args:
        alive: Of Triton's index, which does not list those of repositories that were taken away.
        inferences: What is in flight.
    """
    counts = Counter(inference.model_name for inference in inferences)
    states = {
        entry["name"]: f"(version {entry.get('version', '?')}) is {entry['state']} "
        for entry in alive
    }
    return ", ".join(
        f"model {name!r} {states.get(name, '')}(inferences in flight: {counts[name]})"
        for name in dict.fromkeys([*counts, *states])
    )
