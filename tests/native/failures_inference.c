/* SPDX-License-Identifier: Apache-2.0 */

/* What fails around an inference, whether through our queues or the callbacks of handover.c. */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failures.h"

/* How many responses an inference has, of which the final one may be an error. */
static uint32_t responses_of(const char *how)
{
  return (strchr(how, 'd') != NULL ? 3 : 0) + (strchr(how, 'n') != NULL ? 0 : 1);
}

/* Waits for an inference, if it was submitted, and for all responses that it has; lets go of the queue. */
static bool finish(const char *how, tffi_queue *queue, uint64_t token, struct TRITONSERVER_Error *error)
{
  driver_seen seen = {0};
  if (error != NULL) {
    CHECK(token == 0);
  }
  while (error == NULL && seen.done == 0) {
    tffi_completion *list = NULL;
    CHECK(tffi_inference_wait(token, *tffi_queue_wakes(queue), -1, &list) == TFFI_WAIT_READY);
    driver_take(list, &seen);
  }
  tffi_queue_release(&queue);
  tffi_pool_set_limit(0);
  const bool went_well = driver_ok(error) && seen.errors == 0;
  CHECK(!went_well || (seen.done == 1 && seen.responses == responses_of(how)));
  return went_well;
}

bool infer(const char *how)
{
  uint64_t token = 0;
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  if (queue == NULL) {
    return false;
  }
  struct TRITONSERVER_Error *error = driver_submit(how, queue, 1, &token);
  return finish(how, queue, token, error);
}

static struct TRITONSERVER_Error *submit(const tffi_request *request, const void *const *places, tffi_queue *queue,
                                         uint64_t *token)
{
  struct TRITONSERVER_Error *error = NULL;
  tffi_ticket ticket = {0, 0};
  *token = tffi_inference_submit(NULL, request, places, 1, queue, &ticket, &error);
  CHECK(ticket.token == *token && ticket.key == 1 && (error == NULL) == (*token != 0));
  return error;
}

static struct TRITONSERVER_Error *submit_all(const char *how, tffi_queue *queue, uint64_t *token)
{
  static float data[4];
  static float room[FAKE_FLOATS];
  static const int64_t shape[] = {4};
  static const char *const names[] = {"y"};
  const tffi_tensor inputs[] = {
      {.name = "x", .shape = shape, .byte_size = 4, .dim_count = 1, .datatype = TRITONSERVER_TYPE_FP32},
      {.name = "raw", .byte_size = 4, .datatype = TRITONSERVER_TYPE_INVALID}};
  const tffi_piece pieces[] = {
      {.data = data + 1, .byte_size = 4},
      {.data = data + 2, .byte_size = 4, .host_policy = "policy"},
      {.data = data + 3, .byte_size = 4, .memory_type = TRITONSERVER_MEMORY_CPU_PINNED, .input = 1}};
  const tffi_parameter parameters[] = {{.name = "a", .text = "text", .type = TRITONSERVER_PARAMETER_STRING},
                                       {.name = "b", .integer = 1, .type = TRITONSERVER_PARAMETER_INT},
                                       {.name = "c", .integer = 1, .type = TRITONSERVER_PARAMETER_BOOL},
                                       {.name = "d", .real = 0.5, .type = TRITONSERVER_PARAMETER_DOUBLE}};
  const tffi_tensor out = {.name = "y", .data = room, .byte_size = sizeof(room)};
  const tffi_request request = {.model_name = how, .model_version = -1, .request_id = "an id",
                                .correlation_text = "text", .inputs = inputs, .pieces = pieces,
                                .outputs = names, .out = &out, .labelled = names, .parameters = parameters,
                                .input_count = 2, .piece_count = 3, .output_count = 1, .out_count = 1,
                                .labelled_count = 1, .parameter_count = 4, .batching = true};
  const void *const places[] = {data, data};
  return submit(&request, places, queue, token);
}

bool infer_all(const char *how)
{
  uint64_t token = 0;
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  if (queue == NULL) {
    return false;
  }
  struct TRITONSERVER_Error *error = submit_all(how, queue, &token);
  return finish(how, queue, token, error);
}

bool infer_each(const char *how)
{
  enum { TIMES = 3 };
  static float data[TIMES];
  static const int64_t shape[] = {1};
  static const uint64_t keys[TIMES] = {5, 6, 7};
  const tffi_tensor input = {
      .name = "x", .shape = shape, .byte_size = 4, .dim_count = 1, .datatype = TRITONSERVER_TYPE_FP32};
  const tffi_request request = {
      .model_name = how, .model_version = -1, .request_id = "an id", .inputs = &input, .input_count = 1};
  const void *const places[TIMES] = {&data[0], &data[1], &data[2]};
  uint64_t tokens[TIMES] = {0};
  bool went_well = true;
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  if (queue == NULL) {
    return false;
  }
  const bool are_started = tffi_inference_submit_each(NULL, &request, places, keys, TIMES, queue, tokens);
  for (uint32_t i = 0; i < TIMES; i++) {
    CHECK(!are_started || tokens[i] != 0);
    tffi_completion *list = NULL;
    driver_seen seen = {0};
    if (tokens[i] != 0) {
      CHECK(tffi_inference_wait(tokens[i], *tffi_queue_wakes(queue), -1, &list) == TFFI_WAIT_READY);
      CHECK(list->key == keys[i]);
      driver_take(list, &seen);
    }
    went_well = seen.responses == 1 && went_well;
  }
  tffi_queue_release(&queue);
  tffi_pool_set_limit(0);
  return went_well;
}

