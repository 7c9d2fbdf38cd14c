/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Completions: what a C response says, read into one flat block on Triton's thread, so that the response can go at
 * once. inference.c says when.
 */

#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "place.h"

enum {
  ROOM = 320 /* bytes: names and shapes of a few outputs */
};

/*
 * A completion as it is allocated: what its pointers point to is in the room behind it or, where that is too small, in
 * a block of its own. Each call of malloc that can be saved counts, because another thread gives the memory back.
 */
typedef struct {
  tffi_completion shown;
  void *content; /* NULL: in the room */
  int64_t room[ROOM / sizeof(int64_t)];
} completion_block;

tffi_completion *tffi_completion_new(void)
{
  completion_block *block = malloc(sizeof(*block));
  if (block == NULL) {
    return NULL;
  }
  memset(block, 0, sizeof(*block));
  tffi_count(&tffi_live.completions, 1);
  return &block->shown;
}

void tffi_completion_free(tffi_completion *completion)
{
  int64_t count = 0;
  while (completion != NULL) {
    completion_block *block = (completion_block *)completion;
    for (uint32_t i = 0; i < completion->output_count; i++) {
      tffi_buffer_release(completion->outputs[i].buffer);
    }
    completion = completion->next;
    free(block->content);
    free(block);
    count += 1;
  }
  tffi_count(&tffi_live.completions, -count);
}

void tffi_completion_set_error(tffi_completion *completion, int32_t code, const char *message)
{
  completion->error_code = code;
  completion->error_message = message;
  completion->layout = 0;
}

/*
 * The labels of an output's classes: one for each element, or of a batch for each element of a row. Triton does not
 * tell how many there are; for a class without a label it says NULL, and here is no text.
 */
static struct TRITONSERVER_Error *place_labels(layout *to, struct TRITONSERVER_InferenceResponse *response,
                                               uint32_t index, size_t count, tffi_tensor *output)
{
  struct TRITONSERVER_Error *error = NULL;
  const char **labels = place(to, count * sizeof(*labels));
  for (size_t i = 0; i < count && error == NULL; i++) {
    const char *label = NULL;
    error = TRITONSERVER_InferenceResponseOutputClassificationLabel(response, index, i, &label);
    label = place_text(to, label);
    if (labels != NULL) {
      labels[i] = label;
    }
  }
  output->labels = labels;
  output->label_count = count;
  return error;
}

static struct TRITONSERVER_Error *place_output(layout *to, struct TRITONSERVER_InferenceResponse *response,
                                               const tffi_wanted *wanted, uint32_t index, tffi_tensor *output)
{
  const char *name = NULL;
  const int64_t *shape = NULL;
  const void *data = NULL;
  uint64_t dim_count = 0;
  void *userp = NULL;
  tffi_tensor tensor = {0};
  struct TRITONSERVER_Error *error = TRITONSERVER_InferenceResponseOutput(
      response, index, &name, &tensor.datatype, &shape, &dim_count, &data, &tensor.byte_size, &tensor.memory_type,
      &tensor.memory_type_id, &userp);
  if (error != NULL) {
    return error;
  }
  if (data == NULL) {
    /* Of an output that never got memory Triton says any size. */
    tensor.byte_size = 0;
  }
  uint64_t *head = place(to, 3 * sizeof(*head));
  if (head != NULL) {
    head[0] = (uint64_t)tensor.datatype;
    head[1] = dim_count;
    head[2] = tensor.byte_size;
  }
  tensor.name = place_text(to, name);
  int64_t *dims = place(to, (size_t)dim_count * sizeof(int64_t));
  if (wanted != NULL && tffi_wanted_labels(wanted, name)) {
    const size_t classes = tffi_wanted_classes(wanted, shape, dim_count, tensor.byte_size);
    error = place_labels(to, response, index, classes, &tensor);
    if (error != NULL) {
      return error;
    }
  }
  if (output == NULL) {
    return NULL;
  }
  if (dims != NULL && dim_count > 0) {
    /* Of a scalar Triton gives the address of nothing. */
    memcpy(dims, shape, (size_t)dim_count * sizeof(int64_t));
  }
  tensor.shape = dims;
  tensor.dim_count = (uint32_t)dim_count;
  /* Of an output that the model named without asking for memory, userp is whatever was there before. */
  tensor.buffer = data == NULL ? NULL : userp;
  if (tensor.buffer != NULL) {
    tensor.data = tffi_buffer_data(tensor.buffer);
  } else {
    tensor.data = (void *)(uintptr_t)data; /* the caller's own memory */
  }
  *output = tensor;
  return NULL;
}

