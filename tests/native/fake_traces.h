/* SPDX-License-Identifier: Apache-2.0 */

/* The traces of the fake library: what Triton's threads may do with one that they were given, all at once. */

#ifndef FAKE_TRACES_H
#define FAKE_TRACES_H

#include <stdint.h>

enum { FAKE_CHILDREN = 3, FAKE_TENSOR = 64 };

struct TRITONSERVER_InferenceTrace;

/*
 * Takes the trace, as InferAsync does: tells of a request from two threads at once and of FAKE_CHILDREN children, each
 * from a thread of its own. Parent and children are released by whoever is last with them, in any order. One more
 * child does nothing, and is released when all else is over. Every seventh tensor is said to lie on a GPU.
 */
void fake_trace_run(struct TRITONSERVER_InferenceTrace *trace);
/* Lets go of one that nothing was told of, as the deletion of a request does that was refused. */
void fake_trace_drop(struct TRITONSERVER_InferenceTrace *trace);
/* Waits until the threads are through. */
void fake_trace_settle(void);
/* How many traces the library has, and how many threads. */
int64_t fake_traces_alive(void);
/* Makes one in so many traces fail to be made; 0: none. */
void fake_trace_fail_every(uint32_t number);

#endif
