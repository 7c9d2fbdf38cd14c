/* SPDX-License-Identifier: Apache-2.0 */

/* Function models under many threads. */

#include <stdlib.h>
#include <unistd.h>

#include "batch.h"
#include "threads.h"

static tffi_function *function;
static bool is_stream;
static struct TRITONBACKEND_ModelInstance *instances[2];

static void *execute(void *given)
{
  task *me = given;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    struct TRITONBACKEND_Request *requests[3];
    fake.backend_requests(requests, 3);
    CHECK(TRITONBACKEND_ModelInstanceExecute(instances[me->number], requests, 1 + i % 3) == NULL);
    for (uint32_t j = 1 + i % 3; j < 3; j++) {
      CHECK(TRITONBACKEND_RequestRelease(requests[j], 1) == NULL);
    }
  }
  return NULL;
}

/* Somebody else of the callable's asks, for as long as it runs. */
static void *watch(void *given)
{
  for (uint32_t i = 0; i < 20; i++) {
    (void)tffi_batch_is_cancelled(given, i % 2);
  }
  return NULL;
}

static void answer_stream(tffi_batch *batch, const tffi_result *result, uint32_t number)
{
  pthread_t watcher;
  const bool watched = number % 16 == 0;
  if (watched) {
    CHECK(pthread_create(&watcher, NULL, watch, batch) == 0);
  }
  for (uint32_t i = 0; i < number % 4; i++) {
    CHECK(driver_ok(tffi_batch_send(batch, result)));
  }
  if (number % 3 != 0) {
    tffi_batch_end(batch);
  }
  if (watched) {
    pthread_join(watcher, NULL);
  }
}

static void *answer(void *given)
{
  task *me = given;
  const uint32_t worker = (uint32_t)me->token;
  tffi_batch *batch = NULL;
  while (tffi_function_next(function, worker, worker == 0 ? -1 : 1000000, &batch) != TFFI_WAIT_GONE) {
    if (batch == NULL) {
      continue;
    }
    me->count++;
    if (me->count % 5 == 0) {
      tffi_batch_fail(batch, TRITONSERVER_ERROR_INTERNAL, "no");
    } else if (me->count % 7 != 0) {
      const tffi_tensor *input = &batch->inputs[0];
      CHECK(batch->row_count == FAKE_ROWS * (int64_t)batch->request_count);
      tffi_tensor output = *input;
      output.name = "y";
      const tffi_result result = {.outputs = &output, .output_count = 1};
      if (is_stream) {
        answer_stream(batch, &result, me->count);
      } else {
        CHECK(driver_ok(tffi_batch_finish(batch, &result)));
      }
    }
    if (me->count % 11 == 0) {
      tffi_buffer *kept = batch->inputs[0].buffer;
      batch->inputs[0].buffer = NULL;
      tffi_batch_release(batch);
      tffi_buffer_release(kept);
    } else {
      tffi_batch_release(batch);
    }
    batch = NULL;
  }
  return NULL;
}

/* The same for one instance, in one call each. */
static void *answer_and_go_on(void *given)
{
  task *me = given;
  tffi_batch *batch = NULL;
  while (tffi_function_next(function, 1, -1, &batch) != TFFI_WAIT_GONE) {
    while (batch != NULL) {
      me->count++;
      tffi_tensor output = batch->inputs[0];
      tffi_buffer *kept = NULL;
      output.name = "y";
      const tffi_result result = {.outputs = &output, .output_count = 1};
      const bool fails = me->count % 5 == 0;
      if (fails) {
        tffi_batch_fail(batch, TRITONSERVER_ERROR_INTERNAL, "no");
      } else { /* the result lies in memory of the input's, as where a callable returns that */
        kept = batch->inputs[0].buffer;
        batch->inputs[0].buffer = NULL;
      }
      struct TRITONSERVER_Error *error = NULL;
      tffi_batch_exchange(&batch, fails ? NULL : &result, &error);
      CHECK(driver_ok(error));
      tffi_buffer_release(kept);
    }
  }
  return NULL;
}

void functions(bool abandon, bool decoupled)
{
  enum { INSTANCES = 2 };
  task executors[INSTANCES];
  task answerers[INSTANCES];
  uint64_t token = 0;
  is_stream = decoupled;
  function = driver_function(INSTANCES, decoupled, &token);
  struct TRITONBACKEND_Model *model = fake.model_new(token);
  CHECK(TRITONBACKEND_ModelInitialize(model) == NULL);
  for (uint32_t i = 0; i < INSTANCES; i++) {
    instances[i] = fake.instance_new(model);
    CHECK(TRITONBACKEND_ModelInstanceInitialize(instances[i]) == NULL);
  }
  CHECK(tffi_function_set_loaded(function) == NULL);
  start(answerers, 1, answer, NULL, 0);
  start(answerers + 1, 1, decoupled ? answer : answer_and_go_on, NULL, 1);
  start(executors, INSTANCES, execute, NULL, 0);
  if (abandon) {
    usleep(2000);
    tffi_function_abandon(function);
  }
  join(executors, INSTANCES);
  tffi_function_close(function);
  for (uint32_t i = 0; i < INSTANCES; i++) {
    CHECK(TRITONBACKEND_ModelInstanceFinalize(instances[i]) == NULL);
    free(instances[i]);
  }
  CHECK(TRITONBACKEND_ModelFinalize(model) == NULL);
  free(model);
  join(answerers, INSTANCES);
  tffi_function_release(&function);
}

/* Loads a model of the function, has it execute, and unloads it, until no new model may use the function. */
static void *come_and_go(void *given)
{
  task *me = given;
  struct TRITONBACKEND_Model *model = fake.model_new(me->token);
  while (driver_ok(TRITONBACKEND_ModelInitialize(model))) {
    struct TRITONBACKEND_ModelInstance *instance = fake.instance_new(model);
    struct TRITONBACKEND_Request *requests[2];
    CHECK(driver_ok(TRITONBACKEND_ModelInstanceInitialize(instance)));
    fake.backend_requests(requests, 2);
    CHECK(driver_ok(TRITONBACKEND_ModelInstanceExecute(instance, requests, 2)));
    CHECK(driver_ok(TRITONBACKEND_ModelInstanceFinalize(instance)));
    CHECK(driver_ok(TRITONBACKEND_ModelFinalize(model)));
    free(instance);
  }
  free(model);
  return NULL;
}

static void *stop(void *given)
{
  task *me = given;
  if (me->token % 2 == 0 && me->number == 1) {
    tffi_function_abandon(function);
  } else {
    tffi_function_close(function);
  }
  return NULL;
}

void stops(void)
{
  is_stream = false;
  for (uint32_t i = 0; i < ROUNDS / 3; i++) {
    task models[2];
    task workers[1];
    task stoppers[2];
    uint64_t token = 0;
    function = driver_function(1, false, &token);
    start(workers, 1, answer, NULL, 0);
    start(models, 2, come_and_go, NULL, token);
    usleep(i * 37 % 500);
    start(stoppers, 2, stop, NULL, token);
    join(workers, 1);
    join(stoppers, 2);
    tffi_function_release(&function); /* an abandoned one may have models still */
    join(models, 2);
  }
}
