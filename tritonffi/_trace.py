# SPDX-License-Identifier: Apache-2.0
"""Traces: where the time of one inference went, and what tensors went by.

Triton's callbacks fill a trace in C (``csrc/trace.c``). It is read (`_trace_record`) when it is
over, which may be a moment after the response: Triton tells of the computing, and releases the
trace, when the model has let go of the request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tritonffi._call import check, check_duration, encode
from tritonffi._closing import Closing
from tritonffi._enums import TraceLevel
from tritonffi._errors import ClosedError, InvalidArgumentError
from tritonffi._native import ffi, lib
from tritonffi._numbers import check_whole, shown, whole
from tritonffi._trace_record import Family, TraceRecord, write_chrome

if TYPE_CHECKING:
    from tritonffi._call import JSON
    from tritonffi._native import CData
    from tritonffi._trace_record import TraceEvent, TraceSpan

_NS = 1e9
# As long as a wait in C may last on the main thread, where Ctrl-C must work.
_SLICE_NS = 100_000_000
_LONGEST_NS = 2**62
_UINT64_MAX = 2**64 - 1


class Trace(Closing):
    """Records where the time of one inference goes, and of the inferences it is made of.

    Example::

        trace = tritonffi.Trace()
        model.infer({"image": batch}, trace=trace)
        print(trace.spans["queue"].duration, trace.spans["compute_infer"].duration)
        pathlib.Path("trace.json").write_text(trace.to_chrome())     # for ui.perfetto.dev

    A trace goes with one inference. Everything read from it waits until it is over: Triton has let
    go of it and of all its children. What it records stays in memory until it is dropped.

    Args:
        level: Bits of `TraceLevel`: TIMESTAMPS, TENSORS, or both. Tensors are copied while the
            model waits.
        parent_id: The number of a trace that this one belongs under; 0: none. `spawn_child` sets
            it by itself.
        context: What goes with the trace and can be read by models, such as
            ``{"traceparent": ...}``.
        max_activities: How many are kept, those of the children too; more are counted.
        max_tensor_bytes: How many bytes of tensors are copied in all; others have no data.

    Raises:
        InvalidArgumentError: There is no such level.
        UnsupportedError: No library is loaded yet, which the first server does, or it has no
            traces.

    C: ``TRITONSERVER_InferenceTraceTensorNew``, ``TRITONSERVER_InferenceTraceSetContext``,
    ``TRITONSERVER_InferenceTraceDelete``
    """

    __slots__ = ("_family", "_id", "_owner", "level", "native")

    def __init__(
        self,
        level: TraceLevel = TraceLevel.TIMESTAMPS,
        *,
        parent_id: int = 0,
        context: Mapping[str, JSON] | None = None,
        max_activities: int = 10_000,
        max_tensor_bytes: int = 16 << 20,
    ) -> None:
        self.level = _level(level)
        for name, value in (
            ("parent_id", parent_id),
            ("max_activities", max_activities),
            ("max_tensor_bytes", max_tensor_bytes),
        ):
            check_whole(value, name)
        text = _context(context)
        owner = _owner()
        check(
            lib.tffi_trace_new(int(self.level), parent_id, max_activities, max_tensor_bytes, owner),
            "a trace",
        )
        self._family = Family()
        self._own(owner)
        if text is not None:
            check(lib.tffi_trace_set_context(self.native, text), f"trace {self._id}")

    def _own(self, owner: CData) -> None:
        self._owner = owner
        self.native = owner[0]
        self._id: int = lib.tffi_trace_id(self.native)

    def __repr__(self) -> str:
        state = {
            lib.TFFI_TRACE_UNUSED: "not used",
            lib.TFFI_TRACE_ALIVE: "in flight",
            lib.TFFI_TRACE_OVER: "over",
            lib.TFFI_TRACE_PARENTS: "of the parent process",
        }[lib.tffi_trace_wait(self.native, 0)]
        return f"<Trace {self._id}, {state}>"

    def close(self) -> None:
        """Be over, if no inference took it: for a trace that only has children."""
        lib.tffi_trace_close(self.native)

    def spawn_child(self, context: Mapping[str, JSON] | None = None) -> Trace:
        """Make a trace for an inference that is part of this one.

        Its record becomes one of `children`. It shares this trace's bounds, and this one is not
        over before it is: give it to an inference, close it or drop it.

        Args:
            context: What goes with the child.

        Raises:
            InvalidArgumentError: This trace is over.

        C: ``TRITONSERVER_InferenceTraceSpawnChildTrace``
        """
        text = _context(context)
        owner = _owner()
        check(lib.tffi_trace_spawn(self.native, owner), f"trace {self._id}")
        child = Trace.__new__(Trace)
        child.level = self.level
        child._family = self._family  # noqa: SLF001 (it is a Trace, too)
        child._own(owner)  # noqa: SLF001
        if text is not None:
            check(lib.tffi_trace_set_context(child.native, text), f"trace {child.id}")
        return child

    def report_activity(self, name: str, timestamp_ns: int | None = None) -> bool:
        """Add a point in time of one's own.

        Before the inference it is added to the context too, where models can see it.

        Args:
            name: What happened.
            timestamp_ns: When, on the clock of ``time.monotonic_ns``; None is now.

        Returns:
            False: the trace is over, nothing was added.

        C: ``TRITONSERVER_InferenceTraceReportActivity``
        """
        if timestamp_ns is None:
            timestamp_ns = time.monotonic_ns()
        elif not 0 <= whole(timestamp_ns, "timestamp_ns") <= _UINT64_MAX:
            raise InvalidArgumentError(f"timestamp_ns is no time: {shown(timestamp_ns)}")
        reported = ffi.new("bool *")
        text = encode(name, "the name of an activity")
        check(lib.tffi_trace_report(self.native, timestamp_ns, text, reported), f"trace {self._id}")
        return bool(reported[0])

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the trace and all its children are over.

        Args:
            timeout: Seconds; None: as long as it takes.

        Returns:
            Whether they are.

        Raises:
            InvalidArgumentError: The trace was given to no inference, so nothing would come.
            ClosedError: The process was forked since the trace was made.
        """
        check_duration(timeout, "timeout")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LONGEST_NS
            if deadline is not None:
                left = int(min(max(0.0, deadline - time.monotonic()) * _NS, _LONGEST_NS))
            last = left <= _SLICE_NS
            if threading.current_thread() is threading.main_thread():
                left = min(left, _SLICE_NS)
            state = lib.tffi_trace_wait(self.native, left)
            if state == lib.TFFI_TRACE_UNUSED:
                raise InvalidArgumentError(f"trace {self._id} was given to no inference")
            if state == lib.TFFI_TRACE_OVER:
                return True
            if state == lib.TFFI_TRACE_PARENTS:
                raise ClosedError(f"trace {self._id} belongs to the parent of this process")
            if last and deadline is not None and time.monotonic() >= deadline:
                return False

    def is_complete(self) -> bool:
        """Return whether the trace and all its children are over."""
        return bool(lib.tffi_trace_wait(self.native, 0) == lib.TFFI_TRACE_OVER)

    def record(self, timeout: float | None = None) -> TraceRecord:
        """Wait until the trace is over and return all that it has told.

        Args:
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            InvalidArgumentError: The trace was given to no inference.
            TimeoutError: The time is up; the trace goes on.

        C: ``TRITONSERVER_InferenceTraceId``, ``TRITONSERVER_InferenceTraceParentId``,
        ``TRITONSERVER_InferenceTraceModelName``, ``TRITONSERVER_InferenceTraceModelVersion``,
        ``TRITONSERVER_InferenceTraceRequestId``, ``TRITONSERVER_InferenceTraceContext``
        """
        if not self.wait(timeout):
            raise TimeoutError(f"trace {self._id} is not over after {timeout:g} s")
        return self._family.record(self.native, self._id)

    @property
    def id(self) -> int:
        """The trace's number, its own in the process.

        C: ``TRITONSERVER_InferenceTraceId``
        """
        return self._id

    @property
    def dropped(self) -> int:
        """How many activities, those of children too, were not kept, because they were too many."""
        return int(lib.tffi_trace_dropped(self.native))

    @property
    def spans(self) -> dict[str, TraceSpan]:
        """See `TraceRecord.spans`; waits until the trace is over."""
        return self.record().spans

    @property
    def timestamps(self) -> dict[str, int]:
        """See `TraceRecord.timestamps`; waits until the trace is over."""
        return self.record().timestamps

    @property
    def activities(self) -> tuple[TraceEvent, ...]:
        """See `TraceRecord.activities`; waits until the trace is over."""
        return self.record().activities

    @property
    def tensors(self) -> tuple[TraceEvent, ...]:
        """See `TraceRecord.tensors`; waits until the trace is over."""
        return self.record().tensors

    @property
    def children(self) -> tuple[TraceRecord, ...]:
        """The traces of the inferences that this one is made of; waits until it is over."""
        return self.record().children

    def to_chrome(self) -> str:
        """Return the trace as `chrome_trace` does; waits until it is over."""
        return chrome_trace([self])


