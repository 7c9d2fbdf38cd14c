/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The part of tritonffi.h about traces (trace.c, trace_handle.c): what Triton tells of an inference as it goes, points
 * in time and tensors. Source of the cdef too; only tritonffi.h includes it.
 */

#ifndef TRITONFFI_TRITONFFI_TRACE_H
#define TRITONFFI_TRITONFFI_TRACE_H

/* One thing that was told. Which part counts: `name` of custom activities, `tensor` of tensor activities. */
typedef struct tffi_activity {
  struct tffi_activity *next;
  const char *name;      /* NULL: reported by a model, and written in the trace's context under its time */
  uint64_t timestamp_ns; /* CLOCK_MONOTONIC */
  tffi_tensor tensor;    /* the reader may take the buffer over; none: on a GPU, or too much */
  TRITONSERVER_InferenceTraceActivity kind;
} tffi_activity;

/* What a trace says of itself; to be read when it is over. Everything belongs to the family. */
typedef struct {
  uint64_t id;
  uint64_t parent_id;     /* 0: none */
  const char *model_name; /* these four are as of the release; NULL: it was never given to an inference */
  const char *request_id;
  const char *context;
  int64_t model_version;
  tffi_activity *activities; /* in the order in which they were told */
} tffi_trace_info;

typedef enum {
  TFFI_TRACE_UNUSED = 0, /* not given to an inference */
  TFFI_TRACE_ALIVE = 1,  /* Triton has it, or one of its children */
  TFFI_TRACE_OVER = 2,
  TFFI_TRACE_PARENTS = 3 /* made before the process was forked: all of the following do nothing, or fail */
} tffi_trace_state;

/*
 * Makes a trace that records TRITONSERVER_TRACE_LEVEL_ bits, TIMESTAMPS and TENSORS. Of all in the family together it
 * keeps at most `max_activities` and `max_bytes` of tensors; what is beyond is counted, and without data.
 */
struct TRITONSERVER_Error *tffi_trace_new(uint32_t level, uint64_t parent_id, uint64_t max_activities,
                                          size_t max_bytes, tffi_trace **trace);
/* Makes a child, for an inference of its own. An error where the parent is over. */
struct TRITONSERVER_Error *tffi_trace_spawn(tffi_trace *parent, tffi_trace **child);
/* A trace that no inference has taken is over now; without effect on others. */
void tffi_trace_close(tffi_trace *trace);
/* Python lets go of what stands there, if anything does; one that no inference has taken is closed. */
void tffi_trace_release(tffi_trace **trace);

/* JSON text that goes with the trace and that models can read; only before it is given to an inference. */
struct TRITONSERVER_Error *tffi_trace_set_context(tffi_trace *trace, const char *context);
/* Adds an activity of the caller's own. *reported: false where the trace is over. */
struct TRITONSERVER_Error *tffi_trace_report(tffi_trace *trace, uint64_t timestamp_ns, const char *name,
                                             bool *reported);

/* Waits until the trace and all below it are over, or the time is up; 0 only looks. */
tffi_trace_state tffi_trace_wait(tffi_trace *trace, int64_t timeout_ns);
/* The family's members by index, in the order of their ids; NULL behind the last. Read those that are over. */
const tffi_trace_info *tffi_trace_member(tffi_trace *trace, uint32_t index);
uint64_t tffi_trace_id(const tffi_trace *trace);
/* How many activities and children of the family were not kept. */
uint64_t tffi_trace_dropped(tffi_trace *trace);

#endif
