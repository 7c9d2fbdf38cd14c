/* SPDX-License-Identifier: Apache-2.0 */

/* The trace as the two files that work on it see it: trace.c for Triton's threads, trace_handle.c for Python's. */

#ifndef TRITONFFI_TRACE_H
#define TRITONFFI_TRACE_H

#include "internal.h"

typedef enum {
  TRACE_MADE,  /* ours: not given to an inference yet */
  TRACE_GIVEN, /* Triton's until the release callback */
  TRACE_OVER
} trace_stage;

typedef struct trace_family trace_family;

struct tffi_trace {
  tffi_trace_info info; /* not written once the stage is TRACE_OVER */
  trace_family *family;
  tffi_trace *parent;                         /* NULL: none in this family */
  struct TRITONSERVER_InferenceTrace *native; /* NULL once over */
  tffi_activity *last;
  uint32_t alive; /* of itself and all below it, how many are not over */
  trace_stage stage;
};

struct trace_family {
  /* Over everything here and in the members. Recursive: Triton calls activity_fn inside our own report. */
  pthread_mutex_t lock;
  pthread_cond_t changed; /* a member is over */
  tffi_trace **members;   /* by id */
  uint32_t member_count;
  uint32_t member_capacity;
  uint32_t references; /* members that are not over, and members that Python holds; 0: not in use */
  uint32_t level;      /* what is recorded; Triton is always asked for timestamps, which tell that a child exists */
  uint64_t activities_left;
  size_t bytes_left;
  uint64_t dropped;
  const char *reporting; /* name of the activity that tffi_trace_report is at */
  uint32_t forks;        /* as the process's when it was taken; in a forked child nobody touches it */
  trace_family *next_free;
};

/* A family without members that nobody refers to; NULL where memory is out. */
trace_family *trace_family_take(void);
/* Under the family's lock, which it unlocks. The last reference frees the members and makes the family idle. */
void trace_family_unlock_and_release(trace_family *of);

/*
 * Under the family's lock: makes a trace of Triton's a member, with a reference until it is over. NULL: no memory, or
 * it does not tell its ids.
 */
tffi_trace *tffi_trace_add(trace_family *to, struct TRITONSERVER_InferenceTrace *native, trace_stage at);
/* Under the family's lock: writes down a point in time; `name` is copied, and NULL where there is none. */
void tffi_trace_record(tffi_trace *to, TRITONSERVER_InferenceTraceActivity kind, uint64_t timestamp_ns,
                       const char *name);
/* Under the family's lock: keeps what the trace says of itself and deletes it. The caller drops a reference. */
void tffi_trace_end(tffi_trace *member, struct TRITONSERVER_InferenceTrace *native);

/* Triton's callbacks; userp is the family. */
void tffi_trace_activity_fn(struct TRITONSERVER_InferenceTrace *trace, TRITONSERVER_InferenceTraceActivity activity,
                            uint64_t timestamp_ns, void *userp);
void tffi_trace_tensor_activity_fn(struct TRITONSERVER_InferenceTrace *trace,
                                   TRITONSERVER_InferenceTraceActivity activity, const char *name,
                                   TRITONSERVER_DataType datatype, const void *base, size_t byte_size,
                                   const int64_t *shape, uint64_t dim_count, TRITONSERVER_MemoryType memory_type,
                                   int64_t memory_type_id, void *userp);
void tffi_trace_release_fn(struct TRITONSERVER_InferenceTrace *trace, void *userp);

#endif
