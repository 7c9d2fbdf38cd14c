/* SPDX-License-Identifier: Apache-2.0 */

/* Traces as Python handles them: made, given to an inference by inference.c, waited for, read, let go. */

#include <errno.h>

#include "trace.h"

static struct TRITONSERVER_Error *no_memory(void)
{
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for one more trace");
}

/* Whether it was made before a fork: its lock may be held by a thread that is not there. */
static bool is_parents(const tffi_trace *trace)
{
  return trace->family->forks != tffi_forks;
}

static struct TRITONSERVER_Error *not_ours(void)
{
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the trace belongs to the parent of this process");
}

struct TRITONSERVER_Error *tffi_trace_new(uint32_t level, uint64_t parent_id, uint64_t max_activities,
                                          size_t max_bytes, tffi_trace **trace)
{
  *trace = NULL;
  trace_family *in = trace_family_take();
  if (in == NULL) {
    return no_memory();
  }
  struct TRITONSERVER_InferenceTrace *native = NULL;
  /* Never the constructor without tensor callback: a trace of its with level TENSORS crashes. */
  struct TRITONSERVER_Error *error = TRITONSERVER_InferenceTraceTensorNew(
      &native, (TRITONSERVER_InferenceTraceLevel)(level | TRITONSERVER_TRACE_LEVEL_TIMESTAMPS), parent_id,
      tffi_trace_activity_fn, tffi_trace_tensor_activity_fn, tffi_trace_release_fn, in);
  pthread_mutex_lock(&in->lock);
  in->references = 1; /* Python's */
  in->level = level;
  in->activities_left = max_activities;
  in->bytes_left = max_bytes;
  in->dropped = 0;
  in->reporting = NULL;
  if (error == NULL) {
    *trace = tffi_trace_add(in, native, TRACE_MADE);
    if (*trace == NULL) {
      tffi_discard(TRITONSERVER_InferenceTraceDelete(native));
      error = no_memory();
    }
  }
  if (error == NULL) {
    pthread_mutex_unlock(&in->lock);
  } else {
    trace_family_unlock_and_release(in);
  }
  return error;
}

struct TRITONSERVER_Error *tffi_trace_spawn(tffi_trace *parent, tffi_trace **child)
{
  *child = NULL;
  if (is_parents(parent)) {
    return not_ours();
  }
  trace_family *in = parent->family;
  struct TRITONSERVER_Error *error = NULL;
  struct TRITONSERVER_InferenceTrace *native = NULL;
  pthread_mutex_lock(&in->lock);
  if (parent->native == NULL) {
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the trace is over and has no more children");
  } else {
    error = TRITONSERVER_InferenceTraceSpawnChildTrace(parent->native, &native);
  }
  if (error == NULL) {
    *child = tffi_trace_add(in, native, TRACE_MADE);
    if (*child == NULL) {
      tffi_discard(TRITONSERVER_InferenceTraceDelete(native));
      error = no_memory();
    } else {
      in->references += 1; /* Python's */
    }
  }
  pthread_mutex_unlock(&in->lock);
  return error;
}

void tffi_trace_close(tffi_trace *trace)
{
  if (is_parents(trace)) {
    return;
  }
  trace_family *in = trace->family;
  pthread_mutex_lock(&in->lock);
  if (trace->stage == TRACE_MADE) {
    tffi_trace_end(trace, trace->native);
    in->references -= 1; /* never the last: the caller has one */
  }
  pthread_mutex_unlock(&in->lock);
}

void tffi_trace_release(tffi_trace **place)
{
  tffi_trace *trace = *place;
  if (trace == NULL || is_parents(trace)) {
    return;
  }
  tffi_trace_close(trace);
  pthread_mutex_lock(&trace->family->lock);
  trace_family_unlock_and_release(trace->family);
}

