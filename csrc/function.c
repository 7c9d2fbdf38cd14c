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

enum {
  MESSAGE_SIZE = 512,
  MOMENT_NS = 1000000 /* that a worker waits for its next batch with the last one in its hands */
};

static struct {
  pthread_mutex_t lock;
  tffi_function *first;
  uint64_t last_token;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&registry.lock, NULL);
}

static void destroy(tffi_function *function)
{
  free(function->input_names);
  for (uint32_t i = 0; function->queues != NULL && i < function->worker_count; i++) {
    pthread_cond_destroy(&function->queues[i].work);
  }
  free(function->queues);
  free(function->input_ranks);
  free(function->name);
  pthread_mutex_destroy(&function->lock);
  free(function);
}

/* The names of the inputs in one block: pointers, and the texts behind them. NULL: no memory. */
static char **copy_names(const tffi_function_spec *spec)
{
  size_t size = ((size_t)spec->input_count + 1) * sizeof(char *);
  for (uint32_t i = 0; i < spec->input_count; i++) {
    size += strlen(spec->inputs[i].name) + 1;
  }
  char **names = malloc(size);
  if (names != NULL) {
    char *room = (char *)(names + spec->input_count + 1);
    for (uint32_t i = 0; i < spec->input_count; i++) {
      names[i] = room;
      room = stpcpy(room, spec->inputs[i].name) + 1;
    }
  }
  return names;
}

void tffi_function_new(const tffi_function_spec *spec, uint64_t *token, tffi_function **place)
{
  tffi_function *function = calloc(1, sizeof(*function));
  if (function == NULL) {
    return;
  }
  pthread_mutex_init(&function->lock, NULL);
  function->references = 1;
  function->batching = spec->batching;
  function->stacking = spec->stacking;
  function->describing = spec->describing;
  function->decoupled = spec->decoupled;
  function->max_batch_size = spec->stacking ? spec->max_batch_size : 0;
  function->lending = true;
  function->warm_up_calls = spec->warm_up_calls;
  function->input_count = spec->input_count;
  function->worker_count = spec->worker_count > 0 ? spec->worker_count : 1;
  function->name = strdup(spec->model_name);
  function->input_names = copy_names(spec);
  function->input_ranks = calloc((size_t)spec->input_count + 1, sizeof(uint32_t));
  function->queues = calloc(function->worker_count, sizeof(worker_queue));
  for (uint32_t i = 0; function->queues != NULL && i < function->worker_count; i++) {
    tffi_cond_init(&function->queues[i].work);
  }
  if (function->name == NULL || function->input_names == NULL || function->input_ranks == NULL ||
      function->queues == NULL) {
    destroy(function);
    return;
  }
  for (uint32_t i = 0; i < spec->input_count; i++) {
    function->input_ranks[i] = spec->inputs[i].dim_count;
  }
  pthread_mutex_lock(&registry.lock);
  function->token = ++registry.last_token;
  function->next = registry.first;
  registry.first = function;
  *token = function->token;
  pthread_mutex_unlock(&registry.lock);
  tffi_count(&tffi_live.functions, 1);
  *place = function;
}

static void drop_reference(tffi_function *function)
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

