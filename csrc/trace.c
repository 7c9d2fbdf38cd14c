/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Traces: Triton's callbacks fill them, Python reads them when they are over.
 *
 * Triton gives the children that an ensemble makes of a trace the same callbacks and the same userp, so what belongs
 * together is a family: one lock, one bound on what is kept, and a member for each trace. A member is known from its
 * making or from its first activity. What Python may read of it is not written any more once it is over.
 *
 * The memory of a family is reused but never given back: an ensemble that fails may drop a child that did nothing
 * after all else is over, and that child's release must still find a lock and learn that nobody is interested.
 */

#include <stdlib.h>
#include <string.h>

#include "trace.h"

static struct {
  pthread_mutex_t lock;
  trace_family *families;
} idle = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void after_fork_in_child(void)
{
  /* The lock of any of them may be held by a thread that is not there. */
  idle.families = NULL;
}

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&idle.lock, after_fork_in_child);
}

trace_family *trace_family_take(void)
{
  pthread_mutex_lock(&idle.lock);
  trace_family *taken = idle.families;
  if (taken != NULL) {
    idle.families = taken->next_free;
  }
  pthread_mutex_unlock(&idle.lock);
  if (taken == NULL) {
    taken = calloc(1, sizeof(*taken));
    if (taken == NULL) {
      return NULL;
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&taken->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    tffi_cond_init(&taken->changed);
  }
  taken->forks = tffi_forks;
  return taken;
}

static void free_member(tffi_trace *member)
{
  for (tffi_activity *activity = member->info.activities; activity != NULL;) {
    tffi_activity *next = activity->next;
    tffi_buffer_release(activity->tensor.buffer);
    free(activity);
    activity = next;
  }
  free((void *)(uintptr_t)member->info.model_name);
  free((void *)(uintptr_t)member->info.request_id);
  free((void *)(uintptr_t)member->info.context);
  free(member);
  tffi_count(&tffi_live.traces, -1);
}

void trace_family_unlock_and_release(trace_family *of)
{
  if (--of->references > 0) {
    pthread_mutex_unlock(&of->lock);
    return;
  }
  for (uint32_t i = 0; i < of->member_count; i++) {
    free_member(of->members[i]);
  }
  free(of->members);
  of->members = NULL;
  of->member_count = of->member_capacity = 0;
  pthread_mutex_unlock(&of->lock);
  pthread_mutex_lock(&idle.lock);
  of->next_free = idle.families;
  idle.families = of;
  pthread_mutex_unlock(&idle.lock);
}

/* Under the family's lock: where in `members` the id is, or would be. */
static uint32_t position_of(const trace_family *in, uint64_t id)
{
  uint32_t low = 0;
  uint32_t high = in->member_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (in->members[middle]->info.id < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static tffi_trace *find(const trace_family *in, uint64_t id)
{
  const uint32_t at = position_of(in, id);
  return at < in->member_count && in->members[at]->info.id == id ? in->members[at] : NULL;
}

/* By its address, which is its own until the member is over: asking it for its id might fail. The latest are asked for most. */
static tffi_trace *find_native(const trace_family *in, const struct TRITONSERVER_InferenceTrace *native)
{
  for (uint32_t at = in->member_count; at-- > 0;) {
    if (in->members[at]->native == native) {
      return in->members[at];
    }
  }
  return NULL;
}

tffi_trace *tffi_trace_add(trace_family *to, struct TRITONSERVER_InferenceTrace *native, trace_stage at)
{
  if (to->member_count == to->member_capacity) {
    const uint32_t capacity = to->member_capacity == 0 ? 4 : to->member_capacity * 2;
    tffi_trace **members = realloc(to->members, capacity * sizeof(*members));
    if (members == NULL) {
      return NULL;
    }
    to->members = members;
    to->member_capacity = capacity;
  }
  uint64_t id = 0;
  uint64_t parent_id = 0;
  struct TRITONSERVER_Error *error = TRITONSERVER_InferenceTraceId(native, &id);
  if (error == NULL) {
    error = TRITONSERVER_InferenceTraceParentId(native, &parent_id);
  }
  tffi_trace *member = error != NULL ? NULL : calloc(1, sizeof(*member));
  if (member == NULL) {
    tffi_discard(error);
    return NULL;
  }
  member->info.id = id;
  member->info.parent_id = parent_id;
  member->family = to;
  member->native = native;
  member->stage = at;
  member->parent = find(to, member->info.parent_id);
  for (tffi_trace *above = member; above != NULL; above = above->parent) {
    above->alive += 1;
  }
  const uint32_t position = position_of(to, member->info.id);
  memmove(&to->members[position + 1], &to->members[position], (to->member_count - position) * sizeof(*to->members));
  to->members[position] = member;
  to->member_count += 1;
  to->references += 1;
  tffi_count(&tffi_live.traces, 1);
  return member;
}

/*
 * Under the family's lock: a text of Triton's for a member to keep, which free_member frees. (GCC's analyzer, which
 * forgets what a member points to, takes that for a leak.)
 */
static const char *keep_text(trace_family *in, const char *text)
{
  const char *kept = text == NULL ? NULL : strdup(text);
  if (kept == NULL && text != NULL) {
    in->dropped += 1;
  }
  return kept;
}

void tffi_trace_end(tffi_trace *member, struct TRITONSERVER_InferenceTrace *native)
{
  tffi_trace_info *info = &member->info;
  const char *context = NULL;
  const char *model_name = NULL;
  const char *request_id = NULL;
  tffi_discard(TRITONSERVER_InferenceTraceContext(native, &context));
  info->context = keep_text(member->family, context);
  if (member->stage == TRACE_GIVEN) {
    tffi_discard(TRITONSERVER_InferenceTraceModelName(native, &model_name));
    tffi_discard(TRITONSERVER_InferenceTraceRequestId(native, &request_id));
    tffi_discard(TRITONSERVER_InferenceTraceModelVersion(native, &info->model_version));
    info->model_name = keep_text(member->family, model_name);
    info->request_id = keep_text(member->family, request_id);
  }
  tffi_discard(TRITONSERVER_InferenceTraceDelete(native));
  member->native = NULL;
  member->stage = TRACE_OVER;
  for (tffi_trace *above = member; above != NULL; above = above->parent) {
    above->alive -= 1;
  }
  pthread_cond_broadcast(&member->family->changed);
}

/* Under the family's lock: appends an activity with room for `extra` bytes behind it; NULL: it was dropped. */
static tffi_activity *append(tffi_trace *to, TRITONSERVER_InferenceTraceActivity kind, uint64_t timestamp_ns,
                             size_t extra)
{
  trace_family *in = to->family;
  tffi_activity *activity = in->activities_left == 0 ? NULL : calloc(1, sizeof(*activity) + extra);
  if (activity == NULL) {
    in->dropped += 1;
    return NULL;
  }
  in->activities_left -= 1;
  activity->kind = kind;
  activity->timestamp_ns = timestamp_ns;
  if (to->last == NULL) {
    to->info.activities = activity;
  } else {
    to->last->next = activity;
  }
  to->last = activity;
  return activity;
}

void tffi_trace_record(tffi_trace *to, TRITONSERVER_InferenceTraceActivity kind, uint64_t timestamp_ns,
                       const char *name)
{
  if ((to->family->level & TRITONSERVER_TRACE_LEVEL_TIMESTAMPS) == 0) {
    return;
  }
  const size_t size = name == NULL ? 0 : strlen(name) + 1;
  tffi_activity *activity = append(to, kind, timestamp_ns, size);
  if (activity != NULL && name != NULL) {
    activity->name = memcpy(activity + 1, name, size);
  }
}

/* Under the family's lock: the member of a trace that Triton speaks of. NULL: nobody is interested, or no memory. */
static tffi_trace *member_of(trace_family *in, struct TRITONSERVER_InferenceTrace *trace)
{
  if (in->references == 0) {
    return NULL;
  }
  tffi_trace *member = find_native(in, trace);
  if (member == NULL) {
    member = tffi_trace_add(in, trace, TRACE_GIVEN);
    if (member == NULL) {
      in->dropped += 1;
    }
  }
  return member;
}

/*
 * Thread: any of Triton's, the submitting one too; and the one in tffi_trace_report, which has the lock already.
 * Must not: wait for anything but the family's short lock, touch Python, keep the trace past its release.
 * Takes and gives: nothing; it writes down what it is told.
 */
void tffi_trace_activity_fn(struct TRITONSERVER_InferenceTrace *trace, TRITONSERVER_InferenceTraceActivity activity,
                            uint64_t timestamp_ns, void *userp)
{
  trace_family *in = userp;
  pthread_mutex_lock(&in->lock);
  tffi_trace *member = member_of(in, trace);
  if (member != NULL) {
    tffi_trace_record(member, activity, timestamp_ns, in->reporting);
  }
  pthread_mutex_unlock(&in->lock);
}

/*
 * Thread: any of Triton's, several for one trace.
 * Must not: wait for anything but the family's short lock, touch Python, keep `base`, which is valid in here alone.
 * Takes and gives: nothing; it copies the tensor, if it is in CPU memory and the family's bound allows it.
 */
void tffi_trace_tensor_activity_fn(struct TRITONSERVER_InferenceTrace *trace,
                                   TRITONSERVER_InferenceTraceActivity activity, const char *name,
                                   TRITONSERVER_DataType datatype, const void *base, size_t byte_size,
                                   const int64_t *shape, uint64_t dim_count, TRITONSERVER_MemoryType memory_type,
                                   int64_t memory_type_id, void *userp)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  trace_family *in = userp;
  if (base == NULL) {
    /* An output that never got memory: of that Triton says any size. */
    byte_size = 0;
  }
  pthread_mutex_lock(&in->lock);
  tffi_trace *member = member_of(in, trace);
  if (member == NULL || (in->level & TRITONSERVER_TRACE_LEVEL_TENSORS) == 0) {
    pthread_mutex_unlock(&in->lock);
    return;
  }
  const size_t shape_size = (size_t)dim_count * sizeof(int64_t);
  const size_t name_size = strlen(name) + 1;
  const uint64_t timestamp_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
  tffi_activity *made = append(member, activity, timestamp_ns, shape_size + name_size);
  if (made != NULL) {
    int64_t *dims = (int64_t *)(void *)(made + 1);
    if (dim_count > 0) {
      /* Of a scalar Triton gives the address of nothing. */
      memcpy(dims, shape, shape_size);
    }
    tffi_tensor *tensor = &made->tensor;
    tensor->shape = dims;
    tensor->dim_count = (uint32_t)dim_count;
    tensor->name = memcpy((char *)dims + shape_size, name, name_size);
    tensor->datatype = datatype;
    tensor->byte_size = byte_size;
    tensor->memory_type = memory_type;
    tensor->memory_type_id = memory_type_id;
    if (memory_type != TRITONSERVER_MEMORY_GPU && byte_size <= in->bytes_left) {
      tensor->buffer = tffi_buffer_new(byte_size);
    }
    if (tensor->buffer != NULL) {
      in->bytes_left -= byte_size;
      tensor->data = tffi_buffer_data(tensor->buffer);
      if (byte_size > 0) {
        memcpy(tensor->data, base, byte_size);
      }
    }
  }
  pthread_mutex_unlock(&in->lock);
}

/*
 * Thread: whichever lets go last of a trace's request and responses: any of Triton's, or the submitting one.
 * Must not: wait for anything but the family's short lock, touch Python.
 * Takes and gives: takes the trace back, copies what it says of itself, and deletes it.
 */
void tffi_trace_release_fn(struct TRITONSERVER_InferenceTrace *trace, void *userp)
{
  trace_family *in = userp;
  pthread_mutex_lock(&in->lock);
  tffi_trace *member = find_native(in, trace);
  if (member == NULL) {
    /* A child that did nothing. */
    pthread_mutex_unlock(&in->lock);
    tffi_discard(TRITONSERVER_InferenceTraceDelete(trace));
    return;
  }
  tffi_trace_end(member, trace);
  trace_family_unlock_and_release(in);
}