struct TRITONSERVER_Error *tffi_trace_set_context(tffi_trace *trace, const char *context)
{
  if (is_parents(trace)) {
    return not_ours();
  }
  struct TRITONSERVER_Error *error = NULL;
  pthread_mutex_lock(&trace->family->lock);
  if (trace->stage == TRACE_MADE) {
    error = TRITONSERVER_InferenceTraceSetContext(trace->native, context);
  } else {
    /* Triton has no lock over it. */
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the trace has been given to an inference");
  }
  pthread_mutex_unlock(&trace->family->lock);
  return error;
}

struct TRITONSERVER_Error *tffi_trace_report(tffi_trace *trace, uint64_t timestamp_ns, const char *name,
                                             bool *reported)
{
  *reported = false;
  if (is_parents(trace)) {
    return not_ours();
  }
  trace_family *in = trace->family;
  struct TRITONSERVER_Error *error = NULL;
  pthread_mutex_lock(&in->lock);
  *reported = trace->stage != TRACE_OVER;
  if (trace->stage == TRACE_MADE) {
    in->reporting = name;
    error = TRITONSERVER_InferenceTraceReportActivity(trace->native, timestamp_ns, name);
    in->reporting = NULL;
  } else if (trace->stage == TRACE_GIVEN) {
    /* Triton's function writes into the context, which the model may be reading, without a lock. */
    tffi_trace_record(trace, TRITONSERVER_TRACE_CUSTOM_ACTIVITY, timestamp_ns, name);
  }
  pthread_mutex_unlock(&in->lock);
  return error;
}

tffi_trace_state tffi_trace_wait(tffi_trace *trace, int64_t timeout_ns)
{
  if (is_parents(trace)) {
    return TFFI_TRACE_PARENTS;
  }
  trace_family *in = trace->family;
  const struct timespec at = tffi_deadline(timeout_ns);
  int result = 0;
  pthread_mutex_lock(&in->lock);
  while (trace->stage != TRACE_MADE && trace->alive > 0 && timeout_ns > 0 && result != ETIMEDOUT) {
    result = pthread_cond_timedwait(&in->changed, &in->lock, &at);
  }
  tffi_trace_state state = TFFI_TRACE_ALIVE;
  if (trace->stage == TRACE_MADE) {
    state = TFFI_TRACE_UNUSED;
  } else if (trace->alive == 0) {
    state = TFFI_TRACE_OVER;
  }
  pthread_mutex_unlock(&in->lock);
  return state;
}

const tffi_trace_info *tffi_trace_member(tffi_trace *trace, uint32_t index)
{
  if (is_parents(trace)) {
    return NULL;
  }
  const tffi_trace_info *info = NULL;
  pthread_mutex_lock(&trace->family->lock);
  if (index < trace->family->member_count) {
    info = &trace->family->members[index]->info;
  }
  pthread_mutex_unlock(&trace->family->lock);
  return info;
}

uint64_t tffi_trace_id(const tffi_trace *trace)
{
  return trace->info.id;
}

uint64_t tffi_trace_dropped(tffi_trace *trace)
{
  if (is_parents(trace)) {
    return 0;
  }
  pthread_mutex_lock(&trace->family->lock);
  const uint64_t dropped = trace->family->dropped;
  pthread_mutex_unlock(&trace->family->lock);
  return dropped;
}

struct TRITONSERVER_Error *tffi_trace_give(tffi_trace *trace, struct TRITONSERVER_InferenceTrace **native)
{
  *native = NULL;
  if (is_parents(trace)) {
    return not_ours();
  }
  struct TRITONSERVER_Error *error = NULL;
  pthread_mutex_lock(&trace->family->lock);
  if (trace->stage == TRACE_MADE) {
    trace->stage = TRACE_GIVEN;
    *native = trace->native;
  } else {
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG,
                                  "the trace has been used before; each inference takes one of its own");
  }
  pthread_mutex_unlock(&trace->family->lock);
  return error;
}

void tffi_trace_refused(tffi_trace *trace)
{
  pthread_mutex_lock(&trace->family->lock);
  if (trace->stage == TRACE_GIVEN) {
    trace->stage = TRACE_MADE;
  }
  pthread_mutex_unlock(&trace->family->lock);
}
