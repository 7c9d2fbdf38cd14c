# SPDX-License-Identifier: Apache-2.0
"""Server options: one row per setter of the C API.

A row is a dataclass field whose metadata names the C setter and how a Python value becomes the
arguments of its calls. Nothing about an option stands anywhere else, so a new one is one row.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tritonffi._call import check, encode, encode_path, plain_path, plain_text
from tritonffi._enums import InstanceGroupKind, LogFormat, ModelControlMode, RateLimitMode
from tritonffi._native import lib
from tritonffi._numbers import is_integer, plain, shown, whole

if TYPE_CHECKING:
    from enum import IntEnum

Path: TypeAlias = "str | os.PathLike[str]"
#: What one call of a setter gets after the options object.
Arguments: TypeAlias = "tuple[object, ...]"
#: Turns the value of a field into the calls of its setter: none, one or several.
Convert: TypeAlias = "Callable[[object, str], Iterator[Arguments]]"

T = TypeVar("T")
E = TypeVar("E", bound="IntEnum")

_INT_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_UINT_MAX = 2**32 - 1
_MOST_THREADS = 1024
_MOST_CORES = 2**20  # each of which Triton looks at, one by one
_UINT64_MAX = 2**64 - 1
_MOST_DIGITS = 19  # of what may be within a limit
# Settings that become numbers, by policy or backend ("" is any). Nobody catches what C++ throws
# where one has too many digits, or where there are no threads left.
_HOST_LIMITS = {("", "numa-node"): _INT_MAX, ("", "cpu-cores"): _MOST_CORES}
_BACKEND_LIMITS = {
    ("python", "shm-default-byte-size"): _INT64_MAX,
    ("python", "shm-growth-byte-size"): _INT64_MAX,
    ("python", "shm-message-queue-size"): _INT64_MAX,
    ("python", "stub-timeout-seconds"): _INT64_MAX,
    ("python", "thread-pool-size"): _MOST_THREADS,
}
_DECIMAL = re.compile(r"0x|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
# The exit of the process waits for the thread that polls the metrics, which sleeps as long.
_LONGEST_INTERVAL_S = 1.0


@dataclass(frozen=True)
class RateLimiterResource:
    """A resource that model instances ask for before they run.

    Args:
        name: The name that model configs use.
        count: How many of it there are.
        device: The device it belongs to; -1 is every device.

    C: ``TRITONSERVER_ServerOptionsAddRateLimiterResource``
    """

    name: str
    count: int
    device: int = -1


@dataclass(frozen=True)
class ModelLoadDeviceLimit:
    """How much of a device's memory may be in use when a model is loaded.

    Args:
        kind: The kind of device; Triton knows GPU limits only.
        device: The device's number.
        fraction: Between 0 and 1.

    C: ``TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit``
    """

    kind: InstanceGroupKind
    device: int
    fraction: float


def _wrong(what: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{what} must be {expected}, not {type(value).__name__}: {value!r}")


def _text_of(value: object, what: str) -> bytes:
    if not isinstance(value, str):
        raise _wrong(what, "a str", value)
    return encode(value, what)


def _path_of(value: object, what: str) -> bytes:
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong(what, "a path", value)
    path = encode_path(value, what)
    if not path:
        message = f"{what} must not be empty"
        raise ValueError(message)
    return path


def _int_of(value: object, what: str, low: int, high: int) -> int:
    if not is_integer(value):
        raise _wrong(what, "an int", value)
    number = whole(value, what)
    if not low <= number <= high:
        message = f"{what} must be between {low} and {high}, not {shown(number)}"
        raise ValueError(message)
    return number


def _float_of(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(what, "a number", value)
    if not 0 <= value <= sys.float_info.max:  # NaN neither
        message = f"{what} must be finite and not negative, not {shown(value)}"
        raise ValueError(message)
    return float(value)


def _mapping_of(value: object, what: str) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        raise _wrong(what, "a mapping", value)
    return value


def _items_of(value: object, what: str) -> Sequence[object]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _wrong(what, "a sequence", value)
    return value


def _text(value: object, what: str) -> Iterator[Arguments]:
    yield (_text_of(value, what),)


def _text_unless_empty(value: object, what: str) -> Iterator[Arguments]:
    if value != "":
        yield from _text(value, what)


def _path_unless_none(value: object, what: str) -> Iterator[Arguments]:
    if value is not None:
        yield (_path_of(value, what),)


def _paths(value: object, what: str) -> Iterator[Arguments]:
    items = [value] if isinstance(value, (str, os.PathLike)) else _items_of(value, what)
    for item in items:
        yield (_path_of(item, what),)


def _texts(value: object, what: str) -> Iterator[Arguments]:
    for item in _items_of(value, what):
        yield (_text_of(item, what),)


def _flag(value: object, what: str) -> Iterator[Arguments]:
    if not isinstance(value, bool):
        raise _wrong(what, "a bool", value)
    yield (value,)


def _flag_unless_none(value: object, what: str) -> Iterator[Arguments]:
    if value is not None:
        yield from _flag(value, what)


def _uint(value: object, what: str) -> Iterator[Arguments]:
    yield (_int_of(value, what, 0, _UINT_MAX),)


def _int(value: object, what: str) -> Iterator[Arguments]:
    yield (_int_of(value, what, 0, _INT_MAX),)


def _threads(value: object, what: str) -> Iterator[Arguments]:
    # Triton does not catch that the system has no more, which ends the process.
    yield (_int_of(value, what, 0, _MOST_THREADS),)


def _uint64(value: object, what: str) -> Iterator[Arguments]:
    yield (_int_of(value, what, 0, _UINT64_MAX),)


def _uint64_unless_zero(value: object, what: str) -> Iterator[Arguments]:
    if _int_of(value, what, 0, _UINT64_MAX):
        yield (value,)


def _real(value: object, what: str) -> Iterator[Arguments]:
    yield (_float_of(value, what),)


def _whole_seconds(value: object, what: str) -> Iterator[Arguments]:
    yield (min(math.ceil(_float_of(value, what)), _UINT_MAX),)


def _milliseconds(value: object, what: str) -> Iterator[Arguments]:
    yield (max(1, round(min(_float_of(value, what), _LONGEST_INTERVAL_S) * 1000)),)


def _choice(kind: type[E]) -> Convert:
    def convert(value: object, what: str) -> Iterator[Arguments]:
        if not isinstance(value, kind):
            raise _wrong(what, f"a {kind.__name__}", value)
        yield (int(value),)

    return convert


def _sizes_by_device(value: object, what: str) -> Iterator[Arguments]:
    for device, size in _mapping_of(value, what).items():
        yield (
            _int_of(device, f"{what}: a device", 0, 2**31 - 1),
            _int_of(size, f"{what}[{device}]", 0, _UINT64_MAX),
        )


def _json_by_name(value: object, what: str) -> Iterator[Arguments]:
    for name, settings in _mapping_of(value, what).items():
        where = f"{what}[{name!r}]"
        plain = dict(_mapping_of(settings, where))
        try:
            text = json.dumps(plain, allow_nan=False)
        except (RecursionError, TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            message = f"{where} cannot be written as JSON: {error}"
            raise kind(message) from error
        yield (_text_of(name, what), encode(text, what))


def _settings_by_name(value: object, what: str) -> Iterator[tuple[bytes, bytes, bytes]]:
    for name, settings in _mapping_of(value, what).items():
        for key, setting in _mapping_of(settings, f"{what}[{name!r}]").items():
            where = f"{what}[{name!r}][{key!r}]"
            said = plain(setting)
            if isinstance(said, bool):
                text = str(said).lower()
            elif isinstance(said, (int, float)):
                text = str(said)
            else:
                text = _text_of(setting, where).decode()
            yield (_text_of(name, what), _text_of(key, where), encode(text, where))


def _settings_within(limits: Mapping[tuple[str, str], int]) -> Convert:
    """Convert settings by name, of which some have integers that must not be too large."""

    def convert(value: object, what: str) -> Iterator[Arguments]:
        for name, key, text in _settings_by_name(value, what):
            of, setting, said = name.decode(), key.decode(), text.decode()
            limit = limits.get((of, setting), limits.get(("", setting)))
            if limit is not None and any(
                len(n) > _MOST_DIGITS or int(n) > limit for n in re.findall("[1-9][0-9]*", said)
            ):
                message = f"{what}[{of!r}][{setting!r}] must be at most {limit}, not {said}"
                raise ValueError(message)
            yield name, key, text

    return convert


def _metrics_settings(value: object, what: str) -> Iterator[Arguments]:
    for name, key, text in _settings_by_name(value, what):
        if (name, key, text) == (b"", b"counter_latencies", b"false"):
            message = (
                f"{what}['']['counter_latencies'] must not be false: all counters of models would "
                "stay at 0, those of requests and inferences too "
                "(triton-inference-server/server#8125)"
            )
            raise ValueError(message)
        if key == b"summary_quantiles":
            said = text.decode()
            for number in _DECIMAL.findall(said):
                # A number that a double cannot hold ends the process.
                is_zero = not re.search("[1-9]", re.split("[eE]", number)[0])
                if "x" in number.lower() or not (
                    is_zero or sys.float_info.min <= float(number) <= sys.float_info.max
                ):
                    message = f"{what}[{name.decode()!r}]: no quantiles: {said!r}"
                    raise ValueError(message)
        yield name, key, text


def _resources(value: object, what: str) -> Iterator[Arguments]:
    for item in _items_of(value, what):
        if not isinstance(item, RateLimiterResource):
            raise _wrong(what, "a sequence of RateLimiterResource", item)
        yield (
            _text_of(item.name, f"{what}: name"),
            _int_of(item.count, f"{what}: count", 0, 2**31 - 1),
            _int_of(item.device, f"{what}: device", -1, 2**31 - 1),
        )


def _device_limits(value: object, what: str) -> Iterator[Arguments]:
    for item in _items_of(value, what):
        if not isinstance(item, ModelLoadDeviceLimit):
            raise _wrong(what, "a sequence of ModelLoadDeviceLimit", item)
        fraction = _float_of(item.fraction, f"{what}: fraction")
        if fraction > 1:
            message = f"{what}: fraction must be between 0 and 1, not {fraction}"
            raise ValueError(message)
        device = _int_of(item.device, f"{what}: device", 0, 2**31 - 1)
        yield (int(InstanceGroupKind(item.kind)), device, fraction)


def _row(default: T, setter: str, convert: Convert) -> T:
    """A field: its default, the setter's name behind ``TRITONSERVER_``, and how to call it."""
    metadata = {"setter": "TRITONSERVER_" + setter, "convert": convert}
    field: T
    if isinstance(default, Mapping):
        # One for each object: whoever adds to his own changes nobody else's.
        field = dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    else:
        field = dataclasses.field(default=default, metadata=metadata)
    return field


