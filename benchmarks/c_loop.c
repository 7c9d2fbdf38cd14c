/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What tritonffi is measured against: the same inferences over the same C API, in nothing but C.
 *
 *   c_loop MODEL_REPOSITORY BACKEND_DIRECTORY MODEL
 *
 * Starts a server and prints {"ready": true}. Then each line "BYTES IN_FLIGHT COUNT" on stdin is a
 * round: COUNT inferences of BYTES bytes, IN_FLIGHT of them at a time, the oldest awaited first.
 * Its answer is one line of JSON with microseconds per inference. The end of stdin ends the server.
 *
 * The rules are those that tritonffi has to keep: a new request for each inference, over when both
 * the final response and the release were seen; buffers on page boundaries; output memory pooled.
 */

#define _GNU_SOURCE

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tritonserver.h"

enum { PAGE = 4096, MAX_IN_FLIGHT = 256 };

/* One inference in flight. Everything but `input` is under `lock`. */
struct slot {
  void *input;
  void *output;        /* the buffer that alloc_fn gave: back to the pool with the result */
  unsigned pending;    /* of final response and release, how many were not yet seen */
  const char *failure; /* the first thing that went wrong */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static struct slot slots[MAX_IN_FLIGHT];
static const struct slot *awaited;
static void *pool[MAX_IN_FLIGHT * 2];
static size_t pooled;
static size_t tensor_bytes;

static void check(struct TRITONSERVER_Error *error)
{
  if (error == NULL)
    return;
  fprintf(stderr, "c_loop: %s\n", TRITONSERVER_ErrorMessage(error));
  exit(1);
}

static void *page_aligned(size_t byte_size)
{
  void *memory = aligned_alloc(PAGE, (byte_size + PAGE - 1) / PAGE * PAGE);
  if (memory == NULL) {
    fprintf(stderr, "c_loop: out of memory\n");
    exit(1);
  }
  return memory;
}

/*
 * Runs on Triton's threads. Must not wait for anything but the short lock. Takes a buffer out of
 * the pool, or makes one, and leaves it with the slot.
 */
static struct TRITONSERVER_Error *
alloc_fn(struct TRITONSERVER_ResponseAllocator *allocator, const char *tensor_name,
         size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void *userp,
         void **buffer, void **buffer_userp, TRITONSERVER_MemoryType *actual_memory_type,
         int64_t *actual_memory_type_id)
{
  (void)allocator, (void)tensor_name, (void)memory_type, (void)memory_type_id;
  struct slot *slot = userp;
  *buffer = NULL;
  pthread_mutex_lock(&lock);
  if (pooled > 0 && byte_size <= tensor_bytes)
    *buffer = pool[--pooled];
  if (*buffer == NULL)
    *buffer = page_aligned(byte_size > tensor_bytes ? byte_size : tensor_bytes);
  slot->output = *buffer;
  pthread_mutex_unlock(&lock);
  *buffer_userp = NULL;
  *actual_memory_type = TRITONSERVER_MEMORY_CPU;
  *actual_memory_type_id = 0;
  return NULL;
}

/* Runs where a response is deleted. The buffer is the slot's, so there is nothing to do. */
static struct TRITONSERVER_Error *release_fn(struct TRITONSERVER_ResponseAllocator *allocator,
                                             void *buffer, void *buffer_userp, size_t byte_size,
                                             TRITONSERVER_MemoryType memory_type,
                                             int64_t memory_type_id)
{
  (void)allocator, (void)buffer, (void)buffer_userp, (void)byte_size, (void)memory_type;
  (void)memory_type_id;
  return NULL;
}

static void count_down(struct slot *slot)
{
  pthread_mutex_lock(&lock);
  if (--slot->pending == 0 && awaited == slot)
    pthread_cond_signal(&arrived);
  pthread_mutex_unlock(&lock);
}

/* What a client reads from a response; the data itself is where alloc_fn put it. */
static const char *read_response(struct TRITONSERVER_InferenceResponse *response)
{
  struct TRITONSERVER_Error *error = TRITONSERVER_InferenceResponseError(response);
  if (error != NULL)
    return "the model answered with an error";
  uint32_t count = 0;
  check(TRITONSERVER_InferenceResponseOutputCount(response, &count));
  if (count != 1)
    return "the model has not one output";
  const char *name = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t *shape = NULL;
  uint64_t dim_count = 0;
  const void *base = NULL;
  size_t byte_size = 0;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  void *userp = NULL;
  check(TRITONSERVER_InferenceResponseOutput(response, 0, &name, &datatype, &shape, &dim_count,
                                             &base, &byte_size, &memory_type, &memory_type_id,
                                             &userp));
  return byte_size == tensor_bytes ? NULL : "the output has another size than the input";
}

/*
 * Runs on Triton's threads. Must not wait for anything but the short lock. Takes the response,
 * reads it and deletes it at once.
 */
static void response_complete_fn(struct TRITONSERVER_InferenceResponse *response, uint32_t flags,
                                 void *userp)
{
  struct slot *slot = userp;
  if (response != NULL) {
    const char *failure = read_response(response);
    if (failure != NULL)
      slot->failure = failure;
    check(TRITONSERVER_InferenceResponseDelete(response));
  }
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0)
    count_down(slot);
}

