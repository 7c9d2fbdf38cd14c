/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From results to responses: the outputs of one call are cut by rows, each request gets its own, and everything is
 * sent, counted and released. It runs on the worker's thread, which does not hold the GIL meanwhile.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"

enum { MESSAGE_SIZE = 512 };

struct TRITONSERVER_Error *tffi_tensor_error(const tffi_function *function, const char *kind, const char *name,
                                             TRITONSERVER_Error_Code code, const char *text)
{
  char message[MESSAGE_SIZE];
  snprintf(message, sizeof(message), "model '%.128s', %s '%.128s': %.200s", function->name, kind, name, text);
  return TRITONSERVER_ErrorNew(code, message);
}

static struct TRITONSERVER_Error *output_error(const function_batch *batch, const char *name, const char *text)
{
  return tffi_tensor_error(batch->function, "output", name, TRITONSERVER_ERROR_INTERNAL, text);
}

/* Errors */

static void report(const function_instance *instance, struct TRITONBACKEND_Request *request, bool success,
                   const tffi_timing *at)
{
  tffi_discard(TRITONBACKEND_ModelInstanceReportStatistics(instance->native, request, success, at->exec_start,
                                                           at->compute_start, at->compute_end, at->exec_end));
}

static void release(struct TRITONBACKEND_Request *request)
{
  tffi_discard(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

void tffi_request_answer_error(const function_instance *instance, struct TRITONBACKEND_Request *request,
                               struct TRITONSERVER_Error *error, const tffi_timing *at)
{
  struct TRITONBACKEND_Response *response = NULL;
  struct TRITONSERVER_Error *shown = tffi_instance_hides_error(instance, error) ? NULL : error;
  struct TRITONSERVER_Error *failure = TRITONBACKEND_ResponseNew(&response, request);
  /* Counted first, so that whoever has the answer finds it in the statistics. */
  report(instance, request, false, at);
  if (failure == NULL) {
    failure = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, shown);
  }
  tffi_discard(failure);
  release(request);
}

void tffi_batch_answer_error(function_batch *batch, struct TRITONSERVER_Error *error)
{
  const uint64_t now = tffi_now_ns();
  const uint64_t compute_start = batch->compute_start_ns == 0 ? now : batch->compute_start_ns;
  const tffi_timing at = {batch->exec_start_ns, compute_start, now, now};
  if (batch->function->decoupled) {
    tffi_response_report(batch, 0, error);
  }
  for (uint32_t i = 0; i < batch->shown.request_count; i++) {
    tffi_request_answer_error(batch->instance, batch->requests[i], error, &at);
  }
  tffi_factory_drop(batch);
  tffi_discard(error);
}

void tffi_batch_report(function_batch *batch, const tffi_timing *at)
{
  const int64_t rows = batch->shown.rows[0];
  report(batch->instance, batch->requests[0], true, at);
  tffi_discard(TRITONBACKEND_ModelInstanceReportBatchStatistics(batch->instance->native, rows > 0 ? (uint64_t)rows : 1,
                                                                at->exec_start, at->compute_start, at->compute_end,
                                                                at->exec_end));
}

void tffi_batch_fail(tffi_batch *shown, int32_t code, const char *message)
{
  function_batch *batch = (function_batch *)shown;
  if (tffi_batch_claim(batch)) {
    tffi_batch_answer_error(batch, TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)code, message));
    tffi_batch_settle(batch);
  }
}

void tffi_batch_release(tffi_batch *shown)
{
  if (shown != NULL) {
    tffi_batch_fail(shown, TRITONSERVER_ERROR_INTERNAL, "the function gave no answer");
    tffi_batch_drop((function_batch *)shown);
  }
}

/* Cutting */

static bool element_count(const int64_t *shape, uint32_t dim_count, uint64_t *count)
{
  *count = 1;
  for (uint32_t i = 0; i < dim_count; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(*count, (uint64_t)shape[i], count)) {
      return false;
    }
  }
  return true;
}

