/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The part of Triton's backend API that backend.c uses, by object. Python does not see it: no cdef,
 * but its functions are in the import table all the same.
 */

#ifndef TRITONFFI_TRITONBACKEND_H
#define TRITONFFI_TRITONBACKEND_H

#include "tritonffi.h"

#define TRITONBACKEND_API_VERSION_MAJOR 1
#define TRITONBACKEND_API_VERSION_MINOR 19

struct TRITONBACKEND_Backend;
struct TRITONBACKEND_BackendAttribute;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_ModelInstanceResponseStatistics;
struct TRITONBACKEND_Output;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONBACKEND_ResponseFactory;

/* The version of the backend API that the library speaks. */
struct TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor);

/*
 * The backend. `state` is a pointer of ours that Triton keeps. The config message stays Triton's.
 */
typedef enum {
  TRITONBACKEND_EXECUTION_BLOCKING = 0,
  TRITONBACKEND_EXECUTION_DEVICE_BLOCKING = 1
} TRITONBACKEND_ExecutionPolicy;

struct TRITONSERVER_Error *TRITONBACKEND_BackendName(struct TRITONBACKEND_Backend *backend,
    const char **name);
struct TRITONSERVER_Error *TRITONBACKEND_BackendConfig(struct TRITONBACKEND_Backend *backend,
    struct TRITONSERVER_Message **backend_config);
struct TRITONSERVER_Error *TRITONBACKEND_BackendState(struct TRITONBACKEND_Backend *backend,
    void **state);
struct TRITONSERVER_Error *TRITONBACKEND_BackendSetState(struct TRITONBACKEND_Backend *backend,
    void *state);
struct TRITONSERVER_Error *TRITONBACKEND_BackendExecutionPolicy(
    struct TRITONBACKEND_Backend *backend, TRITONBACKEND_ExecutionPolicy *policy);
struct TRITONSERVER_Error *TRITONBACKEND_BackendSetExecutionPolicy(
    struct TRITONBACKEND_Backend *backend, TRITONBACKEND_ExecutionPolicy policy);
struct TRITONSERVER_Error *TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    struct TRITONBACKEND_BackendAttribute *attributes, TRITONSERVER_InstanceGroupKind kind,
    uint64_t count, const uint64_t *device_ids, uint64_t id_count);

/* A model. The config message is the caller's to delete; the other pointers stay Triton's. */
typedef enum {
  TRITONBACKEND_ARTIFACT_FILESYSTEM = 0
} TRITONBACKEND_ArtifactType;

struct TRITONSERVER_Error *TRITONBACKEND_ModelName(struct TRITONBACKEND_Model *model,
    const char **name);
struct TRITONSERVER_Error *TRITONBACKEND_ModelVersion(struct TRITONBACKEND_Model *model,
    uint64_t *version);
struct TRITONSERVER_Error *TRITONBACKEND_ModelRepository(struct TRITONBACKEND_Model *model,
    TRITONBACKEND_ArtifactType *artifact_type, const char **location);
struct TRITONSERVER_Error *TRITONBACKEND_ModelConfig(struct TRITONBACKEND_Model *model,
    uint32_t config_version, struct TRITONSERVER_Message **config);
struct TRITONSERVER_Error *TRITONBACKEND_ModelServer(struct TRITONBACKEND_Model *model,
    struct TRITONSERVER_Server **server);
struct TRITONSERVER_Error *TRITONBACKEND_ModelBackend(struct TRITONBACKEND_Model *model,
    struct TRITONBACKEND_Backend **backend);
struct TRITONSERVER_Error *TRITONBACKEND_ModelState(struct TRITONBACKEND_Model *model,
    void **state);
struct TRITONSERVER_Error *TRITONBACKEND_ModelSetState(struct TRITONBACKEND_Model *model,
    void *state);