@dataclass(frozen=True)
class ServerOptions:
    """What a server is started with. Every field has a default that works.

    Where the default is not Triton's own, that is because Triton's would surprise in a library:
    models can be loaded and unloaded at any time (``EXPLICIT`` with startup models ``*``), model
    configs are completed where a backend can, and metrics are polled every tenth of a second,
    because the exit of the process waits for half of that interval.

    Attributes:
        model_repository: A folder of models, or several. None at all: only models that are loaded
            from a config or a Python callable.
        server_id: The name of the server, seen in its metadata and logs.
        model_control_mode: ``EXPLICIT`` (load and unload), ``NONE`` or ``POLL``. In the last two,
            ``close`` takes a second longer.
        startup_models: Names to load at the start in ``EXPLICIT`` mode; ``*`` is all.
        strict_model_config: True: models must come with a complete config.
        model_config_name: Name of the config variant to use from each model's ``configs`` folder.
        rate_limiter_mode: Whether resources limit which instances run.
        rate_limiter_resources: What there is of each resource.
        pinned_memory_pool_byte_size: Bytes; shared by all servers of the process, the first wins.
        cuda_memory_pool_byte_size: Bytes by GPU; shared in the same way.
        cuda_virtual_address_size: Bytes by GPU for growable sequence state.
        response_cache_byte_size: Bytes of the local response cache; 0 is none. Triton calls this
            way deprecated: use ``cache_config``.
        cache_config: Settings by cache name, ``{"local": {"size": 1 << 20}}``. One cache a process.
        cache_directory: Where caches are; None: beside the library.
        min_supported_compute_capability: The least that a GPU must have.
        exit_on_error: True: a model that does not load at the start fails the start.
        strict_readiness: True: the server is ready when every model is.
        exit_timeout: Seconds that a stop waits for models to unload; whole seconds, rounded up.
        buffer_manager_thread_count: Threads that copy inputs, 1,024 at most; above 0 works once a
            process.
        model_load_thread_count: Models that load at the same time, 1,024 at most.
        model_load_retry_count: How often a failed load is tried again.
        model_namespacing: True: repositories may hold models of the same name.
        enable_peer_access: Whether GPUs may read each other's memory.
        log_file: A file for Triton's log; None: it goes to the ``logging`` module. Log settings
            belong to the process: the last server started wins.
        log_info: Whether INFO lines are logged.
        log_warn: Whether WARNING lines are logged.
        log_error: Whether ERROR lines are logged.
        log_format: How the lines of ``log_file`` look.
        log_verbose: Level of verbosity; 0 is none.
        metrics: Whether metrics are collected.
        gpu_metrics: Whether GPU metrics are; None: where the machine has an NVIDIA GPU.
        cpu_metrics: Whether CPU metrics are.
        metrics_interval: Seconds between two polls of GPU and CPU metrics. More than 1 is taken as
            1, because the exit of the process waits for a poll.
        backend_directory: A folder of backends, or several, beside the library's own.
        repo_agent_directory: Where repository agents are.
        model_load_device_limits: Memory limits for loads.
        backend_config: Settings by backend name; the name ``""`` is for all.
        host_policy: Settings (``numa-node``, ``cpu-cores``) by policy name.
        metrics_config: Settings by metric name; the name ``""`` is for all.

    C: ``TRITONSERVER_ServerOptionsNew`` and its setters, one for each attribute.
    """

    model_repository: Path | Sequence[Path] = _row(
        (), "ServerOptionsSetModelRepositoryPath", _paths
    )
    server_id: str = _row("triton", "ServerOptionsSetServerId", _text)
    model_control_mode: ModelControlMode = _row(
        ModelControlMode.EXPLICIT, "ServerOptionsSetModelControlMode", _choice(ModelControlMode)
    )
    startup_models: Sequence[str] = _row(("*",), "ServerOptionsSetStartupModel", _texts)
    strict_model_config: bool = _row(False, "ServerOptionsSetStrictModelConfig", _flag)
    model_config_name: str = _row("", "ServerOptionsSetModelConfigName", _text_unless_empty)
    rate_limiter_mode: RateLimitMode = _row(
        RateLimitMode.OFF, "ServerOptionsSetRateLimiterMode", _choice(RateLimitMode)
    )
    rate_limiter_resources: Sequence[RateLimiterResource] = _row(
        (), "ServerOptionsAddRateLimiterResource", _resources
    )
    pinned_memory_pool_byte_size: int = _row(
        1 << 28, "ServerOptionsSetPinnedMemoryPoolByteSize", _uint64
    )
    cuda_memory_pool_byte_size: Mapping[int, int] = _row(
        {}, "ServerOptionsSetCudaMemoryPoolByteSize", _sizes_by_device
    )
    cuda_virtual_address_size: Mapping[int, int] = _row(
        {}, "ServerOptionsSetCudaVirtualAddressSize", _sizes_by_device
    )
    response_cache_byte_size: int = _row(
        0, "ServerOptionsSetResponseCacheByteSize", _uint64_unless_zero
    )
    cache_config: Mapping[str, Mapping[str, object]] = _row(
        {}, "ServerOptionsSetCacheConfig", _json_by_name
    )
    cache_directory: Path | None = _row(None, "ServerOptionsSetCacheDirectory", _path_unless_none)
    min_supported_compute_capability: float = _row(
        6.0, "ServerOptionsSetMinSupportedComputeCapability", _real
    )
    exit_on_error: bool = _row(True, "ServerOptionsSetExitOnError", _flag)
    strict_readiness: bool = _row(True, "ServerOptionsSetStrictReadiness", _flag)
    exit_timeout: float = _row(30.0, "ServerOptionsSetExitTimeout", _whole_seconds)
    buffer_manager_thread_count: int = _row(0, "ServerOptionsSetBufferManagerThreadCount", _threads)
    model_load_thread_count: int = _row(4, "ServerOptionsSetModelLoadThreadCount", _threads)
    model_load_retry_count: int = _row(0, "ServerOptionsSetModelLoadRetryCount", _uint)
    model_namespacing: bool = _row(False, "ServerOptionsSetModelNamespacing", _flag)
    enable_peer_access: bool = _row(True, "ServerOptionsSetEnablePeerAccess", _flag)
    log_file: Path | None = _row(None, "ServerOptionsSetLogFile", _path_unless_none)
    log_info: bool = _row(False, "ServerOptionsSetLogInfo", _flag)
    log_warn: bool = _row(True, "ServerOptionsSetLogWarn", _flag)
    log_error: bool = _row(True, "ServerOptionsSetLogError", _flag)
    log_format: LogFormat = _row(LogFormat.DEFAULT, "ServerOptionsSetLogFormat", _choice(LogFormat))
    log_verbose: int = _row(0, "ServerOptionsSetLogVerbose", _int)
    metrics: bool = _row(True, "ServerOptionsSetMetrics", _flag)
    gpu_metrics: bool | None = _row(None, "ServerOptionsSetGpuMetrics", _flag_unless_none)
    cpu_metrics: bool = _row(True, "ServerOptionsSetCpuMetrics", _flag)
    metrics_interval: float = _row(0.1, "ServerOptionsSetMetricsInterval", _milliseconds)
    backend_directory: Path | Sequence[Path] = _row((), "ServerOptionsSetBackendDirectory", _paths)
    repo_agent_directory: Path | None = _row(
        None, "ServerOptionsSetRepoAgentDirectory", _path_unless_none
    )
    model_load_device_limits: Sequence[ModelLoadDeviceLimit] = _row(
        (), "ServerOptionsSetModelLoadDeviceLimit", _device_limits
    )
    backend_config: Mapping[str, Mapping[str, object]] = _row(
        {}, "ServerOptionsSetBackendConfig", _settings_within(_BACKEND_LIMITS)
    )
    host_policy: Mapping[str, Mapping[str, object]] = _row(
        {}, "ServerOptionsSetHostPolicy", _settings_within(_HOST_LIMITS)
    )
    metrics_config: Mapping[str, Mapping[str, object]] = _row(
        {}, "ServerOptionsSetMetricsConfig", _metrics_settings
    )

    def __post_init__(self) -> None:
        """Refuses wrong types and values now, before anything has been started."""
        for _ in self.calls():
            pass
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                object.__setattr__(self, field.name, plain_text(value, field.name))
        names = [plain_text(name, "startup_models") for name in self.startup_models]
        if any(a is not b for a, b in zip(names, self.startup_models, strict=True)):
            object.__setattr__(self, "startup_models", names)

    def calls(self) -> Iterator[tuple[str, Arguments, str]]:
        """Every call that these options come to: the C setter, its arguments, what they are."""
        for field in dataclasses.fields(self):
            what = f"option {field.name}"
            for arguments in field.metadata["convert"](getattr(self, field.name), what):
                yield field.metadata["setter"], arguments, what

    def paths(self, name: str) -> list[str]:
        """Return a field that holds a path or several as a list of absolute paths and URLs."""
        value = getattr(self, name)
        items = [value] if isinstance(value, (str, os.PathLike)) else value
        # Not resolve(): what a link points to may change, and is the user's business.
        return [
            item if "://" in item else os.path.abspath(item)  # noqa: PTH100
            for item in map(plain_path, items)  # a path's own form may be bytes
        ]

    def apply(self, options: object) -> None:
        """Sets everything on a ``TRITONSERVER_ServerOptions *``."""
        for setter, arguments, what in self.calls():
            check(getattr(lib, setter)(options, *arguments), what)
