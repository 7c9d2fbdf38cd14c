/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The backend behind the tests: it echoes, and it misbehaves on demand (knobs.h).
 *
 * Every input is returned under its own name, with a leading "IN" turned into "OUT" (INPUT0 ->
 * OUTPUT0), if that output is asked for: any dtype, any shape, any number of buffers. The
 * parameters of a request come back as those of each response, their types kept.
 *
 * Statistics are reported before the final response is sent, so that a test which has it reads
 * exact counts.
 */

#define _GNU_SOURCE

#include "gate.h"
#include "knobs.h"
#include "responses.h"
#include "state.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of the backend API, and of no use to the extension. */
Error *TRITONBACKEND_RequestTrace(struct TRITONBACKEND_Request *request,
                                  struct TRITONSERVER_InferenceTrace **trace);

enum { MOST_EARLY = 8 }; /* responses where they are made before the request is released */

/* The state of a model: made in ModelInitialize, freed in ModelFinalize. */
struct model {
  struct knobs knobs;
  bool is_batched;
};

/* A request in our hands: on the stack of Execute, or freed by the thread that serves it. */
struct task {
  struct TRITONBACKEND_ModelInstance *instance;
  struct TRITONBACKEND_Request *request;
  struct TRITONBACKEND_ResponseFactory *factory;
  struct knobs knobs;
  struct gate_place place;
  uint64_t start_ns;
};

/* For calls that fail only where the backend itself is wrong: a line for the tests to see. */
static void expect_success(Error *error)
{
  if (error == NULL)
    return;
  fprintf(stderr, "tffitest: %s\n", TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

static uint64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* What a response holds. */

enum { MAX_OUTPUTS = 256 };

/* The outputs that a request asks for: read once, because Triton walks over all to find one. */
struct wanted {
  const char *names[MAX_OUTPUTS];
  uint32_t count;
};

static Error *read_wanted(struct TRITONBACKEND_Request *request, struct wanted *wanted)
{
  TRY(TRITONBACKEND_RequestOutputCount(request, &wanted->count));
  if (wanted->count > MAX_OUTPUTS)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "tffitest: too many outputs");
  for (uint32_t i = 0; i < wanted->count; i++)
    TRY(TRITONBACKEND_RequestOutputName(request, i, &wanted->names[i]));
  return NULL;
}

static bool is_wanted(const struct wanted *wanted, const char *name)
{
  for (uint32_t i = 0; i < wanted->count; i++) {
    if (strcmp(wanted->names[i], name) == 0)
      return true;
  }
  return false;
}

static Error *add_output(struct TRITONBACKEND_Response *response, const char *name,
                         TRITONSERVER_DataType datatype, const int64_t *shape, uint32_t dim_count,
                         uint64_t byte_size, void **data)
{
  struct TRITONBACKEND_Output *output = NULL;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, name, datatype, shape, dim_count));
  TRY(TRITONBACKEND_OutputBuffer(output, data, byte_size, &memory, &memory_id));
  if (memory == TRITONSERVER_MEMORY_GPU)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED,
                                 "tffitest: got GPU memory for an output");
  return NULL;
}

static Error *echo_input(struct task *task, uint32_t index, const struct wanted *wanted,
                         struct TRITONBACKEND_Response *response)
{
  struct TRITONBACKEND_Input *input = NULL;
  const char *name = NULL;
  const int64_t *shape = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  uint32_t dim_count = 0;
  uint32_t buffer_count = 0;
  uint64_t total = 0;
  TRY(TRITONBACKEND_RequestInputByIndex(task->request, index, &input));
  TRY(TRITONBACKEND_InputPropertiesForHostPolicy(input, task->knobs.host_policy, &name, &datatype,
                                                 &shape, &dim_count, &total, &buffer_count));

  char output[TEXT_SIZE];
  if (strncmp(name, "IN", 2) == 0)
    snprintf(output, sizeof output, "OUT%s", name + 2);
  else
    snprintf(output, sizeof output, "%s", name);
  if (!is_wanted(wanted, output))
    return NULL;

