/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From the description of a request to the C request, and what an inference remembers of it until it is over: which
 * outputs go into the caller's own memory, and of which the labels are wanted.
 */

#include <stdlib.h>
#include <string.h>

#include "internal.h"

static struct TRITONSERVER_Error *add_parameter(struct TRITONSERVER_InferenceRequest *to,
                                                const tffi_parameter *parameter)
{
  switch (parameter->type) {
    case TRITONSERVER_PARAMETER_STRING:
      return TRITONSERVER_InferenceRequestSetStringParameter(to, parameter->name, parameter->text);
    case TRITONSERVER_PARAMETER_INT:
      return TRITONSERVER_InferenceRequestSetIntParameter(to, parameter->name, parameter->integer);
    case TRITONSERVER_PARAMETER_BOOL:
      return TRITONSERVER_InferenceRequestSetBoolParameter(to, parameter->name, parameter->integer != 0);
    case TRITONSERVER_PARAMETER_DOUBLE:
      return TRITONSERVER_InferenceRequestSetDoubleParameter(to, parameter->name, parameter->real);
    case TRITONSERVER_PARAMETER_BYTES:
    default:
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "a request parameter is text, int, bool or double");
  }
}

/* A piece that is not plain CPU memory is described by attributes, which Triton copies. */
static struct TRITONSERVER_Error *append_with_attributes(struct TRITONSERVER_InferenceRequest *to, const char *name,
                                                         const tffi_piece *piece)
{
  struct TRITONSERVER_BufferAttributes *attributes = NULL;
  struct TRITONSERVER_Error *error = TRITONSERVER_BufferAttributesNew(&attributes);
  if (error != NULL) {
    return error;
  }
  error = TRITONSERVER_BufferAttributesSetMemoryType(attributes, piece->memory_type);
  if (error == NULL) {
    error = TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, piece->memory_type_id);
  }
  if (error == NULL) {
    error = TRITONSERVER_BufferAttributesSetByteSize(attributes, piece->byte_size);
  }
  if (error == NULL) {
    error = TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(to, name, piece->data, attributes);
  }
  tffi_discard(TRITONSERVER_BufferAttributesDelete(attributes));
  return error;
}

static struct TRITONSERVER_Error *append_piece(struct TRITONSERVER_InferenceRequest *to, const char *name,
                                               const tffi_piece *piece)
{
  if (piece->host_policy != NULL) {
    return TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        to, name, piece->data, piece->byte_size, piece->memory_type, piece->memory_type_id, piece->host_policy);
  }
  if (piece->memory_type != TRITONSERVER_MEMORY_CPU) {
    return append_with_attributes(to, name, piece);
  }
  return TRITONSERVER_InferenceRequestAppendInputData(to, name, piece->data, piece->byte_size, piece->memory_type,
                                                      piece->memory_type_id);
}

static struct TRITONSERVER_Error *append_data(struct TRITONSERVER_InferenceRequest *to, const tffi_tensor *input,
                                              const void *data)
{
  return TRITONSERVER_InferenceRequestAppendInputData(to, input->name, data, input->byte_size,
                                                      input->memory_type, input->memory_type_id);
}

static struct TRITONSERVER_Error *add_input(struct TRITONSERVER_InferenceRequest *to, const tffi_tensor *input,
                                            const void *data)
{
  struct TRITONSERVER_Error *error =
      input->datatype == TRITONSERVER_TYPE_INVALID
          ? TRITONSERVER_InferenceRequestAddRawInput(to, input->name)
          : TRITONSERVER_InferenceRequestAddInput(to, input->name, input->datatype, input->shape, input->dim_count);
  if (error == NULL && input->byte_size > 0) {
    error = append_data(to, input, data);
  }
  return error;
}

