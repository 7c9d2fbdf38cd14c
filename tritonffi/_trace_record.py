# SPDX-License-Identifier: Apache-2.0
"""What a trace has told, as plain data, and as text for Chrome's viewer.

Read out of C once, when the trace is over: the copies of tensors become arrays then.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tritonffi._call import string
from tritonffi._enums import DataType, MemoryType, TraceActivity
from tritonffi._errors import TritonError
from tritonffi._native import ffi, lib
from tritonffi._tensor import from_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tritonffi._call import JSON
    from tritonffi._native import CData
    from tritonffi._tensor import Array

_NS = 1e9
_US = 1e3

# What lies between two points in time, in the words of the statistics.
_SPANS = (
    ("request", TraceActivity.REQUEST_START, TraceActivity.REQUEST_END),
    ("queue", TraceActivity.QUEUE_START, TraceActivity.COMPUTE_START),
    ("compute_input", TraceActivity.COMPUTE_START, TraceActivity.COMPUTE_INPUT_END),
    ("compute_infer", TraceActivity.COMPUTE_INPUT_END, TraceActivity.COMPUTE_OUTPUT_START),
    ("compute_output", TraceActivity.COMPUTE_OUTPUT_START, TraceActivity.COMPUTE_END),
)


@dataclass(frozen=True)
class TraceSpan:
    """A stretch of time in a trace.

    Attributes:
        name: ``request``, ``queue``, ``compute_input``, ``compute_infer`` or ``compute_output``.
        start_ns: When it began, in nanoseconds on the clock of ``time.monotonic_ns``.
        end_ns: When it ended.
    """

    name: str
    start_ns: int
    end_ns: int

    @property
    def start(self) -> float:
        """When it began, in seconds on the clock of ``time.monotonic``."""
        return self.start_ns / _NS

    @property
    def end(self) -> float:
        """When it ended, in seconds on the clock of ``time.monotonic``."""
        return self.end_ns / _NS

    @property
    def duration(self) -> float:
        """Seconds from start to end."""
        return (self.end_ns - self.start_ns) / _NS


@dataclass(frozen=True, eq=False)
class TraceTensor:
    """A tensor that went by.

    Attributes:
        name: Of the input or output.
        datatype: In Triton's words, such as ``FP32``.
        shape: With the batch axis.
        array: A copy; None where it lay on a GPU, the trace's ``max_tensor_bytes`` were used up,
            or it never got memory, as where the request fails for want of it.
        byte_size: Bytes of its content; 0 without memory.
        memory_type: Where it lay.
        memory_type_id: On which device.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: Array | None
    byte_size: int
    memory_type: MemoryType
    memory_type_id: int


@dataclass(frozen=True, eq=False)
class TraceEvent:
    """One thing that Triton told of an inference.

    Attributes:
        kind: What it is.
        name: The kind's name, or that of a custom activity.
        timestamp_ns: Nanoseconds on the clock of ``time.monotonic_ns``.
        tensor: Of the tensor activities.
    """

    kind: TraceActivity
    name: str
    timestamp_ns: int
    tensor: TraceTensor | None = None

    @property
    def timestamp(self) -> float:
        """Seconds on the clock of ``time.monotonic``."""
        return self.timestamp_ns / _NS


@dataclass(frozen=True, eq=False)
class TraceRecord:
    """All that a trace has told, as plain data.

    Attributes:
        id: The trace's number, its own in the process.
        parent_id: That of the trace it is a child of; 0: none.
        model_name: The model that was asked; empty where the trace went with no inference.
        model_version: The version that answered.
        request_id: As given with the request.
        context: What went with the trace, and was added by models.
        context_text: The same as the text that Triton held.
        events: In the order of their times.
        children: Those of the steps of an ensemble, and of `Trace.spawn_child`, by number.
    """

    id: int
    parent_id: int
    model_name: str
    model_version: int
    request_id: str
    context_text: str
    events: tuple[TraceEvent, ...]
    children: tuple[TraceRecord, ...]
    context: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def timestamps(self) -> dict[str, int]:
        """When each point was first passed, in nanoseconds, by its name: ``QUEUE_START``."""
        found: dict[str, int] = {}
        for event in self.events:
            if event.tensor is None and event.kind is not TraceActivity.CUSTOM_ACTIVITY:
                found.setdefault(event.name, event.timestamp_ns)
        return found

    @property
    def spans(self) -> dict[str, TraceSpan]:
        """The stretches of time of which both ends were told, by name."""
        times = self.timestamps
        return {
            name: TraceSpan(name, times[start.name], times[end.name])
            for name, start, end in _SPANS
            if start.name in times and end.name in times
        }

    @property
    def activities(self) -> tuple[TraceEvent, ...]:
        """The custom activities."""
        return tuple(e for e in self.events if e.kind is TraceActivity.CUSTOM_ACTIVITY)

    @property
    def tensors(self) -> tuple[TraceEvent, ...]:
        """The tensor activities."""
        return tuple(e for e in self.events if e.tensor is not None)

    def to_chrome(self) -> str:
        """Return it, with its children, as the JSON text that `chrome_trace` makes."""
        return write_chrome([self])


