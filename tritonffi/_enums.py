# SPDX-License-Identifier: Apache-2.0
"""
The enumerations of the C API. Every value is read from the compiled declarations.

A class is the C type without its prefix (`Trace` stands for `InferenceTrace`), a member the C name
without the part that all of them share. Bits that may be set together are flags.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from tritonffi._native import lib


class ErrorCode(IntEnum):
    """The kinds of error; each has its exception class.

    C: ``TRITONSERVER_Error_Code``
    """

    UNKNOWN = lib.TRITONSERVER_ERROR_UNKNOWN
    INTERNAL = lib.TRITONSERVER_ERROR_INTERNAL
    NOT_FOUND = lib.TRITONSERVER_ERROR_NOT_FOUND
    INVALID_ARG = lib.TRITONSERVER_ERROR_INVALID_ARG
    UNAVAILABLE = lib.TRITONSERVER_ERROR_UNAVAILABLE
    UNSUPPORTED = lib.TRITONSERVER_ERROR_UNSUPPORTED
    ALREADY_EXISTS = lib.TRITONSERVER_ERROR_ALREADY_EXISTS
    CANCELLED = lib.TRITONSERVER_ERROR_CANCELLED


class DataType(IntEnum):
    """The element type of a tensor.

    C: ``TRITONSERVER_DataType``
    """

    INVALID = lib.TRITONSERVER_TYPE_INVALID
    BOOL = lib.TRITONSERVER_TYPE_BOOL
    UINT8 = lib.TRITONSERVER_TYPE_UINT8
    UINT16 = lib.TRITONSERVER_TYPE_UINT16
    UINT32 = lib.TRITONSERVER_TYPE_UINT32
    UINT64 = lib.TRITONSERVER_TYPE_UINT64
    INT8 = lib.TRITONSERVER_TYPE_INT8
    INT16 = lib.TRITONSERVER_TYPE_INT16
    INT32 = lib.TRITONSERVER_TYPE_INT32
    INT64 = lib.TRITONSERVER_TYPE_INT64
    FP16 = lib.TRITONSERVER_TYPE_FP16
    FP32 = lib.TRITONSERVER_TYPE_FP32
    FP64 = lib.TRITONSERVER_TYPE_FP64
    BYTES = lib.TRITONSERVER_TYPE_BYTES
    BF16 = lib.TRITONSERVER_TYPE_BF16


class MemoryType(IntEnum):
    """Where memory is.

    C: ``TRITONSERVER_MemoryType``
    """

    CPU = lib.TRITONSERVER_MEMORY_CPU
    CPU_PINNED = lib.TRITONSERVER_MEMORY_CPU_PINNED
    GPU = lib.TRITONSERVER_MEMORY_GPU


class ParameterType(IntEnum):
    """The type of a parameter's value.

    C: ``TRITONSERVER_ParameterType``
    """

    STRING = lib.TRITONSERVER_PARAMETER_STRING
    INT = lib.TRITONSERVER_PARAMETER_INT
    BOOL = lib.TRITONSERVER_PARAMETER_BOOL
    DOUBLE = lib.TRITONSERVER_PARAMETER_DOUBLE
    BYTES = lib.TRITONSERVER_PARAMETER_BYTES


class InstanceGroupKind(IntEnum):
    """What the instances of a model run on.

    C: ``TRITONSERVER_InstanceGroupKind``
    """

    AUTO = lib.TRITONSERVER_INSTANCEGROUPKIND_AUTO
    CPU = lib.TRITONSERVER_INSTANCEGROUPKIND_CPU
    GPU = lib.TRITONSERVER_INSTANCEGROUPKIND_GPU
    MODEL = lib.TRITONSERVER_INSTANCEGROUPKIND_MODEL


class LogLevel(IntEnum):
    """How grave a line of the log is.

    C: ``TRITONSERVER_LogLevel``
    """

    INFO = lib.TRITONSERVER_LOG_INFO
    WARN = lib.TRITONSERVER_LOG_WARN
    ERROR = lib.TRITONSERVER_LOG_ERROR
    VERBOSE = lib.TRITONSERVER_LOG_VERBOSE


class LogFormat(IntEnum):
    """How Triton writes the time into its log.

    C: ``TRITONSERVER_LogFormat``
    """

    DEFAULT = lib.TRITONSERVER_LOG_DEFAULT
    ISO8601 = lib.TRITONSERVER_LOG_ISO8601


class ModelControlMode(IntEnum):
    """Who loads models after the start: nobody, the repository's changes, or the program.

    C: ``TRITONSERVER_ModelControlMode``
    """

    NONE = lib.TRITONSERVER_MODEL_CONTROL_NONE
    POLL = lib.TRITONSERVER_MODEL_CONTROL_POLL
    EXPLICIT = lib.TRITONSERVER_MODEL_CONTROL_EXPLICIT


class RateLimitMode(IntEnum):
    """Whether executions wait for resources.

    C: ``TRITONSERVER_RateLimitMode``
    """

    OFF = lib.TRITONSERVER_RATE_LIMIT_OFF
    EXEC_COUNT = lib.TRITONSERVER_RATE_LIMIT_EXEC_COUNT


class ModelBatchFlag(IntFlag):
    """Whether a model batches, and along which axis.

    C: ``TRITONSERVER_ModelBatchFlag``
    """

    UNKNOWN = lib.TRITONSERVER_BATCH_UNKNOWN
    FIRST_DIM = lib.TRITONSERVER_BATCH_FIRST_DIM


class ModelIndexFlag(IntFlag):
    """Which models the index lists.

    C: ``TRITONSERVER_ModelIndexFlag``
    """

    READY = lib.TRITONSERVER_INDEX_FLAG_READY


class ModelTxnPropertyFlag(IntFlag):
    """Whether a model gives one response to a request, or any number.

    C: ``TRITONSERVER_ModelTxnPropertyFlag``
    """

    ONE_TO_ONE = lib.TRITONSERVER_TXN_ONE_TO_ONE
    DECOUPLED = lib.TRITONSERVER_TXN_DECOUPLED


class RequestFlag(IntFlag):
    """Where in a sequence a request stands.

    C: ``TRITONSERVER_RequestFlag``
    """

    SEQUENCE_START = lib.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
    SEQUENCE_END = lib.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END


class RequestReleaseFlag(IntFlag):
    """How far a request is released.

    C: ``TRITONSERVER_RequestReleaseFlag``
    """

    ALL = lib.TRITONSERVER_REQUEST_RELEASE_ALL
    RESCHEDULE = lib.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class ResponseCompleteFlag(IntFlag):
    """Whether a response is the last of its request.

    C: ``TRITONSERVER_ResponseCompleteFlag``
    """

    FINAL = lib.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class MetricKind(IntEnum):
    """The kind of a metric.

    C: ``TRITONSERVER_MetricKind``
    """

    COUNTER = lib.TRITONSERVER_METRIC_KIND_COUNTER
    GAUGE = lib.TRITONSERVER_METRIC_KIND_GAUGE
    HISTOGRAM = lib.TRITONSERVER_METRIC_KIND_HISTOGRAM


class MetricFormat(IntEnum):
    """The text that metrics are written as.

    C: ``TRITONSERVER_MetricFormat``
    """

    PROMETHEUS = lib.TRITONSERVER_METRIC_PROMETHEUS


class TraceLevel(IntFlag):
    """What a trace records; `MIN` and `MAX` are deprecated by Triton.

    C: ``TRITONSERVER_InferenceTraceLevel``
    """

    DISABLED = lib.TRITONSERVER_TRACE_LEVEL_DISABLED
    MIN = lib.TRITONSERVER_TRACE_LEVEL_MIN
    MAX = lib.TRITONSERVER_TRACE_LEVEL_MAX
    TIMESTAMPS = lib.TRITONSERVER_TRACE_LEVEL_TIMESTAMPS
    TENSORS = lib.TRITONSERVER_TRACE_LEVEL_TENSORS


class TraceActivity(IntEnum):
    """A point in the life of a request that a trace records.

    C: ``TRITONSERVER_InferenceTraceActivity``
    """

    REQUEST_START = lib.TRITONSERVER_TRACE_REQUEST_START
    QUEUE_START = lib.TRITONSERVER_TRACE_QUEUE_START
    COMPUTE_START = lib.TRITONSERVER_TRACE_COMPUTE_START
    COMPUTE_INPUT_END = lib.TRITONSERVER_TRACE_COMPUTE_INPUT_END
    COMPUTE_OUTPUT_START = lib.TRITONSERVER_TRACE_COMPUTE_OUTPUT_START
    COMPUTE_END = lib.TRITONSERVER_TRACE_COMPUTE_END
    REQUEST_END = lib.TRITONSERVER_TRACE_REQUEST_END
    TENSOR_QUEUE_INPUT = lib.TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT
    TENSOR_BACKEND_INPUT = lib.TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT
    TENSOR_BACKEND_OUTPUT = lib.TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT
    CUSTOM_ACTIVITY = lib.TRITONSERVER_TRACE_CUSTOM_ACTIVITY