/* One instance of a model: what Triton runs a batch on. */
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceName(
    struct TRITONBACKEND_ModelInstance *instance, const char **name);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(
    struct TRITONBACKEND_ModelInstance *instance, TRITONSERVER_InstanceGroupKind *kind);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(
    struct TRITONBACKEND_ModelInstance *instance, int32_t *device_id);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(
    struct TRITONBACKEND_ModelInstance *instance, struct TRITONBACKEND_Model **model);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(
    struct TRITONBACKEND_ModelInstance *instance, void **state);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(
    struct TRITONBACKEND_ModelInstance *instance, void *state);

/*
 * Times are nanoseconds of one clock. One report per request and one per batch make Triton's
 * statistics exact.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(
    struct TRITONBACKEND_ModelInstance *instance, struct TRITONBACKEND_Request *request,
    bool success, uint64_t exec_start_ns, uint64_t compute_start_ns, uint64_t compute_end_ns,
    uint64_t exec_end_ns);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    struct TRITONBACKEND_ModelInstance *instance, uint64_t batch_size, uint64_t exec_start_ns,
    uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns);

/*
 * A request is the backend's from ModelInstanceExecute until RequestRelease, unless Execute
 * returns an error. Whatever is read from it, inputs included, lives as long.
 */
struct TRITONSERVER_Error *TRITONBACKEND_RequestId(struct TRITONBACKEND_Request *request,
    const char **id);
struct TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationId(struct TRITONBACKEND_Request *request,
    uint64_t *id);
struct TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(
    struct TRITONBACKEND_Request *request, const char **id);
struct TRITONSERVER_Error *TRITONBACKEND_RequestFlags(struct TRITONBACKEND_Request *request,
    uint32_t *flags);
struct TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(struct TRITONBACKEND_Request *request,
    bool *cancelled);
struct TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(
    struct TRITONBACKEND_Request *request, uint32_t *count);
struct TRITONSERVER_Error *TRITONBACKEND_RequestParameter(struct TRITONBACKEND_Request *request,
    uint32_t index, const char **key, TRITONSERVER_ParameterType *type, const void **value);
struct TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    struct TRITONBACKEND_Request *request, uint64_t *timeout);
struct TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(struct TRITONBACKEND_Request *request,
    uint32_t *count);
struct TRITONSERVER_Error *TRITONBACKEND_RequestInputName(struct TRITONBACKEND_Request *request,
    uint32_t index, const char **input_name);
struct TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(struct TRITONBACKEND_Request *request,
    uint32_t index, struct TRITONBACKEND_Input **input);
struct TRITONSERVER_Error *TRITONBACKEND_RequestInput(struct TRITONBACKEND_Request *request,
    const char *name, struct TRITONBACKEND_Input **input);
struct TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(struct TRITONBACKEND_Request *request,
    uint32_t *count);
struct TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(struct TRITONBACKEND_Request *request,
    uint32_t index, const char **output_name);
/* Where an output will be, as far as the allocator's query function knows; the size may be NULL. */
struct TRITONSERVER_Error *TRITONBACKEND_RequestOutputBufferProperties(
    struct TRITONBACKEND_Request *request, const char *name, size_t *byte_size,
    TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id);
struct TRITONSERVER_Error *TRITONBACKEND_RequestRelease(struct TRITONBACKEND_Request *request,
    uint32_t release_flags);

/* An input may lie in several buffers, and not only in CPU memory. */
struct TRITONSERVER_Error *TRITONBACKEND_InputProperties(struct TRITONBACKEND_Input *input,
    const char **name, TRITONSERVER_DataType *datatype, const int64_t **shape, uint32_t *dims_count,
    uint64_t *byte_size, uint32_t *buffer_count);
struct TRITONSERVER_Error *TRITONBACKEND_InputBuffer(struct TRITONBACKEND_Input *input,
    uint32_t index, const void **buffer, uint64_t *buffer_byte_size,
    TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id);