bool infer_bounded(const char *how)
{
  static const tffi_parameter bytes = {.name = "b", .type = TRITONSERVER_PARAMETER_BYTES};
  tffi_request request = {.model_name = how, .model_version = -1, .request_id = "an id", .parameters = &bytes,
                          .max_pending = 1, .parameter_count = 1};
  uint64_t token = 0;
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  if (queue == NULL) {
    return false;
  }
  /* No request has a parameter of that kind. */
  CHECK(!driver_ok(submit(&request, NULL, queue, &token)) && token == 0);
  request.parameter_count = 0;
  struct TRITONSERVER_Error *error = submit(&request, NULL, queue, &token);
  if (error == NULL) {
    tffi_inference_consume(token);
  }
  return finish(how, queue, token, error);
}

bool infer_traced(const char *how)
{
  tffi_trace *trace = NULL;
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  uint64_t token = 0;
  struct TRITONSERVER_Error *error = NULL;
  if (queue == NULL) {
    return false;
  }
  error = tffi_trace_new(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, 100, 1000, &trace);
  const tffi_request request = {.model_name = how, .model_version = -1, .request_id = "an id", .trace = trace};
  if (error == NULL) {
    error = submit(&request, NULL, queue, &token);
  }
  const bool went_well = finish(how, queue, token, error);
  /* Triton's: the threads that tell of it. One that was not taken is ours still, or was released. */
  while (trace != NULL && tffi_trace_wait(trace, 1000000000) == TFFI_TRACE_ALIVE) {
  }
  fake.trace_settle();
  if (trace != NULL) {
    CHECK(token == 0 || tffi_trace_wait(trace, 0) == TFFI_TRACE_OVER);
    CHECK(strchr(how, 'x') == NULL || tffi_trace_wait(trace, 0) != TFFI_TRACE_ALIVE);
    tffi_trace_release(&trace);
  }
  return went_well;
}

bool hand_over(const char *how)
{
  struct TRITONSERVER_ResponseAllocator *allocator = NULL;
  struct TRITONSERVER_InferenceRequest *request = NULL;
  tffi_handover *handover = tffi_handover_new();
  if (handover == NULL) {
    return false;
  }
  struct TRITONSERVER_Error *error =
      TRITONSERVER_ResponseAllocatorNew(&allocator, tffi_handover_alloc_fn, tffi_handover_release_fn, NULL);
  if (error == NULL) {
    error = TRITONSERVER_InferenceRequestNew(&request, NULL, how, -1);
  }
  if (error == NULL) {
    error = TRITONSERVER_InferenceRequestSetReleaseCallback(request, tffi_handover_request_release_fn, handover);
  }
  if (error == NULL) {
    error = TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, handover,
                                                             tffi_handover_response_complete_fn, handover);
  }
  if (error == NULL) {
    error = TRITONSERVER_ServerInferAsync(NULL, request, NULL);
  }
  bool went_well = error == NULL;
  if (error == NULL) {
    const uint32_t calls = responses_of(how) + (strchr(how, 'n') != NULL ? 1 : 0);
    for (uint32_t i = 0; i < calls; i++) {
      struct TRITONSERVER_InferenceResponse *response = NULL;
      uint32_t flags = 0;
      if (tffi_handover_response(handover, -1, &response, &flags) != TFFI_WAIT_READY) {
        CHECK(response == NULL);
        went_well = false;
      } else if (response != NULL && i != 1) { /* one is left to the handover */
        went_well = driver_ok(TRITONSERVER_InferenceResponseError(response)) && went_well;
        went_well = driver_ok(TRITONSERVER_InferenceResponseDelete(response)) && went_well;
      } else if (response != NULL) {
        went_well = driver_ok(TRITONSERVER_InferenceResponseDelete(response)) && went_well;
      }
    }
    struct TRITONSERVER_InferenceRequest *back = NULL;
    const tffi_wait fetched = tffi_handover_request(handover, -1, &back);
    CHECK(fetched == TFFI_WAIT_READY ? back == request : fetched == TFFI_WAIT_GONE && back == NULL);
    went_well = went_well && fetched == TFFI_WAIT_READY;
    CHECK(tffi_handover_request(handover, 0, &back) == TFFI_WAIT_TIMEOUT && back == NULL);
  }
  driver_ok(error);
  if (request != NULL) {
    driver_ok(TRITONSERVER_InferenceRequestDelete(request));
  }
  tffi_handover_delete(handover);
  if (allocator != NULL) {
    driver_ok(TRITONSERVER_ResponseAllocatorDelete(allocator));
  }
  tffi_pool_set_limit(0);
  return went_well;
}
