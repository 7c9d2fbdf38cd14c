/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From requests to batches: what Triton hands to Execute is read, sorted into batches that can be stacked, and copied
 * into memory that the callable's arrays may keep. All of it runs on the instance's thread.
 */

#include <stdlib.h>
#include <string.h>

#include "batch.h"

tffi_copies tffi_copied;

void tffi_copies_read(tffi_copies *copies)
{
  const uint64_t *from = (const uint64_t *)&tffi_copied;
  uint64_t *to = (uint64_t *)copies;
  for (size_t i = 0; i < sizeof(tffi_copies) / sizeof(uint64_t); i++) {
    to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
  }
}

/* One input of one request, as Triton shows it; valid until the request is released. */
typedef struct {
  struct TRITONBACKEND_Input *input; /* NULL: the request does not have it */
  const int64_t *shape;              /* without the batch axis, if batching */
  uint64_t byte_size;
  uint32_t dim_count;
  uint32_t chunk_count;
  TRITONSERVER_DataType datatype;
} source;

/* One request, read. */
typedef struct {
  struct TRITONBACKEND_Request *request;
  source *sources;
  int64_t rows;
  bool placed; /* it belongs to a batch */
} reading;

/* Walks the chunks of an input: with `to` NULL it only looks whether the memory can be read, otherwise it copies. */
static struct TRITONSERVER_Error *walk_chunks(const tffi_function *function, const char *name, const source *from,
                                              char *to)
{
  uint64_t done = 0;
  for (uint32_t i = 0; i < from->chunk_count; i++) {
    const void *chunk = NULL;
    uint64_t size = 0;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    struct TRITONSERVER_Error *error = TRITONBACKEND_InputBuffer(from->input, i, &chunk, &size, &type, &type_id);
    if (error != NULL) {
      return error;
    }
    if (!tffi_is_cpu(type)) {
      return tffi_tensor_error(function, "input", name, TRITONSERVER_ERROR_UNSUPPORTED,
                          "it lies in GPU memory, and a Python function reads CPU memory");
    }
    if (size > from->byte_size - done) {
      return tffi_tensor_error(function, "input", name, TRITONSERVER_ERROR_INTERNAL, "its parts exceed its size");
    }
    if (to != NULL && size > 0) {
      memcpy(to + done, chunk, size);
    }
    done += size;
  }
  if (done != from->byte_size) {
    return tffi_tensor_error(function, "input", name, TRITONSERVER_ERROR_INTERNAL, "its parts fall short of its size");
  }
  return NULL;
}

/* Reads one input. Where the request has no such input `to->input` stays NULL: Triton has checked that it may. */
static struct TRITONSERVER_Error *read_source(const tffi_function *function, struct TRITONBACKEND_Request *request,
                                              uint32_t index, source *to, int64_t *rows)
{
  const char *name = function->input_names[index];
  const char *same_name = NULL;
  struct TRITONSERVER_Error *absent = TRITONBACKEND_RequestInput(request, name, &to->input);
  if (absent != NULL) {
    tffi_discard(absent);
    to->input = NULL;
    return NULL;
  }
  struct TRITONSERVER_Error *error = TRITONBACKEND_InputProperties(
      to->input, &same_name, &to->datatype, &to->shape, &to->dim_count, &to->byte_size, &to->chunk_count);
  if (error != NULL) {
    return error;
  }
  *rows = 1;
  const uint32_t rank = function->input_ranks[index];
  if (function->batching && to->dim_count + 1 == rank) {
    /* Triton leaves the batch axis out where a request has no rows. */
    *rows = 0;
  } else if (to->dim_count != rank) {
    return tffi_tensor_error(function, "input", name, TRITONSERVER_ERROR_INTERNAL, "its rank is not the declared one");
  } else if (function->batching) {
    *rows = to->shape[0];
    to->shape++;
    to->dim_count--;
  }
  return walk_chunks(function, name, to, NULL);
}

static struct TRITONSERVER_Error *read_request(const tffi_function *function, reading *to)
{
  bool any = false;
  to->rows = 1;
  for (uint32_t i = 0; i < function->input_count; i++) {
    int64_t rows = 1;
    struct TRITONSERVER_Error *error = read_source(function, to->request, i, &to->sources[i], &rows);
    if (error != NULL) {
      return error;
    }
    if (to->sources[i].input == NULL) {
      continue;
    }
    if (any && rows != to->rows) {
      return tffi_tensor_error(function, "input", function->input_names[i], TRITONSERVER_ERROR_INVALID_ARG,
                          "it has another number of rows than the inputs before it");
    }
    any = true;
    to->rows = rows;
  }
  return NULL;
}

