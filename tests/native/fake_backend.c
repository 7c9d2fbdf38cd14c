/* SPDX-License-Identifier: Apache-2.0 */

/* What the fake library has of the API that backends call. */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_inside.h"
#include "tritonbackend.h"

/* The backend API: a request with an input x and an output y, both of FAKE_ROWS rows of FAKE_FLOATS */

struct TRITONBACKEND_Request {
  int64_t shape[2];
  float data[FAKE_ROWS * FAKE_FLOATS];
  uint32_t number;
  bool answered;
};

struct TRITONBACKEND_ResponseFactory {
  struct TRITONBACKEND_Request *of;
};

struct TRITONBACKEND_Response {
  struct TRITONBACKEND_Request *of;
  float *data;
  size_t size;
};

void fake_backend_requests(struct TRITONBACKEND_Request **requests, uint32_t number)
{
  for (uint32_t i = 0; i < number; i++) {
    requests[i] = calloc(1, sizeof(*requests[i]));
    requests[i]->shape[0] = FAKE_ROWS;
    requests[i]->shape[1] = FAKE_FLOATS;
    requests[i]->data[0] = (float)i;
    requests[i]->number = i;
    count(&alive.requests, 1);
  }
}

struct TRITONBACKEND_Model {
  void *state;
  char config[128];
};

struct TRITONBACKEND_ModelInstance {
  void *state;
  struct TRITONBACKEND_Model *model;
};

struct TRITONBACKEND_Model *fake_model_new(uint64_t token)
{
  struct TRITONBACKEND_Model *model = calloc(1, sizeof(*model));
  snprintf(model->config, sizeof(model->config), "{\"parameters\":{\"tritonffi.token\":{\"string_value\":\"%llu\"}}}",
           (unsigned long long)token);
  return model;
}

struct TRITONBACKEND_ModelInstance *fake_instance_new(struct TRITONBACKEND_Model *model)
{
  struct TRITONBACKEND_ModelInstance *instance = calloc(1, sizeof(*instance));
  instance->model = model;
  return instance;
}

Error *TRITONBACKEND_ModelName(struct TRITONBACKEND_Model *model, const char **name)
{
  (void)model;
  MAY_FAIL();
  *name = "f";
  return NULL;
}

Error *TRITONBACKEND_ModelConfig(struct TRITONBACKEND_Model *model, const uint32_t version,
                                 struct TRITONSERVER_Message **config)
{
  (void)version;
  MAY_FAIL();
  count(&alive.messages, 1);
  *config = (struct TRITONSERVER_Message *)model;
  return NULL;
}

Error *TRITONSERVER_MessageSerializeToJson(struct TRITONSERVER_Message *message, const char **base, size_t *size)
{
  struct TRITONBACKEND_Model *model = (struct TRITONBACKEND_Model *)message;
  MAY_FAIL();
  *base = model->config;
  *size = strlen(model->config);
  return NULL;
}

Error *TRITONSERVER_MessageDelete(struct TRITONSERVER_Message *message)
{
  (void)message;
  count(&alive.messages, -1);
  return failure();
}

Error *TRITONBACKEND_ModelState(struct TRITONBACKEND_Model *model, void **state)
{
  MAY_FAIL();
  *state = model->state;
  return NULL;
}