/* The same of the data for one host policy; where there is none, of the data for all. */
struct TRITONSERVER_Error *TRITONBACKEND_InputPropertiesForHostPolicy(
    struct TRITONBACKEND_Input *input, const char *host_policy_name, const char **name,
    TRITONSERVER_DataType *datatype, const int64_t **shape, uint32_t *dims_count,
    uint64_t *byte_size, uint32_t *buffer_count);
struct TRITONSERVER_Error *TRITONBACKEND_InputBufferForHostPolicy(struct TRITONBACKEND_Input *input,
    const char *host_policy_name, uint32_t index, const void **buffer, uint64_t *buffer_byte_size,
    TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id);

/*
 * A factory makes responses beyond the first and may outlive its request. The backend owns it; it
 * goes after the response or the flags that are final.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryNew(
    struct TRITONBACKEND_ResponseFactory **factory, struct TRITONBACKEND_Request *request);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryDelete(
    struct TRITONBACKEND_ResponseFactory *factory);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseFactorySendFlags(
    struct TRITONBACKEND_ResponseFactory *factory, uint32_t send_flags);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryIsCancelled(
    struct TRITONBACKEND_ResponseFactory *factory, bool *cancelled);

/*
 * A response is the backend's until ResponseSend, which takes it even when it fails, or
 * ResponseDelete. The error given to ResponseSend stays the caller's. Outputs and their buffers
 * live inside the response.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ResponseNew(struct TRITONBACKEND_Response **response,
    struct TRITONBACKEND_Request *request);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseNewFromFactory(
    struct TRITONBACKEND_Response **response, struct TRITONBACKEND_ResponseFactory *factory);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseDelete(struct TRITONBACKEND_Response *response);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseSend(struct TRITONBACKEND_Response *response,
    uint32_t send_flags, struct TRITONSERVER_Error *error);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseSetStringParameter(
    struct TRITONBACKEND_Response *response, const char *name, const char *value);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseSetIntParameter(
    struct TRITONBACKEND_Response *response, const char *name, int64_t value);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseSetBoolParameter(
    struct TRITONBACKEND_Response *response, const char *name, bool value);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseSetDoubleParameter(
    struct TRITONBACKEND_Response *response, const char *name, double value);
struct TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(struct TRITONBACKEND_Response *response,
    struct TRITONBACKEND_Output **output, const char *name, TRITONSERVER_DataType datatype,
    const int64_t *shape, uint32_t dims_count);
struct TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(struct TRITONBACKEND_Output *output,
    void **buffer, uint64_t buffer_byte_size, TRITONSERVER_MemoryType *memory_type,
    int64_t *memory_type_id);

/*
 * The statistics of one response of a decoupled model: an object that the backend makes, fills and deletes. It keeps
 * nothing of what is set. Without a compute_output_start the response counts as empty.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(
    struct TRITONBACKEND_ModelInstanceResponseStatistics **response_statistics);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics,
    struct TRITONBACKEND_ModelInstance *model_instance);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics,
    struct TRITONBACKEND_ResponseFactory *response_factory);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics,
    uint64_t response_start);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics,
    uint64_t compute_output_start);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics,
    uint64_t response_end);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics,
    struct TRITONSERVER_Error *error);
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics);

#define TRITONFFI_EXPORT __attribute__((visibility("default")))

/*
 * What a backend defines: Triton looks these up by name, so they alone are exported, and they have
 * no place in the import table.
 */
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_Initialize(
    struct TRITONBACKEND_Backend *backend);
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_Finalize(
    struct TRITONBACKEND_Backend *backend);
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_GetBackendAttribute(
    struct TRITONBACKEND_Backend *backend, struct TRITONBACKEND_BackendAttribute *attributes);
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(
    struct TRITONBACKEND_Model *model);
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(
    struct TRITONBACKEND_Model *model);
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(
    struct TRITONBACKEND_ModelInstance *instance);
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(
    struct TRITONBACKEND_ModelInstance *instance);
TRITONFFI_EXPORT struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    struct TRITONBACKEND_ModelInstance *instance, struct TRITONBACKEND_Request **requests,
    uint32_t request_count);

#endif