static bool can_stack(const reading *one, const reading *other, uint32_t input_count)
{
  for (uint32_t i = 0; i < input_count; i++) {
    const source *a = &one->sources[i];
    const source *b = &other->sources[i];
    if (a->input == NULL || b->input == NULL) {
      if (a->input != b->input) {
        return false;
      }
    } else if (a->datatype != b->datatype || a->dim_count != b->dim_count ||
               (a->dim_count > 0 && memcmp(a->shape, b->shape, a->dim_count * sizeof(int64_t)) != 0)) {
      return false;
    }
  }
  return true;
}

/* Gathering */

/* An empty batch with room for its arrays, in one block. */
static function_batch *make_batch(tffi_function *function, uint32_t request_count)
{
  size_t dims = 0;
  for (uint32_t i = 0; i < function->input_count; i++) {
    dims += function->input_ranks[i];
  }
  const size_t pointers = 3 * (size_t)request_count * sizeof(void *);
  const size_t numbers = ((size_t)request_count + dims) * sizeof(int64_t);
  const size_t tensors = (size_t)function->input_count * sizeof(tffi_tensor);
  function_batch *batch = calloc(1, sizeof(*batch) + tensors + numbers + pointers);
  if (batch == NULL) {
    return NULL;
  }
  batch->shown.inputs = (tffi_tensor *)(batch + 1);
  int64_t *at = (int64_t *)(batch->shown.inputs + function->input_count);
  batch->shown.rows = at;
  at += request_count;
  for (uint32_t i = 0; i < function->input_count; i++) {
    batch->shown.inputs[i].name = function->input_names[i];
    batch->shown.inputs[i].shape = at;
    at += function->input_ranks[i];
  }
  batch->requests = (struct TRITONBACKEND_Request **)at;
  batch->responses = (struct TRITONBACKEND_Response **)(batch->requests + request_count);
  batch->errors = (struct TRITONSERVER_Error **)(batch->responses + request_count);
  batch->shown.input_count = function->input_count;
  batch->shown.request_count = request_count;
  batch->shown.batching = function->batching;
  batch->function = function;
  batch->references = 1;
  tffi_cond_init(&batch->answered);
  tffi_count(&tffi_live.batches, 1);
  return batch;
}

/*
 * Where the data of an input of a single request can be read as it lies: then the callable's array needs no copy, if
 * Python holds that memory for the request and can for the array too. NULL: it must be copied.
 */
static void *lendable(const function_batch *batch, const source *from)
{
  const void *data = NULL;
  uint64_t size = 0;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  if (batch->shown.queue == NULL || from->byte_size < TFFI_WORTH_LENDING || from->chunk_count != 1) {
    return NULL;
  }
  struct TRITONSERVER_Error *error = TRITONBACKEND_InputBuffer(from->input, 0, &data, &size, &type, &type_id);
  const uint32_t element_size = TRITONSERVER_DataTypeByteSize(from->datatype);
  if (error != NULL || (element_size > 0 && (uintptr_t)data % element_size != 0)) {
    tffi_discard(error);
    return NULL;
  }
  return (void *)(uintptr_t)data; /* the callable's array is read-only */
}

/* Copies one input of all requests of the batch, one behind the other, into memory of its own. */
static struct TRITONSERVER_Error *copy_input(const function_batch *batch, uint32_t index, reading *const *members)
{
  tffi_tensor *tensor = &batch->shown.inputs[index];
  tensor->buffer = tffi_buffer_new(tensor->byte_size);
  if (tensor->buffer == NULL) {
    return tffi_tensor_error(batch->function, "input", tensor->name, TRITONSERVER_ERROR_UNAVAILABLE,
                        "no memory for the batch");
  }
  tensor->data = tffi_buffer_data(tensor->buffer);
  char *to = tensor->data;
  for (uint32_t i = 0; i < batch->shown.request_count; i++) {
    const source *from = &members[i]->sources[index];
    struct TRITONSERVER_Error *error = walk_chunks(batch->function, tensor->name, from, to);
    if (error != NULL) {
      return error;
    }
    to += from->byte_size;
    if (from->byte_size > 0) {
      tffi_count(&tffi_copied.inputs, 1);
      tffi_count(&tffi_copied.input_bytes, (int64_t)from->byte_size);
    }
  }
  return NULL;
}

