/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What requests say beside their inputs (ids, flags, parameters), copied so that a callable may keep it. It runs on
 * the instance's thread, for functions that ask for it.
 */

#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "place.h"

static struct TRITONSERVER_Error *read_parameter(layout *to, struct TRITONBACKEND_Request *request, uint32_t index,
                                                 tffi_parameter *parameter)
{
  const char *name = NULL;
  const void *value = NULL;
  struct TRITONSERVER_Error *error = TRITONBACKEND_RequestParameter(request, index, &name, &parameter->type, &value);
  if (error != NULL) {
    return error;
  }
  parameter->name = place_text(to, name);
  switch (parameter->type) {
    case TRITONSERVER_PARAMETER_STRING:
      parameter->text = place_text(to, value);
      break;
    case TRITONSERVER_PARAMETER_INT:
      memcpy(&parameter->integer, value, sizeof(int64_t));
      break;
    case TRITONSERVER_PARAMETER_BOOL: {
      bool flag = false;
      memcpy(&flag, value, sizeof(bool));
      parameter->integer = flag ? 1 : 0;
      break;
    }
    case TRITONSERVER_PARAMETER_DOUBLE:
      memcpy(&parameter->real, value, sizeof(double));
      break;
    case TRITONSERVER_PARAMETER_BYTES: /* no request has one, and Triton would tell no size */
    default:
      break;
  }
  return NULL;
}

static struct TRITONSERVER_Error *read_request(layout *to, struct TRITONBACKEND_Request *request,
                                               tffi_batch_request *described)
{
  const char *text = NULL;
  tffi_batch_request read = {0};
  struct TRITONSERVER_Error *error = TRITONBACKEND_RequestId(request, &text);
  if (error == NULL) {
    read.id = place_text(to, text);
    error = TRITONBACKEND_RequestFlags(request, &read.flags);
  }
  if (error == NULL) {
    error = TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &read.timeout_us);
  }
  if (error == NULL) {
    error = TRITONBACKEND_RequestParameterCount(request, &read.parameter_count);
  }
  if (error != NULL) {
    return error;
  }
  /* Each of the two refuses an id of the other kind. */
  struct TRITONSERVER_Error *not_a_number = TRITONBACKEND_RequestCorrelationId(request, &read.correlation_id);
  if (not_a_number != NULL) {
    tffi_discard(not_a_number);
    error = TRITONBACKEND_RequestCorrelationIdString(request, &text);
    if (error == NULL) {
      read.correlation_text = place_text(to, text);
    }
  }
  tffi_parameter *parameters = place(to, read.parameter_count * sizeof(tffi_parameter));
  read.parameters = parameters;
  for (uint32_t i = 0; i < read.parameter_count && error == NULL; i++) {
    tffi_parameter parameter = {0};
    error = read_parameter(to, request, i, &parameter);
    if (parameters != NULL) {
      parameters[i] = parameter;
    }
  }
  if (described != NULL) {
    *described = read;
  }
  return error;
}

static struct TRITONSERVER_Error *fill(layout *to, const function_batch *batch)
{
  struct TRITONSERVER_Error *error = NULL;
  tffi_batch_request *described = place(to, batch->shown.request_count * sizeof(tffi_batch_request));
  for (uint32_t i = 0; i < batch->shown.request_count && error == NULL; i++) {
    error = read_request(to, batch->requests[i], described == NULL ? NULL : &described[i]);
  }
  return error;
}

struct TRITONSERVER_Error *tffi_batch_describe(function_batch *batch)
{
  layout to = {NULL, 0, 0};
  struct TRITONSERVER_Error *error = fill(&to, batch);
  if (error != NULL) {
    return error;
  }
  to = (layout){malloc(to.used), to.used, 0};
  if (to.base == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for what the requests say");
  }
  batch->described = to.base;
  error = fill(&to, batch);
  batch->shown.requests = batch->described;
  return error;
}
