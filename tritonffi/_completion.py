# SPDX-License-Identifier: Apache-2.0
"""The queue through which the completions of inferences come back.

The way of the data, as Python sees it (``csrc/tritonffi.h`` tells the C side):

1. ``_template`` describes the call in C structs over pinned memory and submits it. The `Inference`
   is in the queue's ``in_flight`` table right before that, and holds the pins.
2. Triton's threads do the work. They push completions in C and never wait for Python.
3. Whoever wants a result waits in C, without the GIL, for completions of that inference alone.
4. Completions come out as a C list. Each is delivered to its inference through the table, read
   into plain data (`_response.read`) and freed.
5. The last one is marked ``done``: Triton is through with the request. Only then are the pins
   dropped, on the Python thread that read it, and the inference leaves the table.

Several threads may take completions of one inference. Their numbers say in which order they count
(`Inference.deliver`), so that the last one is the last whichever thread is faster.

Inferences that the caller has dropped stay in the table until their completion has been taken. Each
wait for a result takes what is ready (`CompletionQueue.drain`), and so does each submit that finds
more of it than is in flight; so they do not pile up.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from tritonffi._errors import ClosedError, InternalError
from tritonffi._native import ffi, lib
from tritonffi._waiting import GLANCE_NS, LONG_S, PATIENCE_S, is_within, slice_ns

if TYPE_CHECKING:
    from tritonffi._errors import TritonError
    from tritonffi._inference import Inference
    from tritonffi._native import CData
    from tritonffi._response import Response

_LIST = ffi.typeof("tffi_completion **")
_READY = lib.TFFI_WAIT_READY
_TIMEOUT = lib.TFFI_WAIT_TIMEOUT
_GONE = lib.TFFI_WAIT_GONE
_WOKEN = lib.TFFI_WAIT_WOKEN


class CompletionQueue:
    """Where the completions of a group of inferences arrive.

    Attributes:
        native: The ``tffi_queue *``. One reference to it is this object's, and let go of with it:
            another thread may be about to call with it.
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

    #: Whether something always waits here, so that those who submit need not look.
    is_served = False

    __slots__ = (
        "_is_left",
        "_owner",
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
        # First the owner and then the queue, or a signal handler that raises could lose it.
        self._owner = ffi.gc(ffi.new("tffi_queue **"), lib.tffi_queue_release)
        lib.tffi_queue_new(self._owner)
        self.native = self._owner[0]
        if self.native == ffi.NULL:
            raise MemoryError("no memory for a completion queue")
        self.ready = lib.tffi_queue_ready(self.native)
        self.wakes = lib.tffi_queue_wakes(self.native)
        self.in_flight: dict[int, Inference] = {}
        self.early: dict[tuple[int, int], Response | TritonError | None] = {}
        self.next_key = itertools.count(1).__next__
        self.is_given_up = False
        self.reason = "the server was closed meanwhile"
        self._is_left = False
        self.left: dict[CompletionQueue, None] = {}

    def drain(self) -> None:
        """Deliver what is ready and not waited for, without waiting."""
        if self.ready[0]:
            self._collect(lib.tffi_queue_wait, self.native, self.wakes[0], 0)

    def drain_beside(self) -> None:
        """Do as `drain`, on behalf of others, and wake those who wait here."""
        if self.ready[0]:
            try:
                self.drain()
            finally:
                self.wake()

    def wake(self) -> None:
        """Have those who wait here look again, and those who are about to."""
        lib.tffi_queue_wake(self.native)

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
        token = inference.live_token()
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
                token = inference.live_token()
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
            self.wake()

    def _settle(self, deadline: float) -> bool:
        patience = min(deadline, time.monotonic() + PATIENCE_S)
        for inference in list(self.in_flight.values()):
            while not inference.is_over:
                if inference.live_token():
                    until = patience if inference.is_settled() else deadline
                    if not self.wait(inference, until):
                        if not inference.is_settled():
                            return False
                        break  # whoever has taken its end will deliver it
                else:
                    # Another thread is about to submit it, or was interrupted right after.
                    if time.monotonic() >= deadline:
                        return False
                    self._collect(lib.tffi_queue_wait, self.native, self.wakes[0], GLANCE_NS)
        return True

    def is_submitting(self) -> bool:
        """Return whether a thread may be about to give the server's handle to Triton."""
        return any(not inference.live_token() for inference in list(self.in_flight.values()))

    def leave(self) -> None:
        """Say that nobody waits here any more, so that others take what still comes."""
        self._is_left = True
        self.left[self] = None
        self.wake()

    def is_left(self) -> bool:
        """Return whether nobody waits here any more."""
        return self._is_left

    def give_up(self) -> None:
        """Make everyone who waits here, now or later, raise ClosedError."""
        self.is_given_up = True
        self.wake()

    def close(self) -> None:
        """Drop what is there and what still comes; who waits raises ClosedError."""
        self.is_given_up = True
        lib.tffi_queue_close(self.native)

    def _collect(self, wait: CData, whose: CData, wakes: int, timeout_ns: int) -> int:
        """Call one of the two C waits and deliver what it took.

        A signal handler may raise as soon as the call returns, and anywhere in the delivery. What
        was taken stands in `out` and is delivered all the same.
        """
        out = ffi.new(_LIST)
        try:
            result: int = wait(whose, wakes, timeout_ns, out)
        finally:
            first = out[0]
            if first:
                try:
                    self._deliver(first)
                except BaseException:
                    self._deliver_rest(first)
                    raise
                finally:
                    lib.tffi_completion_free(first)
        return result

    def _deliver(self, following: CData) -> None:
        """Deliver the completions of a list."""
        in_flight = self.in_flight
        while following:
            completion = following
            following = completion.next
            inference = in_flight.get(completion.key)
            if inference is not None:
                inference.deliver(completion)

    def _deliver_rest(self, following: CData) -> None:
        """Deliver those of a list that `_deliver` has not, in the midst of one of them."""
        was_reached = True
        while following:
            completion = following
            following = completion.next
            inference = self.in_flight.get(completion.key)
            if inference is None:
                continue
            if not inference.has(completion.number):
                if was_reached and completion.output_count and not completion.outputs[0].buffer:
                    inference.miss(completion)
                else:
                    inference.deliver(completion)
                was_reached = False
            elif inference.is_complete():
                inference.end()
            elif completion.answered:
                inference.note_answer()
            inference.wake()
