/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Python callables: the registry in which a Triton model finds its own, and the handover of batches from Execute, on
 * an instance's thread, to the workers, which are Python's threads.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"

enum { MESSAGE_SIZE = 512 };

static struct {
  pthread_mutex_t lock;
  tffi_function *first;
  uint64_t last_token;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void destroy(tffi_function *function)
{
  for (uint32_t i = 0; function->input_names != NULL && i < function->input_count; i++) {
    free(function->input_names[i]);
  }
  free(function->input_names);
  free(function->input_ranks);
  free(function->first_error);
  free(function->name);
  pthread_cond_destroy(&function->work);
  pthread_mutex_destroy(&function->lock);
  free(function);
}

tffi_function *tffi_function_new(const char *model_name, const tffi_tensor *inputs, uint32_t input_count,
                                 bool batching, uint64_t warm_up_calls, uint64_t *token)
{
  tffi_function *function = calloc(1, sizeof(*function));
  if (function == NULL) {
    return NULL;
  }
  pthread_mutex_init(&function->lock, NULL);
  tffi_cond_init(&function->work);
  function->references = 1;
  function->batching = batching;
  function->warm_up_calls = warm_up_calls;
  function->input_count = input_count;
  function->name = strdup(model_name);
  function->input_names = calloc((size_t)input_count + 1, sizeof(char *));
  function->input_ranks = calloc((size_t)input_count + 1, sizeof(uint32_t));
  bool complete = function->name != NULL && function->input_names != NULL && function->input_ranks != NULL;
  for (uint32_t i = 0; complete && i < input_count; i++) {
    function->input_names[i] = strdup(inputs[i].name);
    function->input_ranks[i] = inputs[i].dim_count;
    complete = function->input_names[i] != NULL;
  }
  if (!complete) {
    destroy(function);
    return NULL;
  }
  pthread_mutex_lock(&registry.lock);
  function->token = ++registry.last_token;
  function->next = registry.first;
  registry.first = function;
  *token = function->token;
  pthread_mutex_unlock(&registry.lock);
  tffi_count(&tffi_live.functions, 1);
  return function;
}

void tffi_function_release(tffi_function *function)
{
  if (function == NULL) {
    return;
  }
  pthread_mutex_lock(&registry.lock);
  const bool last = --function->references == 0;
  for (tffi_function **at = &registry.first; last && *at != NULL; at = &(*at)->next) {
    if (*at == function) {
      *at = function->next;
      break;
    }
  }
  pthread_mutex_unlock(&registry.lock);
  if (last) {
    destroy(function);
    tffi_count(&tffi_live.functions, -1);
  }
}

/* The function of a token, with one more reference and counted as Triton's; NULL where none is open to new models. */
tffi_function *tffi_function_enter(uint64_t token)
{
  pthread_mutex_lock(&registry.lock);
  tffi_function *function = registry.first;
  while (function != NULL && function->token != token) {
    function = function->next;
  }
  if (function != NULL) {
    pthread_mutex_lock(&function->lock);
    if (function->closing || function->abandoned) {
      pthread_mutex_unlock(&function->lock);
      function = NULL;
    } else {
      function->models++;
      function->references++;
      pthread_mutex_unlock(&function->lock);
    }
  }
  pthread_mutex_unlock(&registry.lock);
  return function;
}

void tffi_function_leave(tffi_function *function)
{
  pthread_mutex_lock(&function->lock);
  function->models--;
  pthread_cond_broadcast(&function->work);
  pthread_mutex_unlock(&function->lock);
  tffi_function_release(function);
}

bool tffi_instance_hides_error(const function_instance *instance, struct TRITONSERVER_Error *error)
{
  if (!instance->is_warming_up) {
    return false;
  }
  tffi_function *function = instance->function;
  pthread_mutex_lock(&function->lock);
  const bool hides = !function->loaded; /* whatever is counted, after the load all are told */
  if (hides && function->first_error == NULL) {
    function->first_error = strdup(TRITONSERVER_ErrorMessage(error));
    function->first_error_code = (int32_t)TRITONSERVER_ErrorCode(error);
  }
  pthread_mutex_unlock(&function->lock);
  return hides;
}

struct TRITONSERVER_Error *tffi_function_set_loaded(tffi_function *function)
{
  struct TRITONSERVER_Error *error = NULL;
  pthread_mutex_lock(&function->lock);
  function->loaded = true;
  if (function->first_error != NULL) {
    error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)function->first_error_code, function->first_error);
    free(function->first_error);
    function->first_error = NULL;
  }
  pthread_mutex_unlock(&function->lock);
  return error;
}

/* All under the function's lock: the list of batches that Execute waits for, and the queue to the workers. */

static void live_add(tffi_function *function, function_batch *batch)
{
  batch->previous_live = NULL;
  batch->next_live = function->live;
  if (function->live != NULL) {
    function->live->previous_live = batch;
  }
  function->live = batch;
}

