/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A Triton backend that echoes INPUT0 as OUTPUT0 and times what its client does to it: how long it
 * takes to get an output buffer, to send the response and to release the request. Those calls run
 * the client's callbacks, so they are where a client that waits for something holds Triton up.
 *
 * Requests during which the system took the core away from the thread are left out: what is asked
 * is whether the client makes it wait, and a thread that waits gives the core away by itself.
 */

#define _GNU_SOURCE

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "tritonbackend.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_TIMES = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double *times; /* microseconds; under `lock` */
static size_t count;

static double now_us(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* How often the system took the core away from this thread. */
static long preemptions(void)
{
  struct rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

static int by_value(const void *left, const void *right)
{
  double a = *(const double *)left;
  double b = *(const double *)right;
  return (a > b) - (a < b);
}

/*
 * For the benchmark, through ctypes: the time below which the share lies, 1.0 for the longest, of
 * all requests since probe_reset; -1 where there was none.
 */
EXPORT double probe_read(double share);
EXPORT void probe_reset(void);

double probe_read(double share)
{
  pthread_mutex_lock(&lock);
  double value = -1;
  if (count > 0) {
    qsort(times, count, sizeof *times, by_value);
    size_t at = (size_t)(share * (double)count);
    value = times[at < count ? at : count - 1];
  }
  pthread_mutex_unlock(&lock);
  return value;
}

void probe_reset(void)
{
  pthread_mutex_lock(&lock);
  count = 0;
  pthread_mutex_unlock(&lock);
}

static void keep(double time_us)
{
  pthread_mutex_lock(&lock);
  if (times == NULL)
    times = calloc(MAX_TIMES, sizeof *times);
  if (times != NULL && count < MAX_TIMES)
    times[count++] = time_us;
  pthread_mutex_unlock(&lock);
}

/* Microseconds in the client's hands are added to `held`. */
static struct TRITONSERVER_Error *echo(struct TRITONBACKEND_Request *request,
                                       struct TRITONBACKEND_Response *response, double *held)
{
  struct TRITONBACKEND_Input *input = NULL;
  struct TRITONBACKEND_Output *output = NULL;
  const char *name = NULL;
  const int64_t *shape = NULL;
  const void *data = NULL;
  void *target = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  uint64_t byte_size = 0;
  uint32_t dim_count = 0;
  uint32_t buffer_count = 0;
  struct TRITONSERVER_Error *error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  if (error == NULL)
    error = TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dim_count, &byte_size,
                                          &buffer_count);
  if (error == NULL)
    error = TRITONBACKEND_InputBuffer(input, 0, &data, &byte_size, &memory_type, &memory_id);
  if (error == NULL)
    error = TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", datatype, shape, dim_count);
  if (error != NULL)
    return error;
  memory_type = TRITONSERVER_MEMORY_CPU;
  double begin = now_us();
  error = TRITONBACKEND_OutputBuffer(output, &target, byte_size, &memory_type, &memory_id);
  *held += now_us() - begin;
  if (error == NULL)
    memcpy(target, data, byte_size);
  return error;
}

EXPORT struct TRITONSERVER_Error *
TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance *instance,
                                   struct TRITONBACKEND_Request **requests, uint32_t request_count)
{
  (void)instance;
  for (uint32_t i = 0; i < request_count; i++) {
    struct TRITONBACKEND_Response *response = NULL;
    double held = 0;
    long before = preemptions();
    struct TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, requests[i]);
    if (error != NULL)
      abort();
    error = echo(requests[i], response, &held);
    double begin = now_us();
    if (TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error) != NULL ||
        TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL) != NULL)
      abort();
    held += now_us() - begin;
    if (preemptions() == before)
      keep(held);
    if (error != NULL)
      TRITONSERVER_ErrorDelete(error);
  }
  return NULL;
}
