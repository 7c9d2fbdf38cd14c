# SPDX-License-Identifier: Apache-2.0
"""Triton's counts of the models, out of its JSON: whole numbers as they are, times in seconds too.

Two readings can be subtracted: what is left is what happened in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

from tritonffi._errors import InvalidArgumentError

if TYPE_CHECKING:
    from tritonffi._call import JSON

_NS = 1e9
_MS = 1e3

Key = TypeVar("Key")


@dataclass(frozen=True)
class StatisticDuration:
    """How often something was done and how long it took, all together.

    Attributes:
        count: How often; exact to 64 bits.
        ns: Nanoseconds in all; exact to 64 bits.
    """

    count: int = 0
    ns: int = 0

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self.ns / _NS

    @property
    def mean(self) -> float:
        """Seconds of one, on average; 0.0 where there was none."""
        return self.ns / self.count / _NS if self.count else 0.0

    def __sub__(self, before: StatisticDuration) -> StatisticDuration:
        if not isinstance(before, StatisticDuration):
            return NotImplemented
        return StatisticDuration(self.count - before.count, self.ns - before.ns)


_NEVER = StatisticDuration()


@dataclass(frozen=True)
class BatchStatistics:
    """The executions of one batch size.

    Attributes:
        batch_size: Rows of the batch.
        compute_input: Getting inputs ready.
        compute_infer: The model itself; its count is the number of executions.
        compute_output: Getting outputs out.
    """

    batch_size: int
    compute_input: StatisticDuration = _NEVER
    compute_infer: StatisticDuration = _NEVER
    compute_output: StatisticDuration = _NEVER

    @property
    def executions(self) -> int:
        """How often the model ran with this batch size."""
        return self.compute_infer.count

    def __sub__(self, before: BatchStatistics) -> BatchStatistics:
        if not isinstance(before, BatchStatistics):
            return NotImplemented
        return BatchStatistics(
            self.batch_size,
            self.compute_input - before.compute_input,
            self.compute_infer - before.compute_infer,
            self.compute_output - before.compute_output,
        )


@dataclass(frozen=True)
class ResponseStatistics:
    """The responses of a decoupled model that came in one place: the first ones, the second, ...

    Attributes:
        compute_infer: Making the response.
        compute_output: Getting its outputs out.
        success: Responses that were none of the following.
        fail: Those that were errors.
        empty_response: Those that were only the news that nothing more comes.
        cancel: Those of cancelled requests.
    """

    compute_infer: StatisticDuration = _NEVER
    compute_output: StatisticDuration = _NEVER
    success: StatisticDuration = _NEVER
    fail: StatisticDuration = _NEVER
    empty_response: StatisticDuration = _NEVER
    cancel: StatisticDuration = _NEVER

    def __sub__(self, before: ResponseStatistics) -> ResponseStatistics:
        if not isinstance(before, ResponseStatistics):
            return NotImplemented
        return ResponseStatistics(
            self.compute_infer - before.compute_infer,
            self.compute_output - before.compute_output,
            self.success - before.success,
            self.fail - before.fail,
            self.empty_response - before.empty_response,
            self.cancel - before.cancel,
        )


@dataclass(frozen=True)
class MemoryUsage:
    """Memory that a model says it holds; most backends say nothing.

    Attributes:
        type: ``CPU``, ``CPU_PINNED`` or ``GPU``.
        id: Of the device.
        byte_size: Bytes.
    """

    type: str
    id: int
    byte_size: int


@dataclass(frozen=True)
class ModelStatistics:
    """Triton's counts of one version of a model, since it was loaded.

    ``after - before`` is what happened between two readings. A version that was loaded anew in
    between counts from 0 again: if its counts fell, the difference is all that was counted since.

    Attributes:
        name: The model's name.
        version: Its version.
        last_inference_ms: When the last inference ended, in milliseconds since 1970; 0: never.
        inference_count: Rows: a request with a batch of 8 counts 8.
        execution_count: How often the model ran.
        success: Requests that ended well, from the queue to the response.
        fail: Requests that ended with an error.
        queue: Waiting for the model.
        compute_input: Getting inputs ready.
        compute_infer: The model itself.
        compute_output: Getting outputs out.
        cache_hit: Requests answered from the response cache.
        cache_miss: Requests looked for there in vain.
        batches: By batch size.
        responses: Of decoupled models, by number of the response, from 0 on.
        memory: What the model says it holds, at the later reading.
        raw: Triton's own words for it, times in nanoseconds; of a difference, the later reading's.

    C: ``TRITONSERVER_ServerModelStatistics``
    """

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: StatisticDuration = _NEVER
    fail: StatisticDuration = _NEVER
    queue: StatisticDuration = _NEVER
    compute_input: StatisticDuration = _NEVER
    compute_infer: StatisticDuration = _NEVER
    compute_output: StatisticDuration = _NEVER
    cache_hit: StatisticDuration = _NEVER
    cache_miss: StatisticDuration = _NEVER
    batches: Mapping[int, BatchStatistics] = field(default_factory=dict)
    responses: Mapping[int, ResponseStatistics] = field(default_factory=dict)
    memory: tuple[MemoryUsage, ...] = ()
    raw: Mapping[str, JSON] = field(default_factory=dict, repr=False, compare=False)

    @property
    def last_inference(self) -> float | None:
        """When the last inference ended, on the clock of ``time.time``; None: never."""
        return self.last_inference_ms / _MS if self.last_inference_ms else None

    @property
    def mean_batch_size(self) -> float:
        """Rows of one execution, on average; 0.0 where there was none."""
        return self.inference_count / self.execution_count if self.execution_count else 0.0

    def __sub__(self, before: ModelStatistics) -> ModelStatistics:
        if not isinstance(before, ModelStatistics):
            return NotImplemented
        if (self.name, self.version) != (before.name, before.version):
            raise InvalidArgumentError(
                f"statistics of {before.name!r} version {before.version} cannot be taken from "
                f"those of {self.name!r} version {self.version}"
            )
        if self._fell_below(before):
            return self
        return ModelStatistics(
            name=self.name,
            version=self.version,
            last_inference_ms=self.last_inference_ms,
            inference_count=self.inference_count - before.inference_count,
            execution_count=self.execution_count - before.execution_count,
            success=self.success - before.success,
            fail=self.fail - before.fail,
            queue=self.queue - before.queue,
            compute_input=self.compute_input - before.compute_input,
            compute_infer=self.compute_infer - before.compute_infer,
            compute_output=self.compute_output - before.compute_output,
            cache_hit=self.cache_hit - before.cache_hit,
            cache_miss=self.cache_miss - before.cache_miss,
            batches={
                size: batch - before.batches.get(size, BatchStatistics(size))
                for size, batch in self.batches.items()
                if batch != before.batches.get(size)
            },
            responses={
                number: response - before.responses.get(number, ResponseStatistics())
                for number, response in self.responses.items()
                if response != before.responses.get(number)
            },
            memory=self.memory,
            raw=self.raw,
        )

    def _fell_below(self, before: ModelStatistics) -> bool:
        """Whether any count became smaller, which only a load can do."""
        now = dict(_counts(self))
        return any(now.get(place, 0) < then for place, then in _counts(before))


def _counts(value: object, *place: object) -> Iterator[tuple[tuple[object, ...], int]]:
    """Yield all that only grows in a reading, each with where it stands there."""
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, ModelStatistics):
        yield ("inference_count",), value.inference_count
        yield ("execution_count",), value.execution_count
        parts = ((name, getattr(value, name)) for name in _GROWING)
    elif isinstance(value, StatisticDuration):
        yield (*place, "count"), value.count
        yield (*place, "ns"), value.ns
    elif isinstance(value, Mapping):
        parts = value.items()
    else:
        parts = ((part.name, getattr(value, part.name)) for part in fields(value))  # type: ignore[arg-type]
    for name, part in parts:
        if not isinstance(part, int):
            yield from _counts(part, *place, name)


_GROWING = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
    "batches",
    "responses",
)


class ServerStatistics(Mapping[str, ModelStatistics]):
    """Triton's counts of every model of a server that is ready.

    By name it has the latest version of each model; `models` has all versions. ``after - before``
    subtracts each version; one that is in ``after`` alone counts as it stands.

    Attributes:
        models: Every version, ordered by name and version.
        raw: Triton's own words for it; of a difference, the later reading's.

    C: ``TRITONSERVER_ServerModelStatistics``
    """

    __slots__ = ("_latest", "models", "raw")

    def __init__(self, models: tuple[ModelStatistics, ...], raw: Mapping[str, JSON]) -> None:
        """Leave this to `Server.statistics`."""
        self.models = tuple(sorted(models, key=lambda model: (model.name, model.version)))
        self.raw = raw
        self._latest = {model.name: model for model in self.models}

    def __getitem__(self, name: str) -> ModelStatistics:
        return self._latest[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._latest)

    def __len__(self) -> int:
        return len(self._latest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ServerStatistics):
            return NotImplemented
        return self.models == other.models

    __hash__ = None  # type: ignore[assignment] # as of any mapping

    def __repr__(self) -> str:
        return f"ServerStatistics(models={self.models!r})"

    def __sub__(self, before: ServerStatistics) -> ServerStatistics:
        if not isinstance(before, ServerStatistics):
            return NotImplemented
        then = {(model.name, model.version): model for model in before.models}
        return ServerStatistics(
            tuple(
                model - then.get((model.name, model.version), _nothing(model))
                for model in self.models
            ),
            self.raw,
        )


def _nothing(model: ModelStatistics) -> ModelStatistics:
    return ModelStatistics(model.name, model.version)


def read_statistics(reply: Mapping[str, JSON]) -> ServerStatistics:
    """Read what ``TRITONSERVER_ServerModelStatistics`` gave.

    What a library does not tell, because it is older, counts as 0.
    """
    models = tuple(_model(_object(entry)) for entry in _list(reply.get("model_stats")))
    return ServerStatistics(models, reply)


def _model(entry: Mapping[str, JSON]) -> ModelStatistics:
    times = _durations(entry.get("inference_stats"))
    batches: dict[int, BatchStatistics] = {}
    for item in map(_object, _list(entry.get("batch_stats"))):
        size = _whole(item.get("batch_size"))
        parts = _durations(item)
        batches[size] = BatchStatistics(size, **_those(parts, BatchStatistics))
    responses = {
        int(number): ResponseStatistics(**_those(_durations(item), ResponseStatistics))
        for number, item in _object(entry.get("response_stats")).items()
    }
    return ModelStatistics(
        name=str(entry["name"]),
        version=int(str(entry["version"])),
        last_inference_ms=_whole(entry.get("last_inference")),
        inference_count=_whole(entry.get("inference_count")),
        execution_count=_whole(entry.get("execution_count")),
        batches=_ordered(batches),
        responses=_ordered(responses),
        memory=tuple(
            MemoryUsage(str(usage.get("type")), _whole(usage.get("id")), _whole(usage["byte_size"]))
            for usage in map(_object, _list(entry.get("memory_usage")))
        ),
        raw=dict(entry),
        success=times.get("success", _NEVER),
        fail=times.get("fail", _NEVER),
        queue=times.get("queue", _NEVER),
        compute_input=times.get("compute_input", _NEVER),
        compute_infer=times.get("compute_infer", _NEVER),
        compute_output=times.get("compute_output", _NEVER),
        cache_hit=times.get("cache_hit", _NEVER),
        cache_miss=times.get("cache_miss", _NEVER),
    )


def _durations(value: JSON) -> dict[str, StatisticDuration]:
    return {
        name: StatisticDuration(_whole(item.get("count")), _whole(item.get("ns")))
        for name, item in _object(value).items()
        if isinstance(item, dict)
    }


def _those(
    durations: Mapping[str, StatisticDuration], of: type[object]
) -> dict[str, StatisticDuration]:
    """Those that a class has a field for; a newer library may tell more."""
    fields = of.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: value for name, value in durations.items() if name in fields}


_Value = TypeVar("_Value")


def _ordered(values: Mapping[int, _Value]) -> Mapping[int, _Value]:
    return dict(sorted(values.items()))


def _object(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}


def _list(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def _whole(value: JSON) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Triton's statistics: expected a whole number, got {value!r}")
    return value