/* Runs on Triton's threads. Must not wait for anything but the short lock. Takes the request. */
static void request_release_fn(struct TRITONSERVER_InferenceRequest *request, uint32_t flags,
                               void *userp)
{
  (void)flags;
  check(TRITONSERVER_InferenceRequestDelete(request));
  count_down(userp);
}

static void submit(struct TRITONSERVER_Server *server,
                   struct TRITONSERVER_ResponseAllocator *allocator, const char *model,
                   struct slot *slot)
{
  struct TRITONSERVER_InferenceRequest *request = NULL;
  int64_t shape[] = {(int64_t)(tensor_bytes / sizeof(float))};
  slot->pending = 2;
  slot->failure = NULL;
  check(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  check(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
  check(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", slot->input, tensor_bytes,
                                                     TRITONSERVER_MEMORY_CPU, 0));
  check(TRITONSERVER_InferenceRequestSetReleaseCallback(request, request_release_fn, slot));
  check(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, slot,
                                                         response_complete_fn, slot));
  check(TRITONSERVER_ServerInferAsync(server, request, NULL));
}

/* Waits for the inference, then gives its output buffer back like a client that is done with it. */
static void finish(struct slot *slot)
{
  pthread_mutex_lock(&lock);
  awaited = slot;
  while (slot->pending > 0)
    pthread_cond_wait(&arrived, &lock);
  awaited = NULL;
  if (slot->output != NULL)
    pool[pooled++] = slot->output;
  slot->output = NULL;
  pthread_mutex_unlock(&lock);
  if (slot->failure != NULL) {
    fprintf(stderr, "c_loop: %s\n", slot->failure);
    exit(1);
  }
}

static double now_us(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int by_value(const void *left, const void *right)
{
  double a = *(const double *)left;
  double b = *(const double *)right;
  return (a > b) - (a < b);
}

static void prepare(size_t byte_size, size_t in_flight)
{
  if (byte_size != tensor_bytes) {
    while (pooled > 0)
      free(pool[--pooled]);
    for (size_t i = 0; i < MAX_IN_FLIGHT; i++) {
      free(slots[i].input);
      slots[i].input = NULL;
    }
    tensor_bytes = byte_size;
  }
  for (size_t i = 0; i < in_flight; i++) {
    if (slots[i].input == NULL)
      slots[i].input = memset(page_aligned(byte_size), 1, byte_size);
  }
}

/* The percentiles are of the times from the submission of an inference to the end of its wait. */
static void run_round(struct TRITONSERVER_Server *server,
                      struct TRITONSERVER_ResponseAllocator *allocator, const char *model,
                      size_t byte_size, size_t in_flight, size_t count)
{
  double *times = calloc(count, sizeof *times);
  double *starts = calloc(in_flight, sizeof *starts);
  if (times == NULL || starts == NULL)
    exit(1);
  prepare(byte_size, in_flight);
  double begin = now_us();
  for (size_t i = 0; i < count + in_flight; i++) {
    size_t at = i % in_flight;
    if (i >= in_flight) {
      finish(&slots[at]);
      times[i - in_flight] = now_us() - starts[at];
    }
    if (i < count) {
      starts[at] = now_us();
      submit(server, allocator, model, &slots[at]);
    }
  }
  double total = now_us() - begin;
  qsort(times, count, sizeof *times, by_value);
  printf("{\"us\": %.3f, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f}\n", total / (double)count,
         times[count / 2], times[count * 9 / 10], times[count * 99 / 100]);
  fflush(stdout);
  free(times);
  free(starts);
}

static struct TRITONSERVER_Server *start(const char *repository, const char *backends)
{
  struct TRITONSERVER_ServerOptions *options = NULL;
  struct TRITONSERVER_Server *server = NULL;
  check(TRITONSERVER_ServerOptionsNew(&options));
  check(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
  check(TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends));
  check(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_NONE));
  check(TRITONSERVER_ServerOptionsSetModelLoadRetryCount(options, 0));
  check(TRITONSERVER_ServerOptionsSetEnablePeerAccess(options, false));
  check(TRITONSERVER_ServerOptionsSetMetrics(options, false));
  check(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
  check(TRITONSERVER_ServerOptionsSetLogWarn(options, false));
  check(TRITONSERVER_ServerOptionsSetLogError(options, false));
  check(TRITONSERVER_ServerNew(&server, options));
  check(TRITONSERVER_ServerOptionsDelete(options));
  return server;
}

int main(int argc, char **argv)
{
  if (argc != 4) {
    fprintf(stderr, "usage: c_loop MODEL_REPOSITORY BACKEND_DIRECTORY MODEL\n");
    return 2;
  }
  struct TRITONSERVER_ResponseAllocator *allocator = NULL;
  struct TRITONSERVER_Server *server = start(argv[1], argv[2]);
  check(TRITONSERVER_ResponseAllocatorNew(&allocator, alloc_fn, release_fn, NULL));
  printf("{\"ready\": true}\n");
  fflush(stdout);

  size_t byte_size = 0;
  size_t in_flight = 0;
  size_t count = 0;
  while (scanf("%zu %zu %zu", &byte_size, &in_flight, &count) == 3) {
    if (in_flight < 1 || in_flight > MAX_IN_FLIGHT || count < in_flight) {
      fprintf(stderr, "c_loop: %zu of %zu in flight cannot be done\n", in_flight, count);
      return 2;
    }
    run_round(server, allocator, argv[3], byte_size, in_flight, count);
  }
  check(TRITONSERVER_ServerDelete(server));
  return 0;
}
