/* SPDX-License-Identifier: Apache-2.0 */

/* What fails around function models: their making, batches with all that requests say, answers of every kind. */

#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "failures.h"

enum { EXECUTIONS = 2, REQUESTS = 3 };

static tffi_function *function;
static const char *kind;
static bool all_answered;

static bool has(char letter)
{
  return strchr(kind, letter) != NULL;
}

static void answer_one(tffi_batch *batch)
{
  static const tffi_parameter parameters[] = {{.name = "a", .text = "text", .type = TRITONSERVER_PARAMETER_STRING},
                                              {.name = "b", .integer = 1, .type = TRITONSERVER_PARAMETER_INT},
                                              {.name = "c", .integer = 1, .type = TRITONSERVER_PARAMETER_BOOL},
                                              {.name = "d", .real = 0.5, .type = TRITONSERVER_PARAMETER_DOUBLE}};
  static const uint32_t counts[REQUESTS] = {4};
  tffi_tensor output = batch->inputs[0];
  output.name = "y";
  const tffi_result result = {
      .outputs = &output, .parameters = parameters, .parameter_counts = counts, .output_count = 1};
  if (output.data == NULL) {
    tffi_batch_fail(batch, TRITONSERVER_ERROR_INTERNAL, "without its input");
    all_answered = false;
  } else if (has('w')) {
    tffi_batch_fail(batch, TRITONSERVER_ERROR_INTERNAL, "as it was told to");
  } else if (has('u')) {
    all_answered = false;
  } else if (has('s')) {
    for (uint32_t i = 0; i < 2; i++) {
      (void)tffi_batch_is_cancelled(batch, 0);
      all_answered = driver_ok(tffi_batch_send(batch, &result)) && all_answered;
    }
    tffi_batch_end(batch);
    CHECK(!tffi_batch_is_cancelled(batch, 0) || has('a'));
  } else if (!driver_ok(tffi_batch_finish(batch, &result))) {
    all_answered = false;
  }
}

/* Answers, and takes what comes next, in one call each. */
static void answer_and_go_on(tffi_batch *batch)
{
  while (batch != NULL) {
    tffi_tensor output = batch->inputs[0];
    tffi_buffer *kept = output.buffer;
    const tffi_result result = {.outputs = &output, .output_count = 1};
    struct TRITONSERVER_Error *error = NULL;
    output.name = "y";
    batch->inputs[0].buffer = NULL;
    tffi_batch_exchange(&batch, &result, &error);
    if (error != NULL) {
      all_answered = driver_ok(error);
      tffi_batch_release(batch);
      batch = NULL;
    }
    tffi_buffer_release(kept);
  }
}

static void *work(void *unused)
{
  (void)unused;
  tffi_batch *batch = NULL;
  while (tffi_function_next(function, 0, -1, &batch) == TFFI_WAIT_READY) {
    if (has('c')) {
      const tffi_batch_request *said = &batch->requests[0];
      CHECK(strcmp(said->id, "an id") == 0 && said->flags == 1 && said->timeout_us == 7);
      CHECK(said->correlation_text == NULL ? said->correlation_id == 3 : strcmp(said->correlation_text, "three") == 0);
      CHECK(said->parameter_count == FAKE_PARAMETERS && strcmp(said->parameters[0].text, "some") == 0);
    }
    if (has('o') && batch->inputs[0].data != NULL) {
      bool cancelled[REQUESTS];
      CHECK(tffi_batch_cancelled(batch, cancelled) == 0);
      answer_and_go_on(batch);
    } else {
      answer_one(batch);
      tffi_batch_release(batch);
    }
  }
  return NULL;
}

/* One execution; all its requests are answered but for one for which Triton gives no response object. */
static bool execute(struct TRITONBACKEND_ModelInstance *instance)
{
  fake_alive before;
  fake_alive after;
  struct TRITONBACKEND_Request *requests[REQUESTS];
  fake.read_alive(&before);
  fake.backend_requests(requests, REQUESTS);
  const bool executed = driver_ok(TRITONBACKEND_ModelInstanceExecute(instance, requests, REQUESTS));
  for (uint32_t i = 0; i < REQUESTS && !executed; i++) { /* Triton keeps the requests then */
    driver_ok(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  fake.read_alive(&after);
  CHECK(after.released == before.released + REQUESTS);
  CHECK(!executed || after.answered + after.refused >= before.answered + before.refused + REQUESTS);
  return executed && after.answered == before.answered + REQUESTS;
}

static bool run(struct TRITONBACKEND_Model *model, struct TRITONBACKEND_ModelInstance *instance)
{
  if (!driver_ok(TRITONBACKEND_ModelInitialize(model))) {
    return false;
  }
  bool went_well = driver_ok(TRITONBACKEND_ModelInstanceInitialize(instance));
  if (went_well) {
    if (has('a')) {
      tffi_function_abandon(function);
    }
    const bool warmed_up = execute(instance);
    struct TRITONSERVER_Error *failure = tffi_function_set_loaded(function);
    CHECK(!has('w') || !warmed_up || failure != NULL);
    went_well = driver_ok(failure) && warmed_up;
    for (uint32_t i = 1; i < EXECUTIONS; i++) {
      went_well = execute(instance) && went_well;
    }
    CHECK(tffi_function_executing(function) == 0);
  }
  /* Where Triton does not tell the state nothing can be given back; the next time it does. */
  while (!driver_ok(TRITONBACKEND_ModelInstanceFinalize(instance))) {
  }
  while (!driver_ok(TRITONBACKEND_ModelFinalize(model))) {
  }
  return went_well;
}

bool serve(const char *how)
{
  kind = how;
  all_answered = true;
  const tffi_tensor input = {.name = "x", .dim_count = 2};
  const tffi_function_spec spec = {.model_name = "f", .inputs = &input, .input_count = 1, .worker_count = 1,
                                   .max_batch_size = 64, .batching = true, .stacking = !has('s'), .decoupled = has('s'),
                                   .describing = has('c'), .warm_up_calls = has('w') ? 1 : 0};
  uint64_t token = 0;
  tffi_function_new(&spec, &token, &function);
  if (function == NULL) {
    return false;
  }
  pthread_t worker;
  CHECK(pthread_create(&worker, NULL, work, NULL) == 0);
  struct TRITONBACKEND_Model *model = fake.model_new(token);
  struct TRITONBACKEND_ModelInstance *instance = fake.instance_new(model);
  const bool went_well = run(model, instance);
  tffi_function_close(function);
  pthread_join(worker, NULL);
  tffi_function_release(&function);
  free(instance);
  free(model);
  tffi_pool_set_limit(0);
  return went_well && all_answered && !has('a');
}

bool refuse(const char *how)
{
  (void)how;
  const uint64_t tokens[] = {0, UINT64_MAX}; /* the first stands for none */
  bool went_well = driver_ok(TRITONBACKEND_Initialize(NULL));
  went_well = driver_ok(TRITONBACKEND_GetBackendAttribute(NULL, NULL)) && went_well;
  for (size_t i = 0; i < 2; i++) {
    struct TRITONBACKEND_Model *model = fake.model_new(tokens[i]);
    CHECK(!driver_ok(TRITONBACKEND_ModelInitialize(model)));
    driver_ok(TRITONBACKEND_ModelFinalize(model));
    free(model);
  }
  driver_ok(TRITONBACKEND_Finalize(NULL));
  return false;
}
