/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Triton's in-process C API, version 1.34, by object: the source of the cdef, and the include of
 * every file here unless the build is pointed at Triton's own header.
 *
 * Lines that begin with a number sign are dropped for the cdef. So there is no macro, attribute or
 * inline function in a declaration, types are spelled "struct X *", and every enumerator has its
 * value.
 */

#ifndef TRITONFFI_TRITONSERVER_H
#define TRITONFFI_TRITONSERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRITONSERVER_API_VERSION_MAJOR 1
#define TRITONSERVER_API_VERSION_MINOR 34

struct TRITONSERVER_BufferAttributes;
struct TRITONSERVER_Error;
struct TRITONSERVER_InferenceRequest;
struct TRITONSERVER_InferenceResponse;
struct TRITONSERVER_InferenceTrace;
struct TRITONSERVER_Message;
struct TRITONSERVER_Metric;
struct TRITONSERVER_MetricArgs;
struct TRITONSERVER_MetricFamily;
struct TRITONSERVER_Metrics;
struct TRITONSERVER_Parameter;
struct TRITONSERVER_ResponseAllocator;
struct TRITONSERVER_Server;
struct TRITONSERVER_ServerOptions;

/* The version of the library that was loaded, as against the two macros above: those are ours. */
struct TRITONSERVER_Error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor);

/*
 * Errors. A function that can fail returns one, or NULL for success. Whoever receives it owns it
 * and deletes it; the two strings live inside it. ErrorCodeString calls CANCELLED invalid, so
 * names are made from the enum instead.
 */
typedef enum {
  TRITONSERVER_ERROR_UNKNOWN = 0,
  TRITONSERVER_ERROR_INTERNAL = 1,
  TRITONSERVER_ERROR_NOT_FOUND = 2,
  TRITONSERVER_ERROR_INVALID_ARG = 3,
  TRITONSERVER_ERROR_UNAVAILABLE = 4,
  TRITONSERVER_ERROR_UNSUPPORTED = 5,
  TRITONSERVER_ERROR_ALREADY_EXISTS = 6,
  TRITONSERVER_ERROR_CANCELLED = 7
} TRITONSERVER_Error_Code;

struct TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *msg);
void TRITONSERVER_ErrorDelete(struct TRITONSERVER_Error *error);
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(struct TRITONSERVER_Error *error);
const char *TRITONSERVER_ErrorCodeString(struct TRITONSERVER_Error *error);
const char *TRITONSERVER_ErrorMessage(struct TRITONSERVER_Error *error);

/* Element types. The name is static text. BYTES has no element size: 0. */
typedef enum {
  TRITONSERVER_TYPE_INVALID = 0,
  TRITONSERVER_TYPE_BOOL = 1,
  TRITONSERVER_TYPE_UINT8 = 2,
  TRITONSERVER_TYPE_UINT16 = 3,
  TRITONSERVER_TYPE_UINT32 = 4,
  TRITONSERVER_TYPE_UINT64 = 5,
  TRITONSERVER_TYPE_INT8 = 6,
  TRITONSERVER_TYPE_INT16 = 7,
  TRITONSERVER_TYPE_INT32 = 8,
  TRITONSERVER_TYPE_INT64 = 9,
  TRITONSERVER_TYPE_FP16 = 10,
  TRITONSERVER_TYPE_FP32 = 11,
  TRITONSERVER_TYPE_FP64 = 12,
  TRITONSERVER_TYPE_BYTES = 13,
  TRITONSERVER_TYPE_BF16 = 14
} TRITONSERVER_DataType;

const char *TRITONSERVER_DataTypeString(TRITONSERVER_DataType datatype);
TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char *dtype);
uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType datatype);

/* Where memory is. An id goes with it: the number of the GPU, else 0. */
typedef enum {
  TRITONSERVER_MEMORY_CPU = 0,
  TRITONSERVER_MEMORY_CPU_PINNED = 1,
  TRITONSERVER_MEMORY_GPU = 2
} TRITONSERVER_MemoryType;

const char *TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType type);

/*
 * Parameters: labels of metrics, name mappings of repositories, overrides of a load. The caller
 * owns what New returns, and lends it to the call that uses it. New copies name and value,
 * ParameterBytesNew only points at its bytes. Both return NULL when they refuse.
 */
