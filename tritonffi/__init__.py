# SPDX-License-Identifier: Apache-2.0
"""Triton Inference Server inside a Python process."""

from types import FunctionType as _Function

from tritonffi._async_map import AsyncResponseMap
from tritonffi._asyncio import AsyncResponseStream
from tritonffi._enums import (
    InstanceGroupKind,
    LogFormat,
    LogLevel,
    MemoryType,
    MetricKind,
    ModelBatchFlag,
    ModelControlMode,
    ModelTxnPropertyFlag,
    RateLimitMode,
    RequestFlag,
    TraceActivity,
    TraceLevel,
)
from tritonffi._errors import (
    AlreadyExistsError,
    CancelledError,
    ClosedError,
    InternalError,
    InvalidArgumentError,
    LibraryNotFoundError,
    NotFoundError,
    QueueFullError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from tritonffi._function_context import Context, ContextRequest
from tritonffi._function_inputs import FunctionCopies, function_copies
from tritonffi._function_results import Result
from tritonffi._inference import Inference
from tritonffi._input import Chunks, Raw
from tritonffi._log_settings import LogSettings, is_log_enabled, log_message, log_settings
from tritonffi._map import ResponseMap
from tritonffi._memory_pool import MemoryPool, memory_pool
from tritonffi._metrics import Metric, MetricFamily
from tritonffi._metrics_text import MetricFamilySamples, MetricSample, parse_metrics
from tritonffi._model import Model
from tritonffi._options import ModelLoadDeviceLimit, RateLimiterResource, ServerOptions
from tritonffi._output import Label
from tritonffi._prepared import PreparedCall
from tritonffi._request import Request
from tritonffi._response import Response
from tritonffi._sequence import ModelSequence
from tritonffi._server import ModelStatus, Server
from tritonffi._spec import TensorSpec
from tritonffi._statistics import (
    BatchStatistics,
    MemoryUsage,
    ModelStatistics,
    ResponseStatistics,
    ServerStatistics,
    StatisticDuration,
)
from tritonffi._stream import ResponseStream
from tritonffi._trace import Trace, chrome_trace
from tritonffi._trace_record import TraceEvent, TraceRecord, TraceSpan, TraceTensor

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseMap",
    "AsyncResponseStream",
    "BatchStatistics",
    "CancelledError",
    "Chunks",
    "ClosedError",
    "Context",
    "ContextRequest",
    "FunctionCopies",
    "Inference",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "Label",
    "LibraryNotFoundError",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "MemoryPool",
    "MemoryType",
    "MemoryUsage",
    "Metric",
    "MetricFamily",
    "MetricFamilySamples",
    "MetricKind",
    "MetricSample",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelLoadDeviceLimit",
    "ModelSequence",
    "ModelStatistics",
    "ModelStatus",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "PreparedCall",
    "QueueFullError",
    "RateLimitMode",
    "RateLimiterResource",
    "Raw",
    "Request",
    "RequestFlag",
    "Response",
    "ResponseMap",
    "ResponseStatistics",
    "ResponseStream",
    "Result",
    "Server",
    "ServerOptions",
    "ServerStatistics",
    "StatisticDuration",
    "TensorSpec",
    "Trace",
    "TraceActivity",
    "TraceEvent",
    "TraceLevel",
    "TraceRecord",
    "TraceSpan",
    "TraceTensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "__version__",
    "chrome_trace",
    "function_copies",
    "is_log_enabled",
    "log_message",
    "log_settings",
    "memory_pool",
    "parse_metrics",
]

__version__ = "0.1.0"

# Where help, tracebacks and pickles say that these are: how they are divided up is no promise.
for _public in map(globals().__getitem__, __all__):
    if isinstance(_public, (type, _Function)):
        _public.__module__ = __name__