def _owner() -> CData:
    """Make the place for a trace. It owns what comes there, whatever a signal handler raises."""
    return ffi.gc(ffi.new("tffi_trace **"), lib.tffi_trace_release)


def chrome_trace(traces: Iterable[Trace | TraceRecord]) -> str:
    """Write traces, with their children, in the format of Chrome's tracing.

    Args:
        traces: Those of `Trace` are waited for.

    Returns:
        JSON text that ``chrome://tracing`` and ``ui.perfetto.dev`` open. Each trace is a row.
    """
    records = [trace.record() if isinstance(trace, Trace) else trace for trace in traces]
    for record in records:
        if not isinstance(record, TraceRecord):
            raise TypeError(f"chrome_trace takes traces, not {type(record).__name__}")
    return write_chrome(records)


def _level(level: object) -> TraceLevel:
    bits = whole(level, "level", "a TraceLevel")
    old = int(TraceLevel.MIN | TraceLevel.MAX)
    if bits & old:
        bits = bits & ~old | int(TraceLevel.TIMESTAMPS)
    if bits == 0 or bits & ~int(TraceLevel.TIMESTAMPS | TraceLevel.TENSORS):
        raise InvalidArgumentError(
            f"level must be TraceLevel.TIMESTAMPS, TraceLevel.TENSORS or both, not {level!r}"
        )
    return TraceLevel(bits)


def _context(context: Mapping[str, JSON] | None) -> bytes | None:
    """Make the text of a context. Triton itself writes into it as into a JSON object."""
    if context is None:
        return None
    if not isinstance(context, Mapping):
        raise TypeError(f"context must be a mapping, not {type(context).__name__}")
    try:
        return json.dumps(dict(context), allow_nan=False).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"context cannot be written as JSON: {error}") from error