static struct TRITONSERVER_Error *gather_input(function_batch *batch, uint32_t index, reading *const *members)
{
  tffi_tensor *tensor = &batch->shown.inputs[index];
  /* Each member has as many sources as the function inputs, which are as many all its life. */
  const source *first = &members[0]->sources[index];
  if (first->input == NULL) {
    return NULL;
  }
  for (uint32_t i = 0; i < batch->shown.request_count; i++) {
    tensor->byte_size += members[i]->sources[index].byte_size;
  }
  tensor->memory_type = TRITONSERVER_MEMORY_CPU;
  tensor->datatype = first->datatype;
  int64_t *shape = (int64_t *)(uintptr_t)tensor->shape; /* const for the reader */
  if (batch->shown.batching) {
    *shape++ = batch->shown.row_count;
    tensor->dim_count = 1;
  }
  for (uint32_t i = 0; i < first->dim_count; i++) {
    *shape++ = first->shape[i];
  }
  tensor->dim_count += first->dim_count;
  tensor->data = lendable(batch, first);
  if (tensor->data == NULL) {
    return copy_input(batch, index, members);
  }
  tffi_count(&tffi_copied.lent_inputs, 1);
  return NULL;
}

/* The batch of these requests, or NULL: then they are answered with an error. */
static function_batch *gather(function_instance *instance, reading *const *members, uint32_t member_count,
                              uint64_t exec_start_ns)
{
  tffi_function *function = instance->function;
  struct TRITONSERVER_Error *error = NULL;
  function_batch *batch = make_batch(function, member_count);
  if (batch == NULL) {
    const uint64_t now = tffi_now_ns();
    const tffi_timing at = {exec_start_ns, now, now, now};
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for the batch");
    for (uint32_t i = 0; i < member_count; i++) {
      tffi_request_answer_error(instance, members[i]->request, error, &at);
    }
    tffi_discard(error);
    return NULL;
  }
  batch->instance = instance;
  batch->worker = instance->worker;
  batch->shown.is_warm_up = instance->is_warming_up;
  batch->exec_start_ns = exec_start_ns;
  int64_t *rows = (int64_t *)(uintptr_t)batch->shown.rows; /* const for the reader */
  for (uint32_t i = 0; i < member_count; i++) {
    batch->requests[i] = members[i]->request;
    rows[i] = members[i]->rows;
    batch->shown.row_count += members[i]->rows;
  }
  bool large = false;
  for (uint32_t i = 0; member_count == 1 && i < function->input_count; i++) {
    large = large || members[0]->sources[i].byte_size >= TFFI_WORTH_LENDING;
  }
  if (large && __atomic_load_n(&function->lending, __ATOMIC_RELAXED)) {
    tffi_slot_find_lender(members[0]->request, &batch->shown.queue, &batch->shown.key);
  }
  for (uint32_t i = 0; i < function->input_count && error == NULL; i++) {
    error = gather_input(batch, i, members);
  }
  if (error == NULL && function->describing) {
    error = tffi_batch_describe(batch);
  }
  if (error != NULL) {
    tffi_batch_answer_error(batch, error);
    tffi_batch_drop(batch);
    return NULL;
  }
  return batch;
}

function_batch *tffi_batches_gather(function_instance *instance, struct TRITONBACKEND_Request **requests,
                                    uint32_t request_count)
{
  tffi_function *function = instance->function;
  const uint64_t start = tffi_now_ns();
  const tffi_timing at = {start, start, start, start};
  function_batch *first = NULL;
  function_batch **last = &first;
  reading *readings = calloc((size_t)request_count + 1, sizeof(*readings));
  reading **members = calloc((size_t)request_count + 1, sizeof(reading *));
  source *sources = calloc((size_t)request_count * function->input_count + 1, sizeof(*sources));
  const bool room = readings != NULL && members != NULL && sources != NULL;
  uint32_t count = 0;
  for (uint32_t i = 0; i < request_count; i++) {
    if (requests[i] == NULL) {
      continue;
    }
    struct TRITONSERVER_Error *error = NULL;
    if (room) {
      readings[count].request = requests[i];
      readings[count].sources = sources + (size_t)count * function->input_count;
      error = read_request(function, &readings[count]);
    } else {
      error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory to read the requests");
    }
    if (error != NULL) {
      tffi_request_answer_error(instance, requests[i], error, &at);
      tffi_discard(error);
    } else if (room) {
      count++;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    if (readings[i].placed) {
      continue;
    }
    uint32_t member_count = 0;
    for (uint32_t j = i; j < count; j++) {
      const bool fits = j == i || (function->stacking && !readings[j].placed &&
                                   can_stack(&readings[i], &readings[j], function->input_count));
      if (fits) {
        readings[j].placed = true;
        members[member_count++] = &readings[j];
      }
    }
    function_batch *batch = gather(instance, members, member_count, start);
    if (batch != NULL) {
      *last = batch;
      last = &batch->next_of_call;
    }
  }
  free(sources);
  free(members);
  free(readings);
  return first;
}