/* Where each request's part of an output begins. Python has checked the same things, with better words. */
static struct TRITONSERVER_Error *cut_output(const function_batch *batch, const tffi_tensor *output, tffi_cut *to)
{
  const tffi_batch *shown = &batch->shown;
  const bool batching = shown->batching;
  const uint32_t element_size = TRITONSERVER_DataTypeByteSize(output->datatype);
  const bool is_bytes = output->datatype == TRITONSERVER_TYPE_BYTES;
  uint64_t row_elements = 0;
  if (batching && (output->dim_count == 0 || output->shape[0] != shown->row_count)) {
    return output_error(batch, output->name, "it has not as many rows as the batch");
  }
  const uint32_t row_axis = batching ? 1 : 0;
  if (!element_count(output->shape + row_axis, output->dim_count - row_axis, &row_elements)) {
    return output_error(batch, output->name, "its shape is negative or too large");
  }
  if (element_size == 0 && !is_bytes) {
    return output_error(batch, output->name, "it has no datatype");
  }
  size_t offset = 0;
  for (uint32_t i = 0; i < shown->request_count; i++) {
    uint64_t elements = 0;
    uint64_t size = 0;
    to->offsets[i] = offset;
    bool fits = !__builtin_mul_overflow(row_elements, (uint64_t)shown->rows[i], &elements);
    if (fits && is_bytes) {
      fits = tffi_bytes_skip(output->data, output->byte_size, elements, &offset);
    } else if (fits) {
      fits = !__builtin_mul_overflow(elements, (uint64_t)element_size, &size) && size <= output->byte_size - offset;
      offset += fits ? size : 0;
    }
    if (!fits) {
      return output_error(batch, output->name, "its data falls short of its shape");
    }
  }
  to->offsets[shown->request_count] = offset;
  if (offset != output->byte_size) {
    return output_error(batch, output->name, "its data exceeds its shape");
  }
  if (output->dim_count > 0) {
    memcpy(to->shape, output->shape, output->dim_count * sizeof(int64_t));
  }
  return NULL;
}

struct TRITONSERVER_Error *tffi_outputs_cut(const function_batch *batch, const tffi_result *result, tffi_cut **cuts)
{
  const tffi_tensor *outputs = result->outputs;
  const uint32_t count = result->output_count;
  const size_t offset_count = (size_t)batch->shown.request_count + 1;
  size_t numbers = 0;
  for (uint32_t i = 0; i < count; i++) {
    numbers += offset_count + outputs[i].dim_count;
  }
  *cuts = malloc((size_t)count * sizeof(tffi_cut) + numbers * sizeof(int64_t) + 1);
  if (*cuts == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory to cut the outputs");
  }
  int64_t *at = (int64_t *)(*cuts + count);
  struct TRITONSERVER_Error *error = NULL;
  for (uint32_t i = 0; i < count && error == NULL; i++) {
    (*cuts)[i].offsets = (uint64_t *)at;
    (*cuts)[i].shape = at + offset_count;
    at += offset_count + outputs[i].dim_count;
    error = cut_output(batch, &outputs[i], &(*cuts)[i]);
  }
  return error;
}

/* Sending */

static struct TRITONSERVER_Error *add_output(const function_batch *batch, uint32_t index, const tffi_tensor *from,
                                             const tffi_cut *part)
{
  struct TRITONBACKEND_Output *output = NULL;
  if (batch->shown.batching) {
    part->shape[0] = batch->shown.rows[index];
  }
  struct TRITONSERVER_Error *error = TRITONBACKEND_ResponseOutput(batch->responses[index], &output, from->name,
                                                                  from->datatype, part->shape, from->dim_count);
  const uint64_t offset = part->offsets[index];
  const uint64_t size = part->offsets[index + 1] - offset;
  void *to = NULL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  if (error == NULL) {
    error = TRITONBACKEND_OutputBuffer(output, &to, size, &type, &type_id);
  }
  if (error != NULL) {
    return error;
  }
  if (!tffi_is_cpu(type)) {
    return output_error(batch, from->name, "its memory is on a GPU, and a Python function writes CPU memory");
  }
  if (size > 0) {
    memcpy(to, (const char *)from->data + offset, size);
    tffi_count(&tffi_copied.outputs, 1);
    tffi_count(&tffi_copied.output_bytes, (int64_t)size);
  }
  return NULL;
}

static struct TRITONSERVER_Error *add_parameter(struct TRITONBACKEND_Response *to, const tffi_parameter *parameter)
{
  switch (parameter->type) {
    case TRITONSERVER_PARAMETER_STRING:
      return TRITONBACKEND_ResponseSetStringParameter(to, parameter->name, parameter->text);
    case TRITONSERVER_PARAMETER_INT:
      return TRITONBACKEND_ResponseSetIntParameter(to, parameter->name, parameter->integer);
    case TRITONSERVER_PARAMETER_BOOL:
      return TRITONBACKEND_ResponseSetBoolParameter(to, parameter->name, parameter->integer != 0);
    case TRITONSERVER_PARAMETER_DOUBLE:
      return TRITONBACKEND_ResponseSetDoubleParameter(to, parameter->name, parameter->real);
    case TRITONSERVER_PARAMETER_BYTES:
    default:
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "a response parameter is text, int, bool or double");
  }
}

