/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every call of Triton's and every allocation of ours fails once, in every kind of inference and function model. Each
 * time everything is given back, the caller is told, and the next inference is as good as ever.
 */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "batch.h"
#include "driver.h"

static int64_t allocation_number;
static int64_t failing_allocation;
static int64_t blocks;

static bool fails(void)
{
  return __atomic_add_fetch(&allocation_number, 1, __ATOMIC_RELAXED) == failing_allocation;
}

static void *counted(void *memory)
{
  __atomic_add_fetch(&blocks, memory != NULL ? 1 : 0, __ATOMIC_RELAXED);
  return memory;
}

void *counted_malloc(size_t size)
{
  return fails() ? NULL : counted(malloc(size));
}

void *counted_calloc(size_t count, size_t size)
{
  return fails() ? NULL : counted(calloc(count, size));
}

void *counted_aligned_alloc(size_t alignment, size_t size)
{
  return fails() ? NULL : counted(aligned_alloc(alignment, size));
}

char *counted_strdup(const char *text)
{
  return fails() ? NULL : counted(strdup(text));
}

void counted_free(void *memory)
{
  __atomic_sub_fetch(&blocks, memory != NULL ? 1 : 0, __ATOMIC_RELAXED);
  free(memory);
}

static void discard(struct TRITONSERVER_Error *error)
{
  if (error != NULL) {
    TRITONSERVER_ErrorDelete(error);
  }
}

/* One inference to its end, whatever that is; false: something failed on the way. */
static bool infer(const char *how)
{
  tffi_queue *queue = tffi_queue_new();
  if (queue == NULL) {
    return false;
  }
  uint64_t token = 0;
  struct TRITONSERVER_Error *error = driver_submit(how, queue, 1, &token);
  driver_seen seen = {0};
  if (error != NULL) {
    CHECK(token == 0);
    discard(error);
  } else {
    while (seen.done == 0) {
      tffi_completion *list = NULL;
      CHECK(tffi_inference_wait(token, *tffi_queue_wakes(queue), -1, &list) == TFFI_WAIT_READY);
      driver_take(list, &seen);
    }
    CHECK(seen.done == 1);
  }
  tffi_queue_release(queue);
  tffi_pool_set_limit(0);
  return error == NULL && seen.errors == 0;
}

static tffi_function *function;

static void *answer(void *unused)
{
  (void)unused;
  tffi_batch *batch = NULL;
  while (tffi_function_next(function, 0, -1, &batch) == TFFI_WAIT_READY) {
    tffi_tensor output = batch->inputs[0];
    if (output.data == NULL) {
      tffi_batch_fail(batch, TRITONSERVER_ERROR_INTERNAL, "without its input");
    } else {
      output.name = "y";
      const tffi_result result = {.outputs = &output, .output_count = 1};
      discard(tffi_batch_finish(batch, &result));
    }
    tffi_batch_release(batch);
  }
  return NULL;
}

/* A function model from its making to its end, with two executions. */
static void serve(const char *unused)
{
  (void)unused;
  uint64_t token = 0;
  function = driver_function(1, &token);
  if (function == NULL) {
    return;
  }
  pthread_t worker;
  CHECK(pthread_create(&worker, NULL, answer, NULL) == 0);
  struct TRITONBACKEND_Model *model = fake.model_new(token);
  struct TRITONBACKEND_ModelInstance *instance = fake.instance_new(model);
  struct TRITONSERVER_Error *error = TRITONBACKEND_ModelInitialize(model);
  if (error == NULL) {
    error = TRITONBACKEND_ModelInstanceInitialize(instance);
    for (uint32_t i = 0; i < 2 && error == NULL; i++) {
      fake_alive before;
      fake_alive after;
      struct TRITONBACKEND_Request *requests[3];
      fake.read_alive(&before);
      fake.backend_requests(requests, 3);
      error = TRITONBACKEND_ModelInstanceExecute(instance, requests, 3);
      if (error != NULL) { /* Triton keeps the requests then */
        for (uint32_t j = 0; j < 3; j++) {
          discard(TRITONBACKEND_RequestRelease(requests[j], 1));
        }
      }
      fake.read_alive(&after);
      CHECK(after.released == before.released + 3);
      /* Without a response object there is no answer. */
      CHECK(error != NULL || after.answered >= before.answered + 2);
    }
    discard(error);
    /* Where Triton does not tell the state nothing can be given back; the next time it does. */
    while ((error = TRITONBACKEND_ModelInstanceFinalize(instance)) != NULL) {
      discard(error);
    }
    while ((error = TRITONBACKEND_ModelFinalize(model)) != NULL) {
      discard(error);
    }
  }
  discard(error);
  tffi_function_close(function);
  pthread_join(worker, NULL);
  tffi_function_release(function);
  free(instance);
  free(model);
}

static void infer_once(const char *how)
{
  (void)infer(how);
}

/* Runs `what` with the first, the second... call or allocation failing, until none is left to fail. */
static void each_failure(void (*what)(const char *how), const char *how, bool of_triton)
{
  const int64_t before = blocks;
  for (int64_t number = 1;; number++) {
    allocation_number = 0;
    failing_allocation = of_triton ? 0 : number;
    fake.fail_at(of_triton ? number : 0);
    what(how);
    const int64_t made = of_triton ? fake.calls() : allocation_number;
    failing_allocation = 0;
    fake.fail_at(0);
    driver_check_empty();
    if (blocks > before + 3) { /* what is made once and stays: a chunk of slots, a queue, a layout */
      fprintf(stderr, "'%s': %s %d: %d blocks stay\n", how, of_triton ? "call" : "allocation", (int)number,
              (int)(blocks - before));
      _exit(1);
    }
    if (strchr(how, 'x') == NULL && strchr(how, 'e') == NULL) {
      CHECK(infer(how));
    }
    if (made < number) {
      printf("%s%s: %d\n", of_triton ? "calls " : "allocations ", how, (int)(number - 1));
      return;
    }
  }
}

int main(int count, char **arguments)
{
  static const char *const kinds[] = {"", "r", "i", "ir", "d", "ids", "n", "e", "x", "s"};
  CHECK(count == 2);
  driver_load(arguments[1]);
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
    each_failure(infer_once, kinds[i], true);
    each_failure(infer_once, kinds[i], false);
  }
  each_failure(serve, "", false);
  each_failure(serve, "", true);
  fake.stop_threads();
  return 0;
}