  void *target = NULL;
  if (task->knobs.mode == MODE_NO_MEMORY) {
    struct TRITONBACKEND_Output *named = NULL;
    return TRITONBACKEND_ResponseOutput(response, &named, output, datatype, shape, dim_count);
  }
  TRY(add_output(response, output, datatype, shape, dim_count, total, &target));
  for (uint32_t i = 0; i < buffer_count; i++) {
    const void *data = NULL;
    uint64_t byte_size = 0;
    int64_t memory_id = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    TRY(TRITONBACKEND_InputBufferForHostPolicy(input, task->knobs.host_policy, i, &data, &byte_size,
                                               &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU)
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED,
                                   "tffitest: an input is in GPU memory");
    if (byte_size > 0)
      target = (char *)memcpy(target, data, byte_size) + byte_size;
  }
  return NULL;
}

static Error *fill_outputs(struct task *task, int number, struct TRITONBACKEND_Response *response)
{
  struct wanted wanted;
  uint32_t count = 0;
  TRY(read_wanted(task->request, &wanted));
  TRY(TRITONBACKEND_RequestInputCount(task->request, &count));
  for (uint32_t i = 0; i < count; i++)
    TRY(echo_input(task, i, &wanted, response));

  if (is_wanted(&wanted, "INDEX")) {
    static const int64_t shape[] = {1};
    int32_t value = number;
    void *data = NULL;
    TRY(add_output(response, "INDEX", TRITONSERVER_TYPE_INT32, shape, 1, sizeof value, &data));
    memcpy(data, &value, sizeof value);
  }
  return NULL;
}

static Error *echo_parameters(struct task *task, struct TRITONBACKEND_Response *response)
{
  uint32_t count = 0;
  TRY(TRITONBACKEND_RequestParameterCount(task->request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char *key = NULL;
    const void *value = NULL;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    TRY(TRITONBACKEND_RequestParameter(task->request, i, &key, &type, &value));
    if (type == TRITONSERVER_PARAMETER_STRING)
      TRY(TRITONBACKEND_ResponseSetStringParameter(response, key, value));
    else if (type == TRITONSERVER_PARAMETER_INT)
      TRY(TRITONBACKEND_ResponseSetIntParameter(response, key, *(const int64_t *)value));
    else if (type == TRITONSERVER_PARAMETER_BOOL)
      TRY(TRITONBACKEND_ResponseSetBoolParameter(response, key, *(const bool *)value));
    else if (type == TRITONSERVER_PARAMETER_DOUBLE)
      TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, key, *(const double *)value));
  }
  return NULL;
}

static Error *report_request(struct task *task, struct TRITONBACKEND_Response *response)
{
  const char *text = NULL;
  uint64_t number = 0;
  uint32_t flags = 0;
  uint32_t count = 0;
  TRY(TRITONBACKEND_RequestId(task->request, &text));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "id", text));
  Error *error = TRITONBACKEND_RequestCorrelationId(task->request, &number);
  if (error == NULL) {
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, "correlation_id", (int64_t)number));
  } else {
    TRITONSERVER_ErrorDelete(error);
    TRY(TRITONBACKEND_RequestCorrelationIdString(task->request, &text));
    TRY(TRITONBACKEND_ResponseSetStringParameter(response, "correlation_id", text));
  }
  TRY(TRITONBACKEND_RequestFlags(task->request, &flags));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "flags", flags));
  TRY(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(task->request, &number));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "timeout_us", (int64_t)number));
  TRY(TRITONBACKEND_RequestInputCount(task->request, &count));
  for (uint32_t i = 0; i < count; i++) {
    struct TRITONBACKEND_Input *input = NULL;
    uint32_t buffers = 0;
    TRY(TRITONBACKEND_RequestInputByIndex(task->request, i, &input));
    TRY(TRITONBACKEND_InputProperties(input, &text, NULL, NULL, NULL, NULL, &buffers));
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, text, buffers));
  }
  TRY(TRITONBACKEND_RequestOutputCount(task->request, &count));
  for (uint32_t i = 0; i < count; i++) {
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_GPU;
    int64_t memory_id = -1;
    TRY(TRITONBACKEND_RequestOutputName(task->request, i, &text));
    TRY(TRITONBACKEND_RequestOutputBufferProperties(task->request, text, NULL, &memory, &memory_id));
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, text, 10 * (int)memory + memory_id));
  }
  return NULL;
}