static struct TRITONSERVER_Error *add_parameters(const function_batch *batch, uint32_t index,
                                                 const tffi_result *result)
{
  struct TRITONSERVER_Error *error = NULL;
  if (result->parameter_counts == NULL) {
    return NULL;
  }
  const tffi_parameter *parameter = result->parameters;
  for (uint32_t i = 0; i < index; i++) {
    parameter += result->parameter_counts[i];
  }
  for (uint32_t i = 0; i < result->parameter_counts[index] && error == NULL; i++) {
    error = add_parameter(batch->responses[index], &parameter[i]);
  }
  return error;
}

struct TRITONSERVER_Error *tffi_response_fill(const function_batch *batch, uint32_t index, const tffi_result *result,
                                              const tffi_cut *cuts)
{
  struct TRITONBACKEND_Request *request = batch->requests[index];
  uint32_t wanted = 0;
  struct TRITONSERVER_Error *error = add_parameters(batch, index, result);
  if (error == NULL) {
    error = TRITONBACKEND_RequestOutputCount(request, &wanted);
  }
  for (uint32_t i = 0; i < wanted && error == NULL; i++) {
    const char *name = NULL;
    uint32_t at = 0;
    error = TRITONBACKEND_RequestOutputName(request, i, &name);
    if (error != NULL) {
      break;
    }
    while (at < result->output_count && strcmp(result->outputs[at].name, name) != 0) {
      at++;
    }
    error = at == result->output_count ? output_error(batch, name, "the function did not return it")
                                       : add_output(batch, index, &result->outputs[at], &cuts[at]);
  }
  return error;
}

/* Answers a claimed batch. One request that fails, for want of memory say, does not touch the others. */
static void answer(function_batch *batch, const tffi_result *result, const tffi_cut *cuts)
{
  const uint32_t count = batch->shown.request_count;
  struct TRITONSERVER_Error **errors = batch->errors;
  tffi_timing at = {batch->exec_start_ns, batch->compute_start_ns, tffi_now_ns(), 0};
  for (uint32_t i = 0; i < count; i++) {
    batch->responses[i] = NULL;
    errors[i] = TRITONBACKEND_ResponseNew(&batch->responses[i], batch->requests[i]);
    if (errors[i] == NULL) {
      errors[i] = tffi_response_fill(batch, i, result, cuts);
    }
  }
  at.exec_end = tffi_now_ns();
  /* Everything is counted before anything is sent, so that whoever has an answer finds it in the statistics. */
  uint64_t batch_size = 0;
  bool any_success = false;
  for (uint32_t i = 0; i < count; i++) {
    any_success = any_success || errors[i] == NULL;
    report(batch->instance, batch->requests[i], errors[i] == NULL, &at);
    /* As Triton counts them: a request without rows, or of a model that does not batch, is one inference. */
    batch_size += batch->shown.rows[i] > 0 ? (uint64_t)batch->shown.rows[i] : 1;
  }
  if (any_success) { /* as everywhere in Triton, a batch that failed is no execution */
    tffi_discard(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        batch->instance->native, batch_size, at.exec_start, at.compute_start, at.compute_end, at.exec_end));
  }
  for (uint32_t i = 0; i < count; i++) {
    struct TRITONSERVER_Error *shown = errors[i];
    if (shown != NULL && tffi_instance_hides_error(batch->instance, shown)) {
      shown = NULL;
    }
    if (batch->responses[i] != NULL) {
      tffi_discard(TRITONBACKEND_ResponseSend(batch->responses[i], TRITONSERVER_RESPONSE_COMPLETE_FINAL, shown));
    }
    tffi_discard(errors[i]);
    release(batch->requests[i]);
  }
}

struct TRITONSERVER_Error *tffi_batch_answer(function_batch *batch, const tffi_result *result, bool *answered)
{
  tffi_cut *cuts = NULL;
  struct TRITONSERVER_Error *error = tffi_outputs_cut(batch, result, &cuts);
  *answered = error == NULL && tffi_batch_claim(batch);
  if (*answered) {
    answer(batch, result, cuts);
  }
  free(cuts);
  return error;
}

struct TRITONSERVER_Error *tffi_batch_finish(tffi_batch *shown, const tffi_result *result)
{
  function_batch *batch = (function_batch *)shown;
  bool answered = false;
  struct TRITONSERVER_Error *error = tffi_batch_answer(batch, result, &answered);
  if (answered) {
    tffi_batch_settle(batch);
  }
  return error;
}