typedef enum {
  TRITONSERVER_PARAMETER_STRING = 0,
  TRITONSERVER_PARAMETER_INT = 1,
  TRITONSERVER_PARAMETER_BOOL = 2,
  TRITONSERVER_PARAMETER_DOUBLE = 3,
  TRITONSERVER_PARAMETER_BYTES = 4
} TRITONSERVER_ParameterType;

const char *TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType type);
struct TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name,
    TRITONSERVER_ParameterType type, const void *value);
struct TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name,
    const void *byte_ptr, uint64_t size);
void TRITONSERVER_ParameterDelete(struct TRITONSERVER_Parameter *parameter);

/* What an instance of a model runs on. */
typedef enum {
  TRITONSERVER_INSTANCEGROUPKIND_AUTO = 0,
  TRITONSERVER_INSTANCEGROUPKIND_CPU = 1,
  TRITONSERVER_INSTANCEGROUPKIND_GPU = 2,
  TRITONSERVER_INSTANCEGROUPKIND_MODEL = 3
} TRITONSERVER_InstanceGroupKind;

const char *TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind);

/* Triton's log: one for the process, whichever server it is set through. */
typedef enum {
  TRITONSERVER_LOG_INFO = 0,
  TRITONSERVER_LOG_WARN = 1,
  TRITONSERVER_LOG_ERROR = 2,
  TRITONSERVER_LOG_VERBOSE = 3
} TRITONSERVER_LogLevel;

typedef enum {
  TRITONSERVER_LOG_DEFAULT = 0,
  TRITONSERVER_LOG_ISO8601 = 1
} TRITONSERVER_LogFormat;

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level);
struct TRITONSERVER_Error *TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level,
    const char *filename, int line, const char *msg);

/*
 * Messages carry JSON. The text that SerializeToJson gives is not terminated and lives as long as
 * the message.
 */
struct TRITONSERVER_Error *TRITONSERVER_MessageNewFromSerializedJson(
    struct TRITONSERVER_Message **message, const char *base, size_t byte_size);
struct TRITONSERVER_Error *TRITONSERVER_MessageDelete(struct TRITONSERVER_Message *message);
struct TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(struct TRITONSERVER_Message *message,
    const char **base, size_t *byte_size);

/*
 * Buffer attributes: the caller owns what New returns, and its byte size is not initialised. Those
 * that Triton passes to a callback stay Triton's. SetCudaIpcHandle copies 64 bytes and must not
 * get NULL.
 */
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesNew(
    struct TRITONSERVER_BufferAttributes **attributes);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesDelete(
    struct TRITONSERVER_BufferAttributes *attributes);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetMemoryTypeId(
    struct TRITONSERVER_BufferAttributes *attributes, int64_t memory_type_id);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetMemoryType(
    struct TRITONSERVER_BufferAttributes *attributes, TRITONSERVER_MemoryType memory_type);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetCudaIpcHandle(
    struct TRITONSERVER_BufferAttributes *attributes, void *handle);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetByteSize(
    struct TRITONSERVER_BufferAttributes *attributes, size_t byte_size);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesMemoryTypeId(
    struct TRITONSERVER_BufferAttributes *attributes, int64_t *memory_type_id);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesMemoryType(
    struct TRITONSERVER_BufferAttributes *attributes, TRITONSERVER_MemoryType *memory_type);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesCudaIpcHandle(
    struct TRITONSERVER_BufferAttributes *attributes, void **handle);
struct TRITONSERVER_Error *TRITONSERVER_BufferAttributesByteSize(
    struct TRITONSERVER_BufferAttributes *attributes, size_t *byte_size);

/*
 * The response allocator: where a response's outputs go. Triton calls it from any of its threads
 * and from the thread that submits. It must outlive every response, since each keeps a bare
 * pointer to it. release_fn is called only for buffers that are not NULL.
 */
typedef struct TRITONSERVER_Error *(*TRITONSERVER_ResponseAllocatorAllocFn_t)(
    struct TRITONSERVER_ResponseAllocator *allocator, const char *tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void *userp, void **buffer,
    void **buffer_userp, TRITONSERVER_MemoryType *actual_memory_type,
    int64_t *actual_memory_type_id);