Error *TRITONBACKEND_ModelSetState(struct TRITONBACKEND_Model *model, void *state)
{
  MAY_FAIL();
  model->state = state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceModel(struct TRITONBACKEND_ModelInstance *instance,
                                        struct TRITONBACKEND_Model **model)
{
  MAY_FAIL();
  *model = instance->model;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceState(struct TRITONBACKEND_ModelInstance *instance, void **state)
{
  MAY_FAIL();
  *state = instance->state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceSetState(struct TRITONBACKEND_ModelInstance *instance, void *state)
{
  MAY_FAIL();
  instance->state = state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceReportStatistics(struct TRITONBACKEND_ModelInstance *instance,
                                                   struct TRITONBACKEND_Request *about, const bool success,
                                                   const uint64_t exec_start, const uint64_t compute_start,
                                                   const uint64_t compute_end, const uint64_t exec_end)
{
  (void)instance;
  (void)about;
  (void)success;
  (void)exec_start;
  (void)compute_start;
  (void)compute_end;
  (void)exec_end;
  return failure();
}

Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(struct TRITONBACKEND_ModelInstance *instance,
                                                        const uint64_t batch_size, const uint64_t exec_start,
                                                        const uint64_t compute_start, const uint64_t compute_end,
                                                        const uint64_t exec_end)
{
  (void)instance;
  (void)batch_size;
  (void)exec_start;
  (void)compute_start;
  (void)compute_end;
  (void)exec_end;
  return failure();
}

Error *TRITONBACKEND_RequestInput(struct TRITONBACKEND_Request *of, const char *name,
                                  struct TRITONBACKEND_Input **input)
{
  MAY_FAIL();
  if (strcmp(name, "x") != 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "no such input");
  }
  *input = (struct TRITONBACKEND_Input *)of;
  return NULL;
}

Error *TRITONBACKEND_InputProperties(struct TRITONBACKEND_Input *input, const char **name,
                                     TRITONSERVER_DataType *datatype, const int64_t **shape, uint32_t *dim_count,
                                     uint64_t *byte_size, uint32_t *buffer_count)
{
  struct TRITONBACKEND_Request *of = (struct TRITONBACKEND_Request *)input;
  MAY_FAIL();
  *name = "x";
  *datatype = TRITONSERVER_TYPE_FP32;
  *shape = of->shape;
  *dim_count = 2;
  *byte_size = sizeof(of->data);
  *buffer_count = 1;
  return NULL;
}

Error *TRITONBACKEND_InputBuffer(struct TRITONBACKEND_Input *input, const uint32_t index, const void **buffer,
                                 uint64_t *size, TRITONSERVER_MemoryType *type, int64_t *type_id)
{
  struct TRITONBACKEND_Request *of = (struct TRITONBACKEND_Request *)input;
  (void)index;
  MAY_FAIL();
  *buffer = of->data;
  *size = sizeof(of->data);
  *type = TRITONSERVER_MEMORY_CPU;
  *type_id = 0;
  return NULL;
}

Error *TRITONBACKEND_RequestOutputCount(struct TRITONBACKEND_Request *of, uint32_t *number)
{
  (void)of;
  MAY_FAIL();
  *number = 1;
  return NULL;
}

Error *TRITONBACKEND_RequestOutputName(struct TRITONBACKEND_Request *of, const uint32_t index, const char **name)
{
  (void)of;
  (void)index;
  MAY_FAIL();
  *name = "y";
  return NULL;
}

Error *TRITONBACKEND_RequestRelease(struct TRITONBACKEND_Request *of, uint32_t flags)
{
  (void)flags;
  count(&alive.answered, of->answered ? 1 : 0);
  count(&alive.released, 1);
  count(&alive.requests, -1);
  free(of);
  return failure();
}

Error *TRITONBACKEND_ResponseNew(struct TRITONBACKEND_Response **made, struct TRITONBACKEND_Request *of)
{
  Error *error = failure();
  if (error != NULL) {
    count(&alive.refused, 1);
    return error;
  }
  *made = calloc(1, sizeof(**made));
  (*made)->of = of;
  count(&alive.responses, 1);
  return NULL;
}

static void drop_response(struct TRITONBACKEND_Response *old)
{
  free(old->data);
  free(old);
  count(&alive.responses, -1);
}

Error *TRITONBACKEND_ResponseDelete(struct TRITONBACKEND_Response *old)
{
  drop_response(old);
  return failure();
}

Error *TRITONBACKEND_ResponseSend(struct TRITONBACKEND_Response *last, const uint32_t flags, Error *error)
{
  (void)error;
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0) {
    last->of->answered = true;
  }
  drop_response(last);
  return failure();
}

Error *TRITONBACKEND_ResponseOutput(struct TRITONBACKEND_Response *of, struct TRITONBACKEND_Output **output,
                                    const char *name, const TRITONSERVER_DataType datatype, const int64_t *shape,
                                    const uint32_t dim_count)
{
  (void)name;
  (void)datatype;
  (void)shape;
  (void)dim_count;
  MAY_FAIL();
  *output = (struct TRITONBACKEND_Output *)of;
  return NULL;
}

Error *TRITONBACKEND_OutputBuffer(struct TRITONBACKEND_Output *output, void **buffer, const uint64_t size,
                                  TRITONSERVER_MemoryType *type, int64_t *type_id)
{
  struct TRITONBACKEND_Response *of = (struct TRITONBACKEND_Response *)output;
  (void)type_id;
  MAY_FAIL();
  of->data = malloc(size + 1);
  of->size = size;
  *buffer = of->data;
  *type = TRITONSERVER_MEMORY_CPU;
  return NULL;
}

#define PARAMETER(name, type)                                                        \
  Error *name(struct TRITONBACKEND_Response *to, const char *key, type value)        \
  {                                                                                  \
    (void)to;                                                                        \
    (void)key;                                                                       \
    (void)value;                                                                     \
    return failure();                                                                \
  }

PARAMETER(TRITONBACKEND_ResponseSetStringParameter, const char *)
PARAMETER(TRITONBACKEND_ResponseSetIntParameter, const int64_t)
PARAMETER(TRITONBACKEND_ResponseSetBoolParameter, const bool)
PARAMETER(TRITONBACKEND_ResponseSetDoubleParameter, const double)

/* What a request says of itself: the first of several has a correlation id that is a number, the next one a text. */

Error *TRITONBACKEND_RequestId(struct TRITONBACKEND_Request *of, const char **id)
{
  (void)of;
  MAY_FAIL();
  *id = "an id";
  return NULL;
}

Error *TRITONBACKEND_RequestFlags(struct TRITONBACKEND_Request *of, uint32_t *flags)
{
  (void)of;
  MAY_FAIL();
  *flags = 1;
  return NULL;
}

Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(struct TRITONBACKEND_Request *of, uint64_t *timeout)
{
  (void)of;
  MAY_FAIL();
  *timeout = 7;
  return NULL;
}

Error *TRITONBACKEND_RequestCorrelationId(struct TRITONBACKEND_Request *of, uint64_t *id)
{
  MAY_FAIL();
  if (of->number % 2 != 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "it is a text");
  }
  *id = 3;
  return NULL;
}

Error *TRITONBACKEND_RequestCorrelationIdString(struct TRITONBACKEND_Request *of, const char **id)
{
  MAY_FAIL();
  if (of->number % 2 == 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "it is a number");
  }
  *id = "three";
  return NULL;
}