static Error *report_activity(struct task *task, struct TRITONBACKEND_Response *response)
{
  struct TRITONSERVER_InferenceTrace *trace = NULL;
  const char *context = NULL;
  TRY(TRITONBACKEND_RequestTrace(task->request, &trace));
  if (trace == NULL)
    return NULL;
  TRY(TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), task->knobs.activity));
  TRY(TRITONSERVER_InferenceTraceContext(trace, &context));
  return TRITONBACKEND_ResponseSetStringParameter(response, "trace_context", context);
}

/* Serving a request: its responses and its release, in the order and at the moments asked for. */

static bool task_is_cancelled(void *userp)
{
  const struct task *task = userp;
  bool cancelled = false;
  if (task->knobs.ignore_cancel)
    return false;
  if (task->request != NULL)
    expect_success(TRITONBACKEND_RequestIsCancelled(task->request, &cancelled));
  else
    expect_success(TRITONBACKEND_ResponseFactoryIsCancelled(task->factory, &cancelled));
  return cancelled;
}

/* Enters the line and waits in it; false if it was left for a cancellation. */
static bool wait_at_gate(bool (*is_cancelled)(void *), void *userp)
{
  struct gate_place place;
  gate_enter(&place);
  return gate_pass(&place, is_cancelled, userp);
}

static Error *make_response(struct task *task, int number, struct TRITONBACKEND_Response **response)
{
  const struct knobs *knobs = &task->knobs;
  TRY(TRITONBACKEND_ResponseNewFromFactory(response, task->factory));
  if (knobs->mode == MODE_ERROR || knobs->error_at == number)
    return TRITONSERVER_ErrorNew(knobs->error_code, knobs->error_text);
  TRY(echo_parameters(task, *response));
  if (knobs->report)
    TRY(report_request(task, *response));
  if (knobs->state)
    TRY(keep_state(task->request, *response));
  if (knobs->activity[0] != '\0')
    TRY(report_activity(task, *response));
  return knobs->mode == MODE_NO_OUTPUT ? NULL : fill_outputs(task, number, *response);
}

/* Sends the response, or the bare flag where there is none. Takes response and error. */
static void send(struct task *task, struct TRITONBACKEND_Response *response, Error *error,
                 uint32_t flags)
{
  if (task->knobs.response_ns > 0)
    expect_success(report_response(task->instance, task->factory, task->knobs.response_ns,
                                   response == NULL, error));
  if (response == NULL)
    expect_success(TRITONBACKEND_ResponseFactorySendFlags(task->factory, flags));
  else
    expect_success(TRITONBACKEND_ResponseSend(response, flags, error));
  if (error != NULL)
    TRITONSERVER_ErrorDelete(error);
}

/* What a cancelled request ends with: an error in a response of its own, or neither. */
static Error *refuse(const struct task *task, struct TRITONBACKEND_Response **response)
{
  if (task->knobs.quiet)
    return NULL;
  expect_success(TRITONBACKEND_ResponseNewFromFactory(response, task->factory));
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_CANCELLED, "tffitest: cancelled");
}