typedef struct TRITONSERVER_Error *(*TRITONSERVER_ResponseAllocatorReleaseFn_t)(
    struct TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *buffer_userp,
    size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id);
typedef struct TRITONSERVER_Error *(*TRITONSERVER_ResponseAllocatorStartFn_t)(
    struct TRITONSERVER_ResponseAllocator *allocator, void *userp);
typedef struct TRITONSERVER_Error *(*TRITONSERVER_ResponseAllocatorQueryFn_t)(
    struct TRITONSERVER_ResponseAllocator *allocator, void *userp, const char *tensor_name,
    size_t *byte_size, TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id);
typedef struct TRITONSERVER_Error *(*TRITONSERVER_ResponseAllocatorBufferAttributesFn_t)(
    struct TRITONSERVER_ResponseAllocator *allocator, const char *tensor_name,
    struct TRITONSERVER_BufferAttributes *attributes, void *userp, void *buffer_userp);

struct TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorNew(
    struct TRITONSERVER_ResponseAllocator **allocator,
    TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn,
    TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn,
    TRITONSERVER_ResponseAllocatorStartFn_t start_fn);
struct TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorSetQueryFunction(
    struct TRITONSERVER_ResponseAllocator *allocator,
    TRITONSERVER_ResponseAllocatorQueryFn_t query_fn);
struct TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    struct TRITONSERVER_ResponseAllocator *allocator,
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t buffer_attributes_fn);
struct TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorDelete(
    struct TRITONSERVER_ResponseAllocator *allocator);

/*
 * Traces. The caller owns a trace until ServerInferAsync takes it; then it comes back through
 * release_fn, which deletes it. Tensor data is valid only inside the callback. The levels are bits
 * (MIN and MAX are of the past).
 */
typedef enum {
  TRITONSERVER_TRACE_LEVEL_DISABLED = 0,
  TRITONSERVER_TRACE_LEVEL_MIN = 1,
  TRITONSERVER_TRACE_LEVEL_MAX = 2,
  TRITONSERVER_TRACE_LEVEL_TIMESTAMPS = 4,
  TRITONSERVER_TRACE_LEVEL_TENSORS = 8
} TRITONSERVER_InferenceTraceLevel;

typedef enum {
  TRITONSERVER_TRACE_REQUEST_START = 0,
  TRITONSERVER_TRACE_QUEUE_START = 1,
  TRITONSERVER_TRACE_COMPUTE_START = 2,
  TRITONSERVER_TRACE_COMPUTE_INPUT_END = 3,
  TRITONSERVER_TRACE_COMPUTE_OUTPUT_START = 4,
  TRITONSERVER_TRACE_COMPUTE_END = 5,
  TRITONSERVER_TRACE_REQUEST_END = 6,
  TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT = 7,
  TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT = 8,
  TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT = 9,
  TRITONSERVER_TRACE_CUSTOM_ACTIVITY = 10
} TRITONSERVER_InferenceTraceActivity;

typedef void (*TRITONSERVER_InferenceTraceActivityFn_t)(struct TRITONSERVER_InferenceTrace *trace,
    TRITONSERVER_InferenceTraceActivity activity, uint64_t timestamp_ns, void *userp);
typedef void (*TRITONSERVER_InferenceTraceTensorActivityFn_t)(
    struct TRITONSERVER_InferenceTrace *trace, TRITONSERVER_InferenceTraceActivity activity,
    const char *name, TRITONSERVER_DataType datatype, const void *base, size_t byte_size,
    const int64_t *shape, uint64_t dim_count, TRITONSERVER_MemoryType memory_type,
    int64_t memory_type_id, void *userp);
typedef void (*TRITONSERVER_InferenceTraceReleaseFn_t)(struct TRITONSERVER_InferenceTrace *trace,
    void *userp);