struct TRITONSERVER_Error *tffi_request_describe(struct TRITONSERVER_InferenceRequest *to, const tffi_request *from,
                                                 const void *const *data)
{
  struct TRITONSERVER_Error *error = NULL;
  if (from->request_id != NULL) {
    error = TRITONSERVER_InferenceRequestSetId(to, from->request_id);
  }
  if (error == NULL && from->flags != 0) {
    error = TRITONSERVER_InferenceRequestSetFlags(to, from->flags);
  }
  if (error == NULL && from->correlation_text != NULL) {
    error = TRITONSERVER_InferenceRequestSetCorrelationIdString(to, from->correlation_text);
  } else if (error == NULL && from->correlation_id != 0) {
    error = TRITONSERVER_InferenceRequestSetCorrelationId(to, from->correlation_id);
  }
  if (error == NULL && from->priority != 0) {
    error = TRITONSERVER_InferenceRequestSetPriorityUInt64(to, from->priority);
  }
  if (error == NULL && from->timeout_us != 0) {
    error = TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(to, from->timeout_us);
  }
  for (uint32_t i = 0; i < from->input_count && error == NULL; i++) {
    error = add_input(to, &from->inputs[i], data[i]);
  }
  for (uint32_t i = 0; i < from->piece_count && error == NULL; i++) {
    const tffi_piece *piece = &from->pieces[i];
    error = append_piece(to, from->inputs[piece->input].name, piece);
  }
  for (uint32_t i = 0; i < from->output_count && error == NULL; i++) {
    error = TRITONSERVER_InferenceRequestAddRequestedOutput(to, from->outputs[i]);
  }
  for (uint32_t i = 0; i < from->parameter_count && error == NULL; i++) {
    error = add_parameter(to, &from->parameters[i]);
  }
  return error;
}

struct TRITONSERVER_Error *tffi_request_refill(struct TRITONSERVER_InferenceRequest *to, const tffi_request *from,
                                               const void *const *data)
{
  struct TRITONSERVER_Error *error = NULL;
  for (uint32_t i = 0; i < from->input_count && error == NULL; i++) {
    const tffi_tensor *input = &from->inputs[i];
    if (input->byte_size > 0) {
      error = TRITONSERVER_InferenceRequestRemoveAllInputData(to, input->name);
      if (error == NULL) {
        error = append_data(to, input, data[i]);
      }
    }
  }
  return error;
}

static size_t text_size(const char *text)
{
  return strlen(text) + 1;
}

static const char *copy_text(char **room, const char *text)
{
  const size_t size = text_size(text);
  char *copy = memcpy(*room, text, size);
  *room += size;
  return copy;
}

bool tffi_wanted_new(const tffi_request *request, tffi_wanted **wanted)
{
  *wanted = NULL;
  if (request->out_count == 0 && request->labelled_count == 0) {
    return true;
  }
  size_t size = sizeof(tffi_wanted) + request->out_count * sizeof(tffi_tensor) +
                request->labelled_count * sizeof(const char *);
  for (uint32_t i = 0; i < request->out_count; i++) {
    size += text_size(request->out[i].name);
  }
  for (uint32_t i = 0; i < request->labelled_count; i++) {
    size += text_size(request->labelled[i]);
  }
  tffi_wanted *made = malloc(size);
  if (made == NULL) {
    return false;
  }
  made->out = (tffi_tensor *)(void *)(made + 1);
  made->labelled = (const char **)(void *)(made->out + request->out_count);
  char *room = (char *)(made->labelled + request->labelled_count);
  for (uint32_t i = 0; i < request->out_count; i++) {
    made->out[i] = request->out[i];
    made->out[i].name = copy_text(&room, request->out[i].name);
  }
  for (uint32_t i = 0; i < request->labelled_count; i++) {
    made->labelled[i] = copy_text(&room, request->labelled[i]);
  }
  made->out_count = request->out_count;
  made->labelled_count = request->labelled_count;
  made->batching = request->batching;
  *wanted = made;
  return true;
}

const tffi_tensor *tffi_wanted_out(const tffi_wanted *wanted, const char *name)
{
  for (uint32_t i = 0; wanted != NULL && name != NULL && i < wanted->out_count; i++) {
    if (strcmp(wanted->out[i].name, name) == 0) {
      return &wanted->out[i];
    }
  }
  return NULL;
}

bool tffi_wanted_labels(const tffi_wanted *wanted, const char *name)
{
  for (uint32_t i = 0; wanted != NULL && i < wanted->labelled_count; i++) {
    if (strcmp(wanted->labelled[i], name) == 0) {
      return true;
    }
  }
  return false;
}

size_t tffi_wanted_classes(const tffi_wanted *wanted, const int64_t *shape, uint64_t dim_count, size_t byte_size)
{
  size_t classes = 1;
  for (uint64_t i = wanted->batching ? 1 : 0; i < dim_count; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(classes, (size_t)shape[i], &classes)) {
      return 0;
    }
  }
  return classes <= byte_size ? classes : 0;
}
