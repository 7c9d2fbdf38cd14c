/* SPDX-License-Identifier: Apache-2.0 */

#include "fake_traces.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake_inside.h"

typedef struct TRITONSERVER_InferenceTrace {
  uint64_t id;
  uint64_t parent_id;
  TRITONSERVER_InferenceTraceLevel level;
  TRITONSERVER_InferenceTraceActivityFn_t activity;
  TRITONSERVER_InferenceTraceTensorActivityFn_t tensor;
  TRITONSERVER_InferenceTraceReleaseFn_t release;
  void *userp;
  char context[200];
  uint32_t holders; /* as of the shared pointers of request and responses */
} trace;

static uint64_t last_id;
static int64_t traces;
static int64_t threads;
static uint32_t fail_every;
static uint32_t made;

int64_t fake_traces_alive(void)
{
  return __atomic_load_n(&traces, __ATOMIC_ACQUIRE) + __atomic_load_n(&threads, __ATOMIC_ACQUIRE);
}

void fake_trace_fail_every(uint32_t number)
{
  __atomic_store_n(&fail_every, number, __ATOMIC_RELAXED);
}

static Error *make(trace **out, const trace *from, uint64_t parent_id)
{
  const uint32_t every = __atomic_load_n(&fail_every, __ATOMIC_RELAXED);
  if (every > 0 && __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED) % every == 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no trace");
  }
  MAY_FAIL();
  *out = calloc(1, sizeof(**out));
  (*out)->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
  (*out)->parent_id = parent_id;
  (*out)->level = from->level;
  (*out)->activity = from->activity;
  (*out)->tensor = from->tensor;
  (*out)->release = from->release;
  (*out)->userp = from->userp;
  (*out)->holders = 1;
  __atomic_add_fetch(&traces, 1, __ATOMIC_RELAXED);
  return NULL;
}

Error *TRITONSERVER_InferenceTraceTensorNew(trace **out, TRITONSERVER_InferenceTraceLevel level, uint64_t parent_id,
                                            TRITONSERVER_InferenceTraceActivityFn_t activity,
                                            TRITONSERVER_InferenceTraceTensorActivityFn_t tensor,
                                            TRITONSERVER_InferenceTraceReleaseFn_t release, void *userp)
{
  const trace from = {.level = level, .activity = activity, .tensor = tensor, .release = release, .userp = userp};
  return make(out, &from, parent_id);
}

Error *TRITONSERVER_InferenceTraceSpawnChildTrace(trace *of, trace **child)
{
  return make(child, of, of->id);
}

Error *TRITONSERVER_InferenceTraceDelete(trace *old)
{
  free(old);
  __atomic_sub_fetch(&traces, 1, __ATOMIC_RELEASE);
  return failure();
}

Error *TRITONSERVER_InferenceTraceId(trace *of, uint64_t *id)
{
  MAY_FAIL();
  *id = of->id;
  return NULL;
}

Error *TRITONSERVER_InferenceTraceParentId(trace *of, uint64_t *id)
{
  MAY_FAIL();
  *id = of->parent_id;
  return NULL;
}

Error *TRITONSERVER_InferenceTraceModelName(trace *of, const char **name)
{
  (void)of;
  MAY_FAIL();
  *name = "fake";
  return NULL;
}

Error *TRITONSERVER_InferenceTraceRequestId(trace *of, const char **id)
{
  (void)of;
  MAY_FAIL();
  *id = "an id";
  return NULL;
}

Error *TRITONSERVER_InferenceTraceModelVersion(trace *of, int64_t *version)
{
  (void)of;
  MAY_FAIL();
  *version = 7;
  return NULL;
}

Error *TRITONSERVER_InferenceTraceContext(trace *of, const char **context)
{
  MAY_FAIL();
  *context = of->context; /* no lock, as Triton has none */
  return NULL;
}

Error *TRITONSERVER_InferenceTraceSetContext(trace *of, const char *context)
{
  MAY_FAIL();
  snprintf(of->context, sizeof(of->context), "%s", context);
  return NULL;
}