void tffi_function_release(tffi_function **place)
{
  tffi_function *function = *place;
  *place = NULL;
  drop_reference(function);
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

/* Under the function's lock: has every idle worker look whether it may leave. */
static void wake_workers(tffi_function *function)
{
  for (uint32_t i = 0; i < function->worker_count; i++) {
    pthread_cond_broadcast(&function->queues[i].work);
  }
}

void tffi_function_leave(tffi_function *function)
{
  pthread_mutex_lock(&function->lock);
  function->models--;
  wake_workers(function);
  pthread_mutex_unlock(&function->lock);
  drop_reference(function);
}

uint32_t tffi_function_assign_worker(tffi_function *function)
{
  pthread_mutex_lock(&function->lock);
  const uint32_t worker = function->instances++ % function->worker_count;
  pthread_mutex_unlock(&function->lock);
  return worker;
}

bool tffi_instance_hides_error(const function_instance *instance, struct TRITONSERVER_Error *error)
{
  if (!instance->is_warming_up) {
    return false;
  }
  tffi_function *function = instance->function;
  pthread_mutex_lock(&function->lock);
  const bool hides = !function->loaded; /* whatever is counted, after the load all are told */
  if (hides && !function->has_failed) {
    function->has_failed = true;
    function->first_error_code = TRITONSERVER_ErrorCode(error);
    snprintf(function->first_error, sizeof(function->first_error), "%s", TRITONSERVER_ErrorMessage(error));
  }
  pthread_mutex_unlock(&function->lock);
  return hides;
}

struct TRITONSERVER_Error *tffi_function_set_loaded(tffi_function *function)
{
  struct TRITONSERVER_Error *error = NULL;
  pthread_mutex_lock(&function->lock);
  function->loaded = true;
  if (function->has_failed) {
    error = TRITONSERVER_ErrorNew(function->first_error_code, function->first_error);
    function->has_failed = false;
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

static void queue_add(worker_queue *queue, function_batch *batch)
{
  batch->next_queued = NULL;
  if (queue->last != NULL) {
    queue->last->next_queued = batch;
  } else {
    queue->first = batch;
  }
  queue->last = batch;
  pthread_cond_signal(&queue->work);
}

static function_batch *queue_take(worker_queue *queue)
{
  function_batch *batch = queue->first;
  if (batch != NULL) {
    queue->first = batch->next_queued;
    if (queue->first == NULL) {
      queue->last = NULL;
    }
  }
  return batch;
}

/* The memory of the inputs that nobody has taken over. */
static void free_inputs(function_batch *batch)
{
  for (uint32_t i = 0; i < batch->shown.input_count; i++) {
    tffi_buffer_release(batch->shown.inputs[i].buffer);
    batch->shown.inputs[i].buffer = NULL;
  }
}

tffi_wait tffi_function_next(tffi_function *function, uint32_t worker, int64_t timeout_ns, tffi_batch **batch)
{
  const bool timed = timeout_ns >= 0;
  const struct timespec deadline = tffi_deadline(timed ? timeout_ns : 0);
  worker_queue *queue = &function->queues[worker % function->worker_count];
  tffi_wait result = TFFI_WAIT_TIMEOUT;
  bool late = false;
  *batch = NULL;
  pthread_mutex_lock(&function->lock);
  for (;;) {
    function_batch *taken = queue_take(queue);
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
      late = pthread_cond_timedwait(&queue->work, &function->lock, &deadline) == ETIMEDOUT;
    } else {
      pthread_cond_wait(&queue->work, &function->lock);
    }
  }
  pthread_mutex_unlock(&function->lock);
  return result;
}

void tffi_batch_exchange(tffi_batch **batch, const tffi_result *result, struct TRITONSERVER_Error **error)
{
  tffi_batch *shown = *batch;
  function_batch *mine = (function_batch *)shown;
  bool answered = false;
  *error = NULL;
  free_inputs(mine);
  if (result != NULL) {
    tffi_linger_before(mine);
    tffi_wakes_hold();
    *error = tffi_batch_answer(mine, result, &answered);
    if (answered) {
      tffi_linger_begin(mine);
    }
    tffi_wakes_let_go();
  }
  if (*error != NULL) {
    return;
  }
  tffi_function_next(mine->function, mine->worker, MOMENT_NS, batch);
  tffi_linger_end(mine);
  tffi_batch_release(shown);
}

void tffi_function_stop_lending(tffi_function *function)
{
  __atomic_store_n(&function->lending, false, __ATOMIC_RELAXED);
}

uint32_t tffi_function_executing(const tffi_function *function)
{
  return __atomic_load_n(&function->executing, __ATOMIC_ACQUIRE);
}

void tffi_function_close(tffi_function *function)
{
  pthread_mutex_lock(&function->lock);
  function->closing = true;
  wake_workers(function);
  pthread_mutex_unlock(&function->lock);
}

uint32_t tffi_function_abandon(tffi_function *function)
{
  uint32_t count = 0;
  pthread_mutex_lock(&function->lock);
  function->abandoned = true;
  for (uint32_t i = 0; i < function->worker_count; i++) {
    function->queues[i].first = NULL;
    function->queues[i].last = NULL;
  }
  for (function_batch *batch = function->live; batch != NULL; batch = batch->next_live) {
    /* One that is being answered is through in a moment, and its requests are not ours. */
    if (batch->state == BATCH_QUEUED || batch->state == BATCH_RUNNING) {
      batch->state = BATCH_ABANDONED;
      pthread_cond_signal(&batch->answered);
      count++;
    }
  }
  wake_workers(function);
  pthread_mutex_unlock(&function->lock);
  return count;
}

/* Under the function's lock, so that the requests stay ours to look at: only a change of the state lets them go. */
static bool is_cancelled(const function_batch *batch, uint32_t index)
{
  bool cancelled = batch->state == BATCH_ABANDONED;
  if (batch->state == BATCH_RUNNING && index < batch->shown.request_count) {
    /* It fails for the empty places of a direct sequence batch, which nobody can cancel. */
    tffi_discard(TRITONBACKEND_RequestIsCancelled(batch->requests[index], &cancelled));
  }
  return cancelled;
}

bool tffi_batch_is_cancelled(tffi_batch *shown, uint32_t index)
{
  const function_batch *batch = (const function_batch *)shown;
  pthread_mutex_lock(&batch->function->lock);
  const bool cancelled = is_cancelled(batch, index);
  pthread_mutex_unlock(&batch->function->lock);
  return cancelled;
}

uint32_t tffi_batch_cancelled(tffi_batch *shown, bool *cancelled)
{
  const function_batch *batch = (const function_batch *)shown;
  uint32_t count = 0;
  pthread_mutex_lock(&batch->function->lock);
  for (uint32_t i = 0; i < shown->request_count; i++) {
    cancelled[i] = is_cancelled(batch, i);
    count += cancelled[i] ? 1 : 0;
  }
  pthread_mutex_unlock(&batch->function->lock);
  return count;
}

bool tffi_batch_is_running(tffi_batch *shown)
{
  const function_batch *batch = (const function_batch *)shown;
  pthread_mutex_lock(&batch->function->lock);
  const bool running = batch->state == BATCH_RUNNING;
  pthread_mutex_unlock(&batch->function->lock);
  return running;
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

void tffi_batch_resume(function_batch *batch)
{
  tffi_function *function = batch->function;
  pthread_mutex_lock(&function->lock);
  batch->state = BATCH_RUNNING;
  if (function->abandoned) { /* which passed this batch over while a response was sent */
    batch->state = BATCH_ABANDONED;
    pthread_cond_signal(&batch->answered);
  }
  pthread_mutex_unlock(&function->lock);
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
  free_inputs(batch);
  pthread_cond_destroy(&batch->answered);
  free(batch->described);
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
      queue_add(&function->queues[batch->instance->worker], batch);
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
      snprintf(message, sizeof(message), "model '%.128s': the server was closed before its function answered", function->name);
      tffi_batch_answer_error(batch, TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, message));
    }
    tffi_batch_drop(batch);
    pthread_mutex_lock(&function->lock);
  }
  pthread_mutex_unlock(&function->lock);
}