const char *TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel level);
const char *TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity activity);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceNew(
    struct TRITONSERVER_InferenceTrace **trace, TRITONSERVER_InferenceTraceLevel level,
    uint64_t parent_id, TRITONSERVER_InferenceTraceActivityFn_t activity_fn,
    TRITONSERVER_InferenceTraceReleaseFn_t release_fn, void *trace_userp);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceTensorNew(
    struct TRITONSERVER_InferenceTrace **trace, TRITONSERVER_InferenceTraceLevel level,
    uint64_t parent_id, TRITONSERVER_InferenceTraceActivityFn_t activity_fn,
    TRITONSERVER_InferenceTraceTensorActivityFn_t tensor_activity_fn,
    TRITONSERVER_InferenceTraceReleaseFn_t release_fn, void *trace_userp);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceDelete(
    struct TRITONSERVER_InferenceTrace *trace);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceReportActivity(
    struct TRITONSERVER_InferenceTrace *trace, uint64_t timestamp, const char *activity_name);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceSpawnChildTrace(
    struct TRITONSERVER_InferenceTrace *trace, struct TRITONSERVER_InferenceTrace **child_trace);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceId(struct TRITONSERVER_InferenceTrace *trace,
    uint64_t *id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceParentId(
    struct TRITONSERVER_InferenceTrace *trace, uint64_t *parent_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceModelName(
    struct TRITONSERVER_InferenceTrace *trace, const char **model_name);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceModelVersion(
    struct TRITONSERVER_InferenceTrace *trace, int64_t *model_version);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceRequestId(
    struct TRITONSERVER_InferenceTrace *trace, const char **request_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceSetContext(
    struct TRITONSERVER_InferenceTrace *trace, const char *trace_context);
struct TRITONSERVER_Error *TRITONSERVER_InferenceTraceContext(
    struct TRITONSERVER_InferenceTrace *trace, const char **trace_context);

/*
 * Requests. The caller owns one until ServerInferAsync succeeds; from then on it is Triton's, all
 * but Cancel and IsCancelled, until release_fn gives it back. A request pins its model even before
 * it is submitted. Input data is borrowed until then, names and shapes are copied. Parameters
 * append: setting one twice gives two, and none can be read or removed.
 */
typedef enum {
  TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1,
  TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
} TRITONSERVER_RequestFlag;

typedef enum {
  TRITONSERVER_REQUEST_RELEASE_ALL = 1,
  TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
} TRITONSERVER_RequestReleaseFlag;

typedef enum {
  TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
} TRITONSERVER_ResponseCompleteFlag;

typedef void (*TRITONSERVER_InferenceRequestReleaseFn_t)(
    struct TRITONSERVER_InferenceRequest *request, uint32_t flags, void *userp);
typedef void (*TRITONSERVER_InferenceResponseCompleteFn_t)(
    struct TRITONSERVER_InferenceResponse *response, uint32_t flags, void *userp);

struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestNew(
    struct TRITONSERVER_InferenceRequest **request, struct TRITONSERVER_Server *server,
    const char *model_name, int64_t model_version);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestDelete(
    struct TRITONSERVER_InferenceRequest *request);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetReleaseCallback(
    struct TRITONSERVER_InferenceRequest *request,
    TRITONSERVER_InferenceRequestReleaseFn_t release_fn, void *release_userp);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetResponseCallback(
    struct TRITONSERVER_InferenceRequest *request, struct TRITONSERVER_ResponseAllocator *allocator,
    void *allocator_userp, TRITONSERVER_InferenceResponseCompleteFn_t response_fn,
    void *response_userp);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestCancel(
    struct TRITONSERVER_InferenceRequest *request);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestIsCancelled(
    struct TRITONSERVER_InferenceRequest *request, bool *cancelled);

struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestId(
    struct TRITONSERVER_InferenceRequest *request, const char **id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetId(
    struct TRITONSERVER_InferenceRequest *request, const char *id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestFlags(
    struct TRITONSERVER_InferenceRequest *request, uint32_t *flags);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetFlags(
    struct TRITONSERVER_InferenceRequest *request, uint32_t flags);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestCorrelationId(
    struct TRITONSERVER_InferenceRequest *request, uint64_t *correlation_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestCorrelationIdString(
    struct TRITONSERVER_InferenceRequest *request, const char **correlation_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetCorrelationId(
    struct TRITONSERVER_InferenceRequest *request, uint64_t correlation_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetCorrelationIdString(
    struct TRITONSERVER_InferenceRequest *request, const char *correlation_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestPriority(
    struct TRITONSERVER_InferenceRequest *request, uint32_t *priority);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestPriorityUInt64(
    struct TRITONSERVER_InferenceRequest *request, uint64_t *priority);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetPriority(
    struct TRITONSERVER_InferenceRequest *request, uint32_t priority);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetPriorityUInt64(
    struct TRITONSERVER_InferenceRequest *request, uint64_t priority);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestTimeoutMicroseconds(
    struct TRITONSERVER_InferenceRequest *request, uint64_t *timeout_us);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
    struct TRITONSERVER_InferenceRequest *request, uint64_t timeout_us);

struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddInput(
    struct TRITONSERVER_InferenceRequest *request, const char *name, TRITONSERVER_DataType datatype,
    const int64_t *shape, uint64_t dim_count);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddRawInput(
    struct TRITONSERVER_InferenceRequest *request, const char *name);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestRemoveInput(
    struct TRITONSERVER_InferenceRequest *request, const char *name);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestRemoveAllInputs(
    struct TRITONSERVER_InferenceRequest *request);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(
    struct TRITONSERVER_InferenceRequest *request, const char *name, const void *base,
    size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    struct TRITONSERVER_InferenceRequest *request, const char *name, const void *base,
    size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id,
    const char *host_policy_name);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    struct TRITONSERVER_InferenceRequest *request, const char *name, const void *base,
    struct TRITONSERVER_BufferAttributes *attributes);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestRemoveAllInputData(
    struct TRITONSERVER_InferenceRequest *request, const char *name);

struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddRequestedOutput(
    struct TRITONSERVER_InferenceRequest *request, const char *name);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestRemoveRequestedOutput(
    struct TRITONSERVER_InferenceRequest *request, const char *name);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(
    struct TRITONSERVER_InferenceRequest *request);

struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetStringParameter(
    struct TRITONSERVER_InferenceRequest *request, const char *key, const char *value);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetIntParameter(
    struct TRITONSERVER_InferenceRequest *request, const char *key, int64_t value);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetBoolParameter(
    struct TRITONSERVER_InferenceRequest *request, const char *key, bool value);
struct TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetDoubleParameter(
    struct TRITONSERVER_InferenceRequest *request, const char *key, double value);

/*
 * Responses. The receiver owns one, and all that can be read from it lives inside it. Until it is
 * deleted it holds its model, and so holds up the server's stop. InferenceResponseError makes a
 * new error at every call.
 */
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseDelete(
    struct TRITONSERVER_InferenceResponse *response);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseError(
    struct TRITONSERVER_InferenceResponse *response);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseId(
    struct TRITONSERVER_InferenceResponse *response, const char **request_id);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseModel(
    struct TRITONSERVER_InferenceResponse *response, const char **model_name,
    int64_t *model_version);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameterCount(
    struct TRITONSERVER_InferenceResponse *response, uint32_t *count);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameter(
    struct TRITONSERVER_InferenceResponse *response, uint32_t index, const char **name,
    TRITONSERVER_ParameterType *type, const void **value);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputCount(
    struct TRITONSERVER_InferenceResponse *response, uint32_t *count);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutput(
    struct TRITONSERVER_InferenceResponse *response, uint32_t index, const char **name,
    TRITONSERVER_DataType *datatype, const int64_t **shape, uint64_t *dim_count, const void **base,
    size_t *byte_size, TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id, void **userp);
struct TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputClassificationLabel(
    struct TRITONSERVER_InferenceResponse *response, uint32_t index, size_t class_index,
    const char **label);

/*
 * Server options. The caller owns them and may delete them as soon as ServerNew has returned.
 * Every string is copied and must not be NULL. ModelLoadRetryCount and EnablePeerAccess start
 * uninitialised: both are always set. The log setters act at once, on the whole process.
 */
typedef enum {
  TRITONSERVER_MODEL_CONTROL_NONE = 0,
  TRITONSERVER_MODEL_CONTROL_POLL = 1,
  TRITONSERVER_MODEL_CONTROL_EXPLICIT = 2
} TRITONSERVER_ModelControlMode;

typedef enum {
  TRITONSERVER_RATE_LIMIT_OFF = 0,
  TRITONSERVER_RATE_LIMIT_EXEC_COUNT = 1
} TRITONSERVER_RateLimitMode;

struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsNew(
    struct TRITONSERVER_ServerOptions **options);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsDelete(
    struct TRITONSERVER_ServerOptions *options);

struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetServerId(
    struct TRITONSERVER_ServerOptions *options, const char *server_id);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetModelRepositoryPath(
    struct TRITONSERVER_ServerOptions *options, const char *path);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetModelControlMode(
    struct TRITONSERVER_ServerOptions *options, TRITONSERVER_ModelControlMode mode);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetStartupModel(
    struct TRITONSERVER_ServerOptions *options, const char *model_name);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetStrictModelConfig(
    struct TRITONSERVER_ServerOptions *options, bool strict);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetModelConfigName(
    struct TRITONSERVER_ServerOptions *options, const char *name);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetModelNamespacing(
    struct TRITONSERVER_ServerOptions *options, bool enable);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetBackendDirectory(
    struct TRITONSERVER_ServerOptions *options, const char *backend_dir);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetRepoAgentDirectory(
    struct TRITONSERVER_ServerOptions *options, const char *repoagent_dir);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCacheDirectory(
    struct TRITONSERVER_ServerOptions *options, const char *cache_dir);

struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetExitOnError(
    struct TRITONSERVER_ServerOptions *options, bool exit);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetStrictReadiness(
    struct TRITONSERVER_ServerOptions *options, bool strict);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetExitTimeout(
    struct TRITONSERVER_ServerOptions *options, unsigned int timeout);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(
    struct TRITONSERVER_ServerOptions *options, unsigned int thread_count);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetModelLoadThreadCount(
    struct TRITONSERVER_ServerOptions *options, unsigned int thread_count);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetModelLoadRetryCount(
    struct TRITONSERVER_ServerOptions *options, unsigned int retry_count);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
    struct TRITONSERVER_ServerOptions *options, TRITONSERVER_InstanceGroupKind kind, int device_id,
    double fraction);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(
    struct TRITONSERVER_ServerOptions *options, double cc);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetEnablePeerAccess(
    struct TRITONSERVER_ServerOptions *options, bool enable);

struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(
    struct TRITONSERVER_ServerOptions *options, uint64_t size);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(
    struct TRITONSERVER_ServerOptions *options, int gpu_device, uint64_t size);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(
    struct TRITONSERVER_ServerOptions *options, int gpu_device, size_t size);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetResponseCacheByteSize(
    struct TRITONSERVER_ServerOptions *options, uint64_t size);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCacheConfig(
    struct TRITONSERVER_ServerOptions *options, const char *cache_name, const char *config_json);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetRateLimiterMode(
    struct TRITONSERVER_ServerOptions *options, TRITONSERVER_RateLimitMode mode);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsAddRateLimiterResource(
    struct TRITONSERVER_ServerOptions *options, const char *resource_name, size_t resource_count,
    int device);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetBackendConfig(
    struct TRITONSERVER_ServerOptions *options, const char *backend_name, const char *setting,
    const char *value);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetHostPolicy(
    struct TRITONSERVER_ServerOptions *options, const char *policy_name, const char *setting,
    const char *value);

struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogFile(
    struct TRITONSERVER_ServerOptions *options, const char *file);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogInfo(
    struct TRITONSERVER_ServerOptions *options, bool log);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogWarn(
    struct TRITONSERVER_ServerOptions *options, bool log);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogError(
    struct TRITONSERVER_ServerOptions *options, bool log);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogFormat(
    struct TRITONSERVER_ServerOptions *options, TRITONSERVER_LogFormat format);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLogVerbose(
    struct TRITONSERVER_ServerOptions *options, int level);

struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetMetrics(
    struct TRITONSERVER_ServerOptions *options, bool metrics);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetGpuMetrics(
    struct TRITONSERVER_ServerOptions *options, bool gpu_metrics);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetCpuMetrics(
    struct TRITONSERVER_ServerOptions *options, bool cpu_metrics);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetMetricsInterval(
    struct TRITONSERVER_ServerOptions *options, uint64_t interval_ms);
struct TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetMetricsConfig(
    struct TRITONSERVER_ServerOptions *options, const char *name, const char *setting,
    const char *value);

/*
 * The server. ServerDelete frees only when its stop succeeds; a second try frees under whatever is
 * still alive, so a stop that failed is not followed by a delete. Messages that it gives are the
 * caller's. Model version -1 means the latest. ServerInferAsync takes the request on success and
 * leaves it with the caller on an error.
 */
typedef enum {
  TRITONSERVER_BATCH_UNKNOWN = 1,
  TRITONSERVER_BATCH_FIRST_DIM = 2
} TRITONSERVER_ModelBatchFlag;

typedef enum {
  TRITONSERVER_TXN_ONE_TO_ONE = 1,
  TRITONSERVER_TXN_DECOUPLED = 2
} TRITONSERVER_ModelTxnPropertyFlag;

typedef enum {
  TRITONSERVER_INDEX_FLAG_READY = 1
} TRITONSERVER_ModelIndexFlag;

struct TRITONSERVER_Error *TRITONSERVER_ServerNew(struct TRITONSERVER_Server **server,
    struct TRITONSERVER_ServerOptions *options);
struct TRITONSERVER_Error *TRITONSERVER_ServerDelete(struct TRITONSERVER_Server *server);
struct TRITONSERVER_Error *TRITONSERVER_ServerStop(struct TRITONSERVER_Server *server);
struct TRITONSERVER_Error *TRITONSERVER_ServerSetExitTimeout(struct TRITONSERVER_Server *server,
    unsigned int timeout);
struct TRITONSERVER_Error *TRITONSERVER_ServerIsLive(struct TRITONSERVER_Server *server,
    bool *live);
struct TRITONSERVER_Error *TRITONSERVER_ServerIsReady(struct TRITONSERVER_Server *server,
    bool *ready);
struct TRITONSERVER_Error *TRITONSERVER_ServerMetadata(struct TRITONSERVER_Server *server,
    struct TRITONSERVER_Message **metadata);
struct TRITONSERVER_Error *TRITONSERVER_ServerMetrics(struct TRITONSERVER_Server *server,
    struct TRITONSERVER_Metrics **metrics);

struct TRITONSERVER_Error *TRITONSERVER_ServerRegisterModelRepository(
    struct TRITONSERVER_Server *server, const char *repository_path,
    const struct TRITONSERVER_Parameter **name_mapping, uint32_t mapping_count);
struct TRITONSERVER_Error *TRITONSERVER_ServerUnregisterModelRepository(
    struct TRITONSERVER_Server *server, const char *repository_path);
struct TRITONSERVER_Error *TRITONSERVER_ServerPollModelRepository(
    struct TRITONSERVER_Server *server);
struct TRITONSERVER_Error *TRITONSERVER_ServerModelIndex(struct TRITONSERVER_Server *server,
    uint32_t flags, struct TRITONSERVER_Message **index);
struct TRITONSERVER_Error *TRITONSERVER_ServerLoadModel(struct TRITONSERVER_Server *server,
    const char *model_name);
struct TRITONSERVER_Error *TRITONSERVER_ServerLoadModelWithParameters(
    struct TRITONSERVER_Server *server, const char *model_name,
    const struct TRITONSERVER_Parameter **parameters, uint64_t parameter_count);
struct TRITONSERVER_Error *TRITONSERVER_ServerUnloadModel(struct TRITONSERVER_Server *server,
    const char *model_name);
struct TRITONSERVER_Error *TRITONSERVER_ServerUnloadModelAndDependents(
    struct TRITONSERVER_Server *server, const char *model_name);

struct TRITONSERVER_Error *TRITONSERVER_ServerModelIsReady(struct TRITONSERVER_Server *server,
    const char *model_name, int64_t model_version, bool *ready);
struct TRITONSERVER_Error *TRITONSERVER_ServerModelBatchProperties(
    struct TRITONSERVER_Server *server, const char *model_name, int64_t model_version,
    uint32_t *flags, void **unused);
struct TRITONSERVER_Error *TRITONSERVER_ServerModelTransactionProperties(
    struct TRITONSERVER_Server *server, const char *model_name, int64_t model_version,
    uint32_t *txn_flags, void **unused);
struct TRITONSERVER_Error *TRITONSERVER_ServerModelMetadata(struct TRITONSERVER_Server *server,
    const char *model_name, int64_t model_version, struct TRITONSERVER_Message **metadata);
struct TRITONSERVER_Error *TRITONSERVER_ServerModelStatistics(struct TRITONSERVER_Server *server,
    const char *model_name, int64_t model_version, struct TRITONSERVER_Message **statistics);
struct TRITONSERVER_Error *TRITONSERVER_ServerModelConfig(struct TRITONSERVER_Server *server,
    const char *model_name, int64_t model_version, uint32_t config_version,
    struct TRITONSERVER_Message **config);

struct TRITONSERVER_Error *TRITONSERVER_ServerInferAsync(struct TRITONSERVER_Server *server,
    struct TRITONSERVER_InferenceRequest *request, struct TRITONSERVER_InferenceTrace *trace);

/* Metrics: all of the process, as text that lives until the next MetricsFormatted or the delete. */
typedef enum {
  TRITONSERVER_METRIC_PROMETHEUS = 0
} TRITONSERVER_MetricFormat;

struct TRITONSERVER_Error *TRITONSERVER_MetricsFormatted(struct TRITONSERVER_Metrics *metrics,
    TRITONSERVER_MetricFormat format, const char **base, size_t *byte_size);
struct TRITONSERVER_Error *TRITONSERVER_MetricsDelete(struct TRITONSERVER_Metrics *metrics);

/*
 * Metrics of one's own. The caller owns families, arguments and metrics; a family goes after its
 * last metric, else the delete is refused. Labels are string parameters and are copied.
 */
typedef enum {
  TRITONSERVER_METRIC_KIND_COUNTER = 0,
  TRITONSERVER_METRIC_KIND_GAUGE = 1,
  TRITONSERVER_METRIC_KIND_HISTOGRAM = 2
} TRITONSERVER_MetricKind;

struct TRITONSERVER_Error *TRITONSERVER_MetricFamilyNew(struct TRITONSERVER_MetricFamily **family,
    TRITONSERVER_MetricKind kind, const char *name, const char *description);
struct TRITONSERVER_Error *TRITONSERVER_MetricFamilyDelete(
    struct TRITONSERVER_MetricFamily *family);
struct TRITONSERVER_Error *TRITONSERVER_GetMetricFamilyKind(
    struct TRITONSERVER_MetricFamily *family, TRITONSERVER_MetricKind *kind);
struct TRITONSERVER_Error *TRITONSERVER_MetricArgsNew(struct TRITONSERVER_MetricArgs **args);
struct TRITONSERVER_Error *TRITONSERVER_MetricArgsDelete(struct TRITONSERVER_MetricArgs *args);
struct TRITONSERVER_Error *TRITONSERVER_MetricArgsSetHistogram(struct TRITONSERVER_MetricArgs *args,
    const double *buckets, uint64_t buckets_count);
struct TRITONSERVER_Error *TRITONSERVER_MetricNew(struct TRITONSERVER_Metric **metric,
    struct TRITONSERVER_MetricFamily *family, const struct TRITONSERVER_Parameter **labels,
    uint64_t label_count);
struct TRITONSERVER_Error *TRITONSERVER_MetricNewWithArgs(struct TRITONSERVER_Metric **metric,
    struct TRITONSERVER_MetricFamily *family, const struct TRITONSERVER_Parameter **labels,
    uint64_t label_count, const struct TRITONSERVER_MetricArgs *args);
struct TRITONSERVER_Error *TRITONSERVER_MetricDelete(struct TRITONSERVER_Metric *metric);
struct TRITONSERVER_Error *TRITONSERVER_MetricValue(struct TRITONSERVER_Metric *metric,
    double *value);
struct TRITONSERVER_Error *TRITONSERVER_MetricIncrement(struct TRITONSERVER_Metric *metric,
    double value);
struct TRITONSERVER_Error *TRITONSERVER_MetricSet(struct TRITONSERVER_Metric *metric, double value);
struct TRITONSERVER_Error *TRITONSERVER_MetricObserve(struct TRITONSERVER_Metric *metric,
    double value);
struct TRITONSERVER_Error *TRITONSERVER_GetMetricKind(struct TRITONSERVER_Metric *metric,
    TRITONSERVER_MetricKind *kind);

#endif
