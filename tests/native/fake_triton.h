/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A library with Triton's names that does what Triton may do, on demand and at once: it plays Triton's threads for
 * tests of our C code alone. What happens to a request is told by the letters of its model's name:
 *
 *   i  on the submitting thread, before InferAsync returns; otherwise on one of the library's threads
 *   r  the release comes before the final response
 *   s  final response and release come from two threads at once
 *   d  three responses come before the final one
 *   c  one more response is being read by a thread of the library's while all the others, and the release, come
 *   n  the final flag comes without a response
 *   e  the final response is an error
 *   x  InferAsync refuses, after it has looked at the trace
 *   h  it waits until somebody cancels it, and ends with an error
 */

#ifndef FAKE_TRITON_H
#define FAKE_TRITON_H

#include <stdint.h>

enum { FAKE_THREADS = 4, FAKE_ROWS = 2, FAKE_FLOATS = 2000, FAKE_PARAMETERS = 5 };

typedef struct {
  int64_t requests, responses, errors, messages, allocators, attributes, factories, statistics;
  int64_t answered, released; /* of backend requests, over all */
  int64_t made;               /* requests, over all */
  int64_t refused;            /* response objects for them that were not given, over all */
} fake_alive;

/* What of the library's own is alive. */
void fake_read_alive(fake_alive *alive);
/* Makes the call of this number from now on, and no other, return an error; 0: none. */
void fake_fail_at(int64_t number);
/* How many calls that can fail were made since. */
int64_t fake_calls(void);
/* Gives the requests of one Execute; each has FAKE_ROWS rows. The library frees them when they are released. */
struct TRITONBACKEND_Request;
void fake_backend_requests(struct TRITONBACKEND_Request **requests, uint32_t count);
/* A model whose config has the token of a function, and an instance of it; free() takes both back. */
struct TRITONBACKEND_Model *fake_model_new(uint64_t token);
struct TRITONBACKEND_ModelInstance *fake_instance_new(struct TRITONBACKEND_Model *model);
/* Waits until the library's threads have nothing to do, and ends them. */
void fake_stop_threads(void);

#endif