Error *TRITONBACKEND_RequestIsCancelled(struct TRITONBACKEND_Request *of, bool *cancelled)
{
  MAY_FAIL();
  *cancelled = of->answered;
  return NULL;
}

Error *TRITONBACKEND_RequestParameterCount(struct TRITONBACKEND_Request *of, uint32_t *number)
{
  (void)of;
  MAY_FAIL();
  *number = FAKE_PARAMETERS;
  return NULL;
}

Error *TRITONBACKEND_RequestParameter(struct TRITONBACKEND_Request *of, const uint32_t index, const char **name,
                                      TRITONSERVER_ParameterType *type, const void **value)
{
  (void)of;
  MAY_FAIL();
  fake_parameter(index, name, type, value);
  return NULL;
}

/* Decoupled models */

Error *TRITONBACKEND_ResponseFactoryNew(struct TRITONBACKEND_ResponseFactory **made, struct TRITONBACKEND_Request *of)
{
  MAY_FAIL();
  *made = calloc(1, sizeof(**made));
  (*made)->of = of;
  count(&alive.factories, 1);
  return NULL;
}

Error *TRITONBACKEND_ResponseFactoryDelete(struct TRITONBACKEND_ResponseFactory *old)
{
  free(old);
  count(&alive.factories, -1);
  return failure();
}

Error *TRITONBACKEND_ResponseFactorySendFlags(struct TRITONBACKEND_ResponseFactory *to, const uint32_t flags)
{
  MAY_FAIL();
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0) {
    to->of->answered = true;
  }
  return NULL;
}

typedef struct TRITONBACKEND_ModelInstanceResponseStatistics statistics;

Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(statistics **made)
{
  MAY_FAIL();
  *made = malloc(1);
  count(&alive.statistics, 1);
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics *old)
{
  free(old);
  count(&alive.statistics, -1);
  return failure();
}

#define STATISTIC(name, type)            \
  Error *name(statistics *to, type value) \
  {                                      \
    (void)to;                            \
    (void)value;                         \
    return failure();                    \
  }

STATISTIC(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance, struct TRITONBACKEND_ModelInstance *)
STATISTIC(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory, struct TRITONBACKEND_ResponseFactory *)
STATISTIC(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart, uint64_t)
STATISTIC(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart, uint64_t)
STATISTIC(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd, uint64_t)
STATISTIC(TRITONBACKEND_ModelInstanceResponseStatisticsSetError, Error *)

Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics *about)
{
  (void)about;
  return failure();
}

Error *TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(struct TRITONBACKEND_BackendAttribute *to,
                                                               const TRITONSERVER_InstanceGroupKind kind,
                                                               const uint64_t number, const uint64_t *ids,
                                                               const uint64_t id_count)
{
  (void)to;
  (void)kind;
  (void)number;
  (void)ids;
  (void)id_count;
  return failure();
}