class Family:
    """The records of a trace and its children: each is read once, and takes over the tensors."""

    def __init__(self) -> None:
        """Begin without records."""
        self._lock = threading.RLock()
        self._records: dict[int, TraceRecord] = {}

    def record(self, native: CData, number: int) -> TraceRecord:
        """Return the record of a trace that is over, with all below it."""
        with self._lock:
            if number not in self._records:
                infos: dict[int, CData] = {}
                below: dict[int, list[int]] = {}
                while info := lib.tffi_trace_member(native, len(infos)):
                    infos[info.id] = info
                    # A child's number is greater. Whoever gives one of his own gives any.
                    if info.parent_id < info.id:
                        below.setdefault(info.parent_id, []).append(info.id)
                order = [number]  # not by recursion: they may be very deep
                for member in order:
                    order += below.get(member, ())
                for member in reversed(order):
                    self._read(infos[member], below.get(member, ()))
            return self._records[number]

    def _read(self, info: CData, children: Sequence[int]) -> None:
        """Make the record of a trace, unless there is one; those of the children are there."""
        number: int = info.id
        if number in self._records:
            return
        text = string(info.context)
        context = _object(text)
        events = []
        activity = info.activities
        while activity:
            events.append(_event(activity, context, string(info.model_name)))
            activity = activity.next
        self._records[number] = TraceRecord(
            id=number,
            parent_id=info.parent_id,
            model_name=string(info.model_name),
            model_version=info.model_version,
            request_id=string(info.request_id),
            context_text=text,
            context=context,
            events=tuple(sorted(events, key=lambda event: event.timestamp_ns)),
            children=tuple(self._records[child] for child in children),
        )


def _event(activity: CData, context: Mapping[str, JSON], model_name: str) -> TraceEvent:
    kind = TraceActivity(activity.kind)
    name = kind.name
    tensor = None
    if kind is TraceActivity.CUSTOM_ACTIVITY:
        if activity.name:
            name = string(activity.name)
        else:
            # A model's own: its name stands in the context alone.
            name = str(context.get(str(activity.timestamp_ns), name))
    elif activity.tensor.name:
        tensor = _tensor(activity.tensor, model_name)
    return TraceEvent(kind, name, activity.timestamp_ns, tensor)


def _tensor(tensor: CData, model_name: str) -> TraceTensor:
    name = string(tensor.name)
    shape = tuple(ffi.unpack(tensor.shape, tensor.dim_count)) if tensor.dim_count else ()
    array = None
    if tensor.buffer:
        tensor.buffer = ffi.NULL  # first: a finalizer may come in between, and read the same trace
        owner = ffi.gc(tensor.data, lib.tffi_buffer_release_data, tensor.byte_size)
        what = f"model {model_name!r}, tensor {name!r}"
        try:
            array = from_tensor(tensor.datatype, shape, owner, tensor.byte_size, what)
        except TritonError:
            # A model may write what its shape does not fit. The inference says so, not its trace.
            array = None
    return TraceTensor(
        name,
        DataType(tensor.datatype).name,
        shape,
        array,
        tensor.byte_size,
        MemoryType(tensor.memory_type),
        tensor.memory_type_id,
    )


def _object(text: str) -> dict[str, JSON]:
    try:
        value = json.loads(text)
    except (RecursionError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_chrome(records: Sequence[TraceRecord]) -> str:
    """Make the text of `chrome_trace`."""
    events: list[dict[str, JSON]] = []
    left = [*reversed(records)]  # the next one last
    while left:
        record = left.pop()
        _add_chrome(record, os.getpid(), events)
        left += reversed(record.children)
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events})


def _add_chrome(record: TraceRecord, process: int, events: list[dict[str, JSON]]) -> None:
    where: dict[str, JSON] = {"pid": process, "tid": record.id}
    title = f"{record.model_name} version {record.model_version}" if record.model_name else "trace"
    events.append(
        {"ph": "M", "name": "thread_name", "args": {"name": f"{title}, {record.id}"}, **where}
    )
    about: dict[str, JSON] = {"request_id": record.request_id, "parent_id": record.parent_id}
    events.extend(
        {
            "ph": "X",
            "cat": "span",
            "name": record.model_name if span.name == "request" else span.name,
            "ts": span.start_ns / _US,
            "dur": (span.end_ns - span.start_ns) / _US,
            "args": about if span.name == "request" else {},
            **where,
        }
        for span in record.spans.values()
    )
    for event in (*record.activities, *record.tensors):
        about = {}
        name = event.name
        if event.tensor is not None:
            name = f"{event.name} {event.tensor.name}"
            about = {"datatype": event.tensor.datatype, "shape": list(event.tensor.shape)}
        events.append(
            {
                "ph": "i",
                "s": "t",
                "cat": "activity" if event.tensor is None else "tensor",
                "name": name,
                "ts": event.timestamp_ns / _US,
                "args": about,
                **where,
            }
        )
