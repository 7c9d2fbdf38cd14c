/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An instance that lingers in an answered batch: what makes it, and each of the three things that end it; and those who
 * wait for the answers, woken once. The moments between are made here one by one, so that nothing depends on time.
 */

#include <stdlib.h>
#include <unistd.h>

#include "batch.h"
#include "driver.h"

enum { IN_FLIGHT = 20, FEW = 3, MANY = 100 };

static tffi_function *function;
static struct TRITONBACKEND_ModelInstance *instance;
static tffi_queue *queue;
static uint64_t tokens[IN_FLIGHT + 1];

static void hold(uint32_t number)
{
  CHECK(driver_submit("h", queue, number, &tokens[number]) == NULL);
}

/* Lets an inference go, and takes what comes of it. */
static void let_go(uint32_t number)
{
  tffi_completion *list = NULL;
  driver_seen seen = {0};
  tffi_inference_cancel(tokens[number]);
  CHECK(tffi_inference_wait(tokens[number], *tffi_queue_wakes(queue), -1, &list) == TFFI_WAIT_READY);
  driver_take(list, &seen);
  CHECK(seen.done == 1);
}

static void *execute(void *unused)
{
  struct TRITONBACKEND_Request *requests[1];
  (void)unused;
  fake.backend_requests(requests, 1);
  CHECK(TRITONBACKEND_ModelInstanceExecute(instance, requests, 1) == NULL);
  return NULL;
}

static void *wait_for_the_first(void *unused)
{
  (void)unused;
  tffi_completion *list = NULL;
  driver_seen seen = {0};
  CHECK(tffi_inference_wait(tokens[0], *tffi_queue_wakes(queue), -1, &list) == TFFI_WAIT_READY);
  driver_take(list, &seen);
  return NULL;
}

static bool lingers(function_batch *batch)
{
  pthread_mutex_lock(&function->lock);
  const bool answered = batch->state == BATCH_FINISHED;
  pthread_mutex_unlock(&function->lock);
  return !answered;
}

/* Answers a batch, and so many of the inferences in flight with it, from a number on that the library has begun with. */
static function_batch *answer(pthread_t *executor, uint32_t first, uint32_t count)
{
  tffi_batch *shown = NULL;
  CHECK(pthread_create(executor, NULL, execute, NULL) == 0);
  CHECK(tffi_function_next(function, 0, -1, &shown) == TFFI_WAIT_READY);
  function_batch *batch = (function_batch *)shown;
  tffi_tensor output = shown->inputs[0];
  output.name = "y";
  const tffi_result result = {.outputs = &output, .output_count = 1};
  bool answered = false;
  tffi_linger_before(batch);
  CHECK(tffi_batch_answer(batch, &result, &answered) == NULL && answered);
  for (uint32_t i = 0; i < count; i++) {
    let_go(first + i);
  }
  tffi_linger_begin(batch);
  return batch;
}

static void end(pthread_t executor, function_batch *batch)
{
  CHECK(!lingers(batch));
  tffi_batch_release(&batch->shown);
  pthread_join(executor, NULL);
}

/* Nothing has changed with the answers: who waits goes on waiting. */
static void not_at_all(void)
{
  pthread_t executor;
  end(executor, answer(&executor, 1, 0));
}

/* As many are in flight again as before. */
static void until_all_are_there(void)
{
  pthread_t executor;
  function_batch *batch = answer(&executor, 1, 2);
  CHECK(lingers(batch));
  hold(1);
  CHECK(lingers(batch));
  hold(2);
  end(executor, batch);
}

/* Somebody waits, so that no more will come. */
static void until_somebody_waits(void)
{
  pthread_t executor;
  pthread_t waiter;
  function_batch *batch = answer(&executor, 1, 1);
  CHECK(lingers(batch));
  CHECK(pthread_create(&waiter, NULL, wait_for_the_first, NULL) == 0);
  while (lingers(batch)) {
    usleep(100);
  }
  end(executor, batch);
  /* Where somebody waits all the time, half of them is enough. */
  batch = answer(&executor, 2, FEW);
  end(executor, batch);
  tffi_inference_cancel(tokens[0]);
  pthread_join(waiter, NULL);
}

/* Who is woken while many answers are given finds all of them. */
static void *take_what_comes(void *given)
{
  tffi_completion *list = NULL;
  CHECK(tffi_queue_wait(queue, *tffi_queue_wakes(queue), -1, &list) == TFFI_WAIT_READY);
  driver_take(list, given);
  return NULL;
}

static void woken_once(void)
{
  pthread_t executor;
  pthread_t waiter;
  driver_seen seen = {0};
  function_batch *batch = answer(&executor, 1, 1);
  CHECK(pthread_create(&waiter, NULL, take_what_comes, &seen) == 0);
  while (lingers(batch)) { /* until it sleeps */
    usleep(100);
  }
  end(executor, batch);
  tffi_wakes_hold();
  for (uint32_t i = 0; i < MANY; i++) {
    uint64_t token = 0;
    CHECK(driver_submit("i", queue, i, &token) == NULL);
  }
  tffi_wakes_let_go();
  pthread_join(waiter, NULL);
  CHECK(seen.done == MANY);
}

/* The worker has waited long enough. */
static void until_it_is_late(void)
{
  pthread_t executor;
  function_batch *batch = answer(&executor, 1, 1);
  CHECK(lingers(batch));
  tffi_linger_end(batch);
  end(executor, batch);
}

static void with_all_held(void (*scene)(void))
{
  for (uint32_t i = 0; i < IN_FLIGHT; i++) {
    hold(i);
  }
  scene();
  for (uint32_t i = 0; i < IN_FLIGHT; i++) {
    tffi_inference_cancel(tokens[i]);
  }
  tffi_completion *list = NULL;
  driver_seen seen = {0};
  while (tffi_live.inferences > 0) {
    if (tffi_queue_wait(queue, *tffi_queue_wakes(queue), 1000000, &list) == TFFI_WAIT_READY) {
      driver_take(list, &seen);
    }
  }
  /* A thread that signals after unlocking may still be about to: it would wake who sleeps in the next scene. */
  fake.stop_threads();
}

int main(int count, char **arguments)
{
  CHECK(count == 2);
  driver_load(arguments[1]);
  uint64_t token = 0;
  tffi_queue_new(&queue);
  function = driver_function(1, false, &token);
  struct TRITONBACKEND_Model *model = fake.model_new(token);
  instance = fake.instance_new(model);
  CHECK(TRITONBACKEND_ModelInitialize(model) == NULL);
  CHECK(TRITONBACKEND_ModelInstanceInitialize(instance) == NULL);
  CHECK(tffi_function_set_loaded(function) == NULL);
  with_all_held(not_at_all);
  with_all_held(until_all_are_there);
  with_all_held(until_somebody_waits);
  with_all_held(until_it_is_late);
  with_all_held(woken_once);
  tffi_function_close(function);
  CHECK(TRITONBACKEND_ModelInstanceFinalize(instance) == NULL);
  CHECK(TRITONBACKEND_ModelFinalize(model) == NULL);
  free(instance);
  free(model);
  tffi_function_release(&function);
  tffi_queue_release(&queue);
  driver_check_empty();
  fake.stop_threads();
  return 0;
}