Error *TRITONSERVER_InferenceTraceReportActivity(trace *of, uint64_t timestamp, const char *name)
{
  MAY_FAIL();
  snprintf(of->context, sizeof(of->context), "{\"%llu\":\"%s\"}", (unsigned long long)timestamp, name);
  of->activity(of, TRITONSERVER_TRACE_CUSTOM_ACTIVITY, timestamp, of->userp);
  return NULL;
}

/* The threads that a trace was given to. */

static void drop(trace *held)
{
  if (__atomic_sub_fetch(&held->holders, 1, __ATOMIC_ACQ_REL) == 0) {
    held->release(held, held->userp);
  }
}

static void tell(trace *of, uint64_t from, uint64_t to)
{
  for (uint64_t kind = from; kind <= to; kind++) {
    of->activity(of, (TRITONSERVER_InferenceTraceActivity)kind, 1000 + kind, of->userp);
  }
}

static void tell_tensor(trace *of, TRITONSERVER_InferenceTraceActivity kind)
{
  if ((of->level & TRITONSERVER_TRACE_LEVEL_TENSORS) == 0) {
    return;
  }
  char *data = malloc(FAKE_TENSOR); /* gone when the callback returns */
  memset(data, 7, FAKE_TENSOR);
  int64_t *shape = malloc(2 * sizeof(*shape));
  shape[0] = 2;
  shape[1] = FAKE_TENSOR / 2;
  const bool gpu = of->id % 7 == 0;
  const bool empty = of->id % 7 == 1; /* it got no memory, and its size is anything */
  of->tensor(of, kind, "x", TRITONSERVER_TYPE_UINT8, empty ? NULL : data, empty ? 99 : FAKE_TENSOR, shape, 2,
             gpu ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU, 0, of->userp);
  free(shape);
  free(data);
}

static void *beside(void *userp)
{
  trace *of = userp;
  tell_tensor(of, TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT);
  tell(of, TRITONSERVER_TRACE_COMPUTE_START, TRITONSERVER_TRACE_COMPUTE_END);
  drop(of);
  __atomic_sub_fetch(&threads, 1, __ATOMIC_RELEASE);
  return NULL;
}

static void go(void *(*work)(void *), trace *of)
{
  pthread_t thread;
  __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
  if (pthread_create(&thread, NULL, work, of) != 0) {
    abort();
  }
  pthread_detach(thread);
}

/* A child, as an ensemble makes one for a step; NULL where that fails. */
static trace *spawn(const trace *of)
{
  trace *child = NULL;
  Error *error = make(&child, of, of->id);
  if (error != NULL) {
    TRITONSERVER_ErrorDelete(error);
  }
  return child;
}

static void *request(void *userp)
{
  trace *of = userp;
  tell(of, TRITONSERVER_TRACE_REQUEST_START, TRITONSERVER_TRACE_QUEUE_START);
  tell_tensor(of, TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT);
  for (int i = 0; i < FAKE_CHILDREN; i++) {
    trace *child = spawn(of);
    if (child != NULL) {
      tell(child, TRITONSERVER_TRACE_REQUEST_START, TRITONSERVER_TRACE_REQUEST_START);
      go(beside, child);
    }
  }
  trace *idle = spawn(of);
  tell(of, TRITONSERVER_TRACE_REQUEST_END, TRITONSERVER_TRACE_REQUEST_END);
  drop(of);
  if (idle != NULL) {
    usleep(300); /* most often the family is gone by now */
    idle->release(idle, idle->userp);
  }
  __atomic_sub_fetch(&threads, 1, __ATOMIC_RELEASE);
  return NULL;
}

void fake_trace_run(trace *of)
{
  of->holders = 2;
  go(request, of);
  go(beside, of);
}

void fake_trace_drop(trace *of)
{
  of->release(of, of->userp);
}

void fake_trace_settle(void)
{
  while (__atomic_load_n(&threads, __ATOMIC_ACQUIRE) > 0) {
    usleep(100);
  }
}