static void live_remove(tffi_function *function, function_batch *batch)
{
  if (batch->previous_live != NULL) {
    batch->previous_live->next_live = batch->next_live;
  } else {
    function->live = batch->next_live;
  }
  if (batch->next_live != NULL) {
    batch->next_live->previous_live = batch->previous_live;
  }
}

static void queue_add(tffi_function *function, function_batch *batch)
{
  batch->next_queued = NULL;
  if (function->last_queued != NULL) {
    function->last_queued->next_queued = batch;
  } else {
    function->first_queued = batch;
  }
  function->last_queued = batch;
  pthread_cond_signal(&function->work);
}

static function_batch *queue_take(tffi_function *function)
{
  function_batch *batch = function->first_queued;
  if (batch != NULL) {
    function->first_queued = batch->next_queued;
    if (function->first_queued == NULL) {
      function->last_queued = NULL;
    }
  }
  return batch;
}

tffi_wait tffi_function_next(tffi_function *function, int64_t timeout_ns, tffi_batch **batch)
{
  const bool timed = timeout_ns >= 0;
  const struct timespec deadline = tffi_deadline(timed ? timeout_ns : 0);
  tffi_wait result = TFFI_WAIT_TIMEOUT;
  bool late = false;
  *batch = NULL;
  pthread_mutex_lock(&function->lock);
  for (;;) {
    function_batch *taken = queue_take(function);
    if (taken != NULL) {
      taken->state = BATCH_RUNNING;
      taken->references = 2;
      taken->compute_start_ns = tffi_now_ns();
      *batch = &taken->shown;
      result = TFFI_WAIT_READY;
      break;
    }
    if (function->abandoned || (function->closing && function->models == 0)) {
      result = TFFI_WAIT_GONE;
      break;
    }
    if (late) {
      break;
    }
    if (timed) {
      late = pthread_cond_timedwait(&function->work, &function->lock, &deadline) == ETIMEDOUT;
    } else {
      pthread_cond_wait(&function->work, &function->lock);
    }
  }
  pthread_mutex_unlock(&function->lock);
  return result;
}

void tffi_function_close(tffi_function *function)
{
  pthread_mutex_lock(&function->lock);
  function->closing = true;
  pthread_cond_broadcast(&function->work);
  pthread_mutex_unlock(&function->lock);
}

uint32_t tffi_function_abandon(tffi_function *function)
{
  uint32_t count = 0;
  pthread_mutex_lock(&function->lock);
  function->abandoned = true;
  function->first_queued = NULL;
  function->last_queued = NULL;
  for (function_batch *batch = function->live; batch != NULL; batch = batch->next_live) {
    /* One that is being answered is through in a moment, and its requests are not ours. */
    if (batch->state == BATCH_QUEUED || batch->state == BATCH_RUNNING) {
      batch->state = BATCH_ABANDONED;
      pthread_cond_signal(&batch->answered);
      count++;
    }
  }
  pthread_cond_broadcast(&function->work);
  pthread_mutex_unlock(&function->lock);
  return count;
}

bool tffi_batch_claim(function_batch *batch)
{
  pthread_mutex_lock(&batch->function->lock);
  const bool ours = batch->state == BATCH_RUNNING;
  if (ours) {
    batch->state = BATCH_ANSWERING;
  }
  pthread_mutex_unlock(&batch->function->lock);
  return ours;
}

void tffi_batch_settle(function_batch *batch)
{
  pthread_mutex_lock(&batch->function->lock);
  batch->state = BATCH_FINISHED;
  pthread_cond_signal(&batch->answered);
  pthread_mutex_unlock(&batch->function->lock);
}

void tffi_batch_drop(function_batch *batch)
{
  if (__atomic_sub_fetch(&batch->references, 1, __ATOMIC_ACQ_REL) != 0) {
    return;
  }
  for (uint32_t i = 0; i < batch->shown.input_count; i++) {
    tffi_buffer_release(batch->shown.inputs[i].buffer);
  }
  pthread_cond_destroy(&batch->answered);
  free(batch);
  tffi_count(&tffi_live.batches, -1);
}

void tffi_batches_run(tffi_function *function, function_batch *first)
{
  pthread_mutex_lock(&function->lock);
  for (function_batch *batch = first; batch != NULL; batch = batch->next_of_call) {
    live_add(function, batch);
    if (function->abandoned) {
      batch->state = BATCH_ABANDONED;
    } else {
      queue_add(function, batch);
    }
  }
  while (first != NULL) {
    function_batch *batch = first;
    first = batch->next_of_call;
    while (batch->state != BATCH_FINISHED && batch->state != BATCH_ABANDONED) {
      pthread_cond_wait(&batch->answered, &function->lock);
    }
    live_remove(function, batch);
    const bool abandoned = batch->state == BATCH_ABANDONED;
    pthread_mutex_unlock(&function->lock);
    if (abandoned) {
      char message[MESSAGE_SIZE];
      snprintf(message, sizeof(message), "model '%.128s': its function was given up before it answered", function->name);
      tffi_batch_answer_error(batch, TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, message));
    }
    tffi_batch_drop(batch);
    pthread_mutex_lock(&function->lock);
  }
  pthread_mutex_unlock(&function->lock);
}