static struct TRITONSERVER_Error *place_parameter(layout *to, struct TRITONSERVER_InferenceResponse *response,
                                                  uint32_t index, tffi_parameter *parameter)
{
  const char *name = NULL;
  const void *value = NULL;
  tffi_parameter read = {0};
  struct TRITONSERVER_Error *error =
      TRITONSERVER_InferenceResponseParameter(response, index, &name, &read.type, &value);
  if (error != NULL) {
    return error;
  }
  read.name = place_text(to, name);
  switch (read.type) {
    case TRITONSERVER_PARAMETER_STRING:
      read.text = place_text(to, value);
      break;
    case TRITONSERVER_PARAMETER_INT:
      memcpy(&read.integer, value, sizeof(int64_t));
      break;
    case TRITONSERVER_PARAMETER_BOOL: {
      bool flag = false;
      memcpy(&flag, value, sizeof(bool));
      read.integer = flag ? 1 : 0;
      break;
    }
    case TRITONSERVER_PARAMETER_DOUBLE:
      memcpy(&read.real, value, sizeof(double));
      break;
    case TRITONSERVER_PARAMETER_BYTES:
      /* Triton tells no size, so there is nothing that could be read. */
      break;
    default:
      break;
  }
  /* What cannot be compared as text. */
  uint64_t *words = place(to, 3 * sizeof(*words));
  if (words != NULL) {
    words[0] = (uint64_t)read.type;
    memcpy(&words[1], &read.integer, sizeof(read.integer));
    memcpy(&words[2], &read.real, sizeof(read.real));
  }
  if (parameter != NULL) {
    *parameter = read;
  }
  return NULL;
}

/* One pass over the response. An error stops it; where `to` has become too small the completion holds nothing of use. */
static struct TRITONSERVER_Error *lay_out(layout *to, struct TRITONSERVER_InferenceResponse *response,
                                          const tffi_wanted *wanted, struct TRITONSERVER_Error *response_error,
                                          tffi_completion *completion)
{
  const char *model_name = NULL;
  const char *request_id = NULL;
  int64_t model_version = -1;
  uint32_t output_count = 0;
  uint32_t parameter_count = 0;
  struct TRITONSERVER_Error *error = TRITONSERVER_InferenceResponseModel(response, &model_name, &model_version);
  if (error == NULL) {
    error = TRITONSERVER_InferenceResponseId(response, &request_id);
  }
  if (error == NULL) {
    error = TRITONSERVER_InferenceResponseOutputCount(response, &output_count);
  }
  if (error == NULL) {
    error = TRITONSERVER_InferenceResponseParameterCount(response, &parameter_count);
  }
  if (error != NULL) {
    return error;
  }
  const char *model_copy = place_text(to, model_name);
  const char *id_copy = place_text(to, request_id);
  const char *error_copy = NULL;
  int32_t error_code = 0;
  if (response_error != NULL) {
    error_copy = place_text(to, TRITONSERVER_ErrorMessage(response_error));
    error_code = (int32_t)TRITONSERVER_ErrorCode(response_error);
    output_count = 0; /* whatever a failed response carries is not a result */
  }
  tffi_tensor *outputs = place(to, output_count * sizeof(tffi_tensor));
  tffi_parameter *parameters = place(to, parameter_count * sizeof(tffi_parameter));
  completion->model_name = model_copy;
  completion->model_version = model_version;
  completion->request_id = id_copy;
  completion->outputs = outputs;
  completion->parameters = parameters;
  tffi_completion_set_error(completion, error_code, error_copy);
  uint64_t *first = place(to, sizeof(*first));
  if (first != NULL) {
    *first = (uint64_t)model_version;
  }
  for (uint32_t i = 0; i < output_count && error == NULL; i++) {
    error = place_output(to, response, wanted, i, outputs == NULL ? NULL : &outputs[i]);
  }
  const uint64_t *second = place(to, 0);
  for (uint32_t i = 0; i < parameter_count && error == NULL; i++) {
    error = place_parameter(to, response, i, parameters == NULL ? NULL : &parameters[i]);
  }
  const uint64_t *end = place(to, 0);
  if (error == NULL && end != NULL) {
    completion->parameter_count = parameter_count;
    completion->output_count = output_count;
    /* Labels are no part of a layout. What is before the end fits, so `first` and `second` are there. */
    if (response_error == NULL && wanted == NULL) {
      completion->layout = tffi_layout_number(first, (size_t)(second - first));
    }
    if (parameter_count > 0) {
      completion->saying = tffi_layout_number(second, (size_t)(end - second));
    }
    for (uint32_t i = 0; i < output_count; i++) {
      if (outputs[i].buffer != NULL) {
        tffi_buffer_retain(outputs[i].buffer);
      }
    }
  }
  return error;
}

void tffi_completion_fill(tffi_completion *completion, struct TRITONSERVER_InferenceResponse *response,
                          const tffi_wanted *wanted)
{
  completion_block *block = (completion_block *)completion;
  /* Each call makes a new error object, so it is asked for once. */
  struct TRITONSERVER_Error *response_error = TRITONSERVER_InferenceResponseError(response);
  layout to = {(char *)block->room, ROOM, 0};
  bool is_complete = true;
  struct TRITONSERVER_Error *error = lay_out(&to, response, wanted, response_error, completion);
  if (error == NULL && to.used > ROOM) {
    to = (layout){calloc(1, to.used), to.used, 0}; /* zeroed, because gaps count in the layout */
    block->content = to.base;
    is_complete = to.base != NULL;
    if (is_complete) {
      error = lay_out(&to, response, wanted, response_error, completion);
    }
  }
  completion->has_response = true;
  if (error != NULL) {
    tffi_completion_set_error(completion, TRITONSERVER_ERROR_INTERNAL, "the response could not be read");
    TRITONSERVER_ErrorDelete(error);
  } else if (!is_complete) {
    tffi_completion_set_error(completion, TRITONSERVER_ERROR_UNAVAILABLE, "no memory to read the response into");
  }
  tffi_discard(response_error);
  tffi_discard(TRITONSERVER_InferenceResponseDelete(response));
}