/* The end of a request: its final response and its release, in the order asked for. */
static void conclude(struct task *task, struct TRITONBACKEND_Response *response, Error *error)
{
  const struct knobs *knobs = &task->knobs;
  uint64_t end_ns = now_ns();
  expect_success(TRITONBACKEND_ModelInstanceReportStatistics(task->instance, task->request,
                                                             error == NULL, task->start_ns,
                                                             task->start_ns, end_ns, end_ns));
  if (knobs->release_first)
    expect_success(TRITONBACKEND_RequestRelease(task->request, TRITONSERVER_REQUEST_RELEASE_ALL));
  else
    send(task, response, error, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  if (knobs->hold == HOLD_BETWEEN)
    wait_at_gate(NULL, NULL);
  if (knobs->release_first)
    send(task, response, error, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  else
    expect_success(TRITONBACKEND_RequestRelease(task->request, TRITONSERVER_REQUEST_RELEASE_ALL));
  expect_success(TRITONBACKEND_ResponseFactoryDelete(task->factory));
}

/* Makes all responses, and gives the request back before it sends the first. */
static void serve_released(struct task *task)
{
  const struct knobs *knobs = &task->knobs;
  struct TRITONBACKEND_Response *responses[MOST_EARLY] = {NULL};
  const int count = knobs->count < MOST_EARLY ? knobs->count : MOST_EARLY;
  bool cancelled = knobs->hold == HOLD_START && !gate_pass(&task->place, task_is_cancelled, task);
  for (int number = 0; number < count; number++)
    expect_success(make_response(task, number, &responses[number]));
  uint64_t end_ns = now_ns();
  expect_success(TRITONBACKEND_ModelInstanceReportStatistics(
      task->instance, task->request, true, task->start_ns, task->start_ns, end_ns, end_ns));
  expect_success(TRITONBACKEND_RequestRelease(task->request, TRITONSERVER_REQUEST_RELEASE_ALL));
  task->request = NULL;
  for (int number = 0; number < count; number++) {
    if (!cancelled && knobs->hold == HOLD_RESPONSE && knobs->hold_at == number)
      cancelled = !wait_at_gate(task_is_cancelled, task);
    cancelled = cancelled || task_is_cancelled(task);
    if (cancelled)
      expect_success(TRITONBACKEND_ResponseDelete(responses[number]));
    else
      send(task, responses[number], NULL, 0);
  }
  struct TRITONBACKEND_Response *last = NULL;
  Error *error = cancelled ? refuse(task, &last) : NULL;
  send(task, last, error, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  expect_success(TRITONBACKEND_ResponseFactoryDelete(task->factory));
}

static void serve(struct task *task)
{
  const struct knobs *knobs = &task->knobs;
  struct TRITONBACKEND_Response *response = NULL;
  Error *error = NULL;
  bool cancelled = false;

  if (knobs->release_early) {
    serve_released(task);
    return;
  }
  if (knobs->hold == HOLD_START)
    cancelled = !gate_pass(&task->place, task_is_cancelled, task);
  for (int number = 0; number < knobs->count; number++) {
    if (knobs->hold == HOLD_RESPONSE && knobs->hold_at == number)
      cancelled = !wait_at_gate(task_is_cancelled, task);
    if (cancelled || task_is_cancelled(task)) {
      cancelled = true;
      break;
    }
    error = make_response(task, number, &response);
    if (number + 1 == knobs->count && !knobs->final_is_bare) {
      conclude(task, response, error);
      return;
    }
    send(task, response, error, 0);
    response = NULL;
    error = NULL;
  }
  if (cancelled)
    error = refuse(task, &response);
  conclude(task, response, error);
}

static void *serve_in_thread(void *userp)
{
  serve(userp);
  free(userp);
  return NULL;
}

static void serve_elsewhere(const struct task *task)
{
  struct task *copy = malloc(sizeof *copy);
  pthread_t thread;
  if (copy == NULL)
    abort();
  *copy = *task;
  if (copy->knobs.hold == HOLD_START)
    gate_enter(&copy->place);
  if (pthread_create(&thread, NULL, serve_in_thread, copy) != 0)
    abort();
  pthread_detach(thread);
}

static void serve_request(struct TRITONBACKEND_ModelInstance *instance,
                          struct TRITONBACKEND_Request *request, const struct model *model)
{
  struct task task = {
      .instance = instance, .request = request, .knobs = model->knobs, .start_ns = now_ns()};
  expect_success(TRITONBACKEND_ResponseFactoryNew(&task.factory, request));
  Error *error = knobs_of_request(&task.knobs, request);
  if (error != NULL) {
    struct TRITONBACKEND_Response *response = NULL;
    expect_success(TRITONBACKEND_ResponseNewFromFactory(&response, task.factory));
    conclude(&task, response, error);
  } else if (task.knobs.in_thread) {
    serve_elsewhere(&task);
  } else {
    if (task.knobs.hold == HOLD_START)
      gate_enter(&task.place);
    serve(&task);
  }
}

/* What Triton calls. */

Error *TRITONBACKEND_GetBackendAttribute(struct TRITONBACKEND_Backend *backend,
                                         struct TRITONBACKEND_BackendAttribute *attributes)
{
  (void)backend;
  return TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 0, NULL, 0);
}

static Error *model_configure(struct model *model, const char *config)
{
  TRY(knobs_of_model(&model->knobs, config));
  const char *batch = strstr(config, "\"max_batch_size\":");
  model->is_batched = batch != NULL && atoi(batch + strlen("\"max_batch_size\":")) > 0;
  if (model->knobs.init_hold)
    wait_at_gate(NULL, NULL);
  if (model->knobs.init_error[0] != '\0')
    return TRITONSERVER_ErrorNew(model->knobs.error_code, model->knobs.init_error);
  return NULL;
}

Error *TRITONBACKEND_ModelInitialize(struct TRITONBACKEND_Model *backend_model)
{
  struct TRITONSERVER_Message *message = NULL;
  const char *json = NULL;
  size_t byte_size = 0;
  TRY(TRITONBACKEND_ModelConfig(backend_model, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &byte_size));
  char *config = strndup(json, byte_size);
  expect_success(TRITONSERVER_MessageDelete(message));

  struct model *model = calloc(1, sizeof *model);
  if (config == NULL || model == NULL)
    abort();
  Error *error = model_configure(model, config);
  free(config);
  /* ModelFinalize runs after a failed ModelInitialize too: it frees the model in any case. */
  expect_success(TRITONBACKEND_ModelSetState(backend_model, model));
  return error;
}

Error *TRITONBACKEND_ModelFinalize(struct TRITONBACKEND_Model *backend_model)
{
  void *state = NULL;
  TRY(TRITONBACKEND_ModelState(backend_model, &state));
  struct model *model = state;
  if (model != NULL && model->knobs.finalize_hold)
    wait_at_gate(NULL, NULL);
  free(model);
  return NULL;
}

/* How many rows the request adds to the batch: 1 where the model has no batch dimension. */
static Error *rows_of(struct TRITONBACKEND_Request *request, const struct model *model,
                      uint64_t *rows)
{
  struct TRITONBACKEND_Input *input = NULL;
  const int64_t *shape = NULL;
  uint32_t dim_count = 0;
  *rows = 1;
  if (!model->is_batched)
    return NULL;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dim_count, NULL, NULL));
  *rows = (uint64_t)shape[0];
  return NULL;
}

/*
 * Runs on the thread of the instance. May block: that is what "hold" without "thread" is for. Takes
 * the requests, some of them for longer than the call.
 */
Error *TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance *instance,
                                          struct TRITONBACKEND_Request **requests,
                                          const uint32_t request_count)
{
  struct TRITONBACKEND_Model *backend_model = NULL;
  void *state = NULL;
  uint64_t batch_size = 0;
  uint64_t start_ns = now_ns();
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &backend_model));
  TRY(TRITONBACKEND_ModelState(backend_model, &state));
  for (uint32_t i = 0; i < request_count; i++) {
    uint64_t rows = 0;
    TRY(rows_of(requests[i], state, &rows));
    batch_size += rows;
  }
  uint64_t end_ns = now_ns();
  TRY(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, batch_size, start_ns, start_ns,
                                                       end_ns, end_ns));
  /* From here on the requests are ours, so there is no way back to an error of the whole batch. */
  for (uint32_t i = 0; i < request_count; i++)
    serve_request(instance, requests[i], state);
  return NULL;
}
