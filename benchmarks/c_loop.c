/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What tritonffi is measured against: the same inferences over the same C API, in nothing but C.
 *
 *   c_loop MODEL_REPOSITORY BACKEND_DIRECTORY [keep]
 *
 * Starts a server and prints {"start_ms": ...}. Then each line on stdin is a round:
 *
 *   MODEL MODELS INPUTS BYTES BATCHED THREADS IN_FLIGHT COUNT
 *
 * COUNT inferences of INPUTS tensors of BYTES bytes each, by THREADS threads that share IN_FLIGHT
 * evenly: each has as many inferences in flight as fall to it and awaits its oldest first. MODELS
 * above 0 means that they go in turn to the models called MODEL and a number, from 0; BATCHED 1, that
 * the tensors have a batch axis of one. The answer is one line of JSON with microseconds per
 * inference. The end of stdin ends the server, and {"stop_ms": ...} is the last line.
 *
 * The rules are those that tritonffi has to keep: an inference is over when both the final response
 * and the release were seen; buffers on page boundaries; output memory pooled. Each inference has a
 * new request, as in the servers that come with Triton; with "keep" each slot has one, that is
 * filled again and again.
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

enum { PAGE = 4096, MAX_IN_FLIGHT = 4096, MAX_INPUTS = 64, MAX_POOLED = 1 << 16, NAME_SIZE = 64 };

/* What a line on stdin asks for. */
struct round {
  char model[NAME_SIZE];
  size_t models;
  size_t inputs;
  size_t byte_size;
  size_t batched;
  size_t threads;
  size_t in_flight;
  size_t count;
};

/* One inference in flight. Everything but `input` and `start` is under `lock`. */
struct slot {
  void *input[MAX_INPUTS];
  void *output[MAX_INPUTS]; /* what alloc_fn gave: back to the pool with the result */
  size_t output_count;
  unsigned pending;    /* of final response and release, how many were not yet seen */
  bool awaited;        /* a thread sleeps on `arrived` */
  const char *failure; /* the first thing that went wrong */
  pthread_cond_t arrived;
  double start;
  struct TRITONSERVER_InferenceRequest *kept; /* NULL: it has none; the caller's between two inferences */
};

/* The part of a round that one thread does. */
struct part {
  pthread_t thread;
  struct slot *slots;
  size_t in_flight;
  size_t count;
  double *times;
};

static struct TRITONSERVER_Server *server;
static struct TRITONSERVER_ResponseAllocator *allocator;
static char input_names[MAX_INPUTS][NAME_SIZE];
static bool keeping;
static struct round now; /* the round that is being done; written between rounds only */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot slots[MAX_IN_FLIGHT];
static void *pool[MAX_POOLED];
static size_t pooled;

static void check(struct TRITONSERVER_Error *error)
{
  if (error == NULL)
    return;
  fprintf(stderr, "c_loop: %s\n", TRITONSERVER_ErrorMessage(error));
  exit(1);
}

static void fail(const char *text)
{
  fprintf(stderr, "c_loop: %s\n", text);
  exit(1);
}

static double now_us(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void *page_aligned(size_t byte_size)
{
  void *memory = aligned_alloc(PAGE, (byte_size + PAGE - 1) / PAGE * PAGE);
  if (memory == NULL)
    fail("out of memory");
  return memory;
}

/*
 * Runs on Triton's threads. Must not wait for anything but the short lock. Takes a buffer out of
 * the pool, or makes one, and leaves it with the slot.
 */
static struct TRITONSERVER_Error *
alloc_fn(struct TRITONSERVER_ResponseAllocator *unused, const char *tensor_name, size_t byte_size,
         TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void *userp, void **buffer,
         void **buffer_userp, TRITONSERVER_MemoryType *actual_memory_type,
         int64_t *actual_memory_type_id)
{
  (void)unused, (void)tensor_name, (void)memory_type, (void)memory_type_id;
  struct slot *slot = userp;
  if (byte_size != now.byte_size)
    fail("the output has another size than the input");
  *buffer = NULL;
  pthread_mutex_lock(&lock);
  if (slot->output_count == MAX_INPUTS)
    fail("more outputs than inputs");
  if (pooled > 0)
    *buffer = pool[--pooled];
  if (*buffer == NULL)
    *buffer = page_aligned(byte_size);
  slot->output[slot->output_count++] = *buffer;
  pthread_mutex_unlock(&lock);
  *buffer_userp = NULL;
  *actual_memory_type = TRITONSERVER_MEMORY_CPU;
  *actual_memory_type_id = 0;
  return NULL;
}

/* Runs where a response is deleted. The buffer is the slot's, so there is nothing to do. */
static struct TRITONSERVER_Error *
release_fn(struct TRITONSERVER_ResponseAllocator *unused, void *buffer, void *buffer_userp,
           size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
  (void)unused, (void)buffer, (void)buffer_userp;
  (void)byte_size, (void)memory_type, (void)memory_type_id;
  return NULL;
}

static void count_down(struct slot *slot)
{
  pthread_mutex_lock(&lock);
  if (--slot->pending == 0 && slot->awaited)
    pthread_cond_signal(&slot->arrived);
  pthread_mutex_unlock(&lock);
}

/* What a client reads from a response; the data itself is where alloc_fn put it. */
static const char *read_response(struct TRITONSERVER_InferenceResponse *response)
{
  if (TRITONSERVER_InferenceResponseError(response) != NULL)
    return "the model answered with an error";
  uint32_t count = 0;
  check(TRITONSERVER_InferenceResponseOutputCount(response, &count));
  if (count != now.inputs)
    return "the model has not as many outputs as inputs";
  for (uint32_t i = 0; i < count; i++) {
    const char *name = NULL;
    TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
    const int64_t *shape = NULL;
    uint64_t dim_count = 0;
    const void *base = NULL;
    size_t byte_size = 0;
    TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
    int64_t memory_type_id = 0;
    void *userp = NULL;
    check(TRITONSERVER_InferenceResponseOutput(response, i, &name, &datatype, &shape, &dim_count,
                                               &base, &byte_size, &memory_type, &memory_type_id,
                                               &userp));
    if (byte_size != now.byte_size)
      return "the output has another size than the input";
  }
  return NULL;
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

/*
 * Runs on Triton's threads. Must not wait for anything but the short lock. Takes the request, which
 * is the slot's or nobody's from then on.
 */
static void request_release_fn(struct TRITONSERVER_InferenceRequest *request, uint32_t flags,
                               void *userp)
{
  (void)flags;
  struct slot *slot = userp;
  if (keeping)
    slot->kept = request;
  else
    check(TRITONSERVER_InferenceRequestDelete(request));
  count_down(slot);
}

static void drop_kept(void)
{
  for (size_t i = 0; i < MAX_IN_FLIGHT; i++) {
    if (slots[i].kept != NULL)
      check(TRITONSERVER_InferenceRequestDelete(slots[i].kept));
    slots[i].kept = NULL;
  }
}

/* A new request, for the inference of this number in the part of a thread. */
static struct TRITONSERVER_InferenceRequest *make_request(struct slot *slot, size_t number)
{
  struct TRITONSERVER_InferenceRequest *request = NULL;
  const int64_t shape[] = {1, (int64_t)(now.byte_size / sizeof(float))};
  const uint64_t axes = now.batched == 0 ? 1 : 2;
  char numbered[NAME_SIZE * 2];
  const char *model = now.model;
  if (now.models > 0) {
    snprintf(numbered, sizeof numbered, "%s%zu", now.model, number % now.models);
    model = numbered;
  }
  check(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  for (size_t i = 0; i < now.inputs; i++) {
    check(TRITONSERVER_InferenceRequestAddInput(request, input_names[i], TRITONSERVER_TYPE_FP32,
                                                shape + 2 - axes, axes));
  }
  check(TRITONSERVER_InferenceRequestSetReleaseCallback(request, request_release_fn, slot));
  check(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, slot,
                                                         response_complete_fn, slot));
  return request;
}

static void submit(struct slot *slot, size_t number)
{
  struct TRITONSERVER_InferenceRequest *request = slot->kept;
  slot->kept = NULL;
  slot->pending = 2;
  slot->failure = NULL;
  const bool is_used = request != NULL;
  if (!is_used)
    request = make_request(slot, number);
  for (size_t i = 0; i < now.inputs; i++) {
    const char *name = input_names[i];
    if (is_used)
      check(TRITONSERVER_InferenceRequestRemoveAllInputData(request, name));
    check(TRITONSERVER_InferenceRequestAppendInputData(request, name, slot->input[i], now.byte_size,
                                                       TRITONSERVER_MEMORY_CPU, 0));
  }
  check(TRITONSERVER_ServerInferAsync(server, request, NULL));
}

/* Waits for the inference, then gives its output memory back like a client that is done with it. */
static void finish(struct slot *slot)
{
  pthread_mutex_lock(&lock);
  slot->awaited = true;
  while (slot->pending > 0)
    pthread_cond_wait(&slot->arrived, &lock);
  slot->awaited = false;
  while (slot->output_count > 0 && pooled < MAX_POOLED)
    pool[pooled++] = slot->output[--slot->output_count];
  while (slot->output_count > 0)
    free(slot->output[--slot->output_count]);
  pthread_mutex_unlock(&lock);
  if (slot->failure != NULL)
    fail(slot->failure);
}

static int by_value(const void *left, const void *right)
{
  double a = *(const double *)left;
  double b = *(const double *)right;
  return (a > b) - (a < b);
}

/* Makes the memory of the round, before its time begins. */
static void prepare(const struct round *round)
{
  drop_kept();
  if (round->byte_size != now.byte_size || round->inputs != now.inputs) {
    while (pooled > 0)
      free(pool[--pooled]);
    for (size_t i = 0; i < MAX_IN_FLIGHT; i++) {
      for (size_t j = 0; j < MAX_INPUTS; j++) {
        free(slots[i].input[j]);
        slots[i].input[j] = NULL;
      }
    }
  }
  now = *round;
  for (size_t i = 0; i < now.in_flight; i++) {
    for (size_t j = 0; j < now.inputs; j++) {
      if (slots[i].input[j] == NULL)
        slots[i].input[j] = memset(page_aligned(now.byte_size), 1, now.byte_size);
    }
  }
}

static void *run_part(void *userp)
{
  struct part *part = userp;
  for (size_t i = 0; i < part->count + part->in_flight; i++) {
    struct slot *slot = &part->slots[i % part->in_flight];
    if (i >= part->in_flight) {
      finish(slot);
      part->times[i - part->in_flight] = now_us() - slot->start;
    }
    if (i < part->count) {
      slot->start = now_us();
      submit(slot, i);
    }
  }
  return NULL;
}

/* The percentiles are of the times from the submission of an inference to the end of its wait. */
static void run_round(const struct round *round)
{
  size_t each = round->count / round->threads;
  size_t count = each * round->threads;
  double *times = calloc(count, sizeof *times);
  struct part *parts = calloc(round->threads, sizeof *parts);
  if (times == NULL || parts == NULL)
    fail("out of memory");
  prepare(round);
  for (size_t i = 0; i < round->threads; i++) {
    parts[i].in_flight = round->in_flight / round->threads;
    parts[i].count = each;
    parts[i].slots = slots + i * parts[i].in_flight;
    parts[i].times = times + i * each;
  }
  double begin = now_us();
  for (size_t i = 1; i < round->threads; i++) {
    if (pthread_create(&parts[i].thread, NULL, run_part, &parts[i]) != 0)
      fail("no more threads");
  }
  run_part(&parts[0]);
  for (size_t i = 1; i < round->threads; i++)
    pthread_join(parts[i].thread, NULL);
  double total = now_us() - begin;
  qsort(times, count, sizeof *times, by_value);
  printf("{\"us\": %.3f, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f}\n", total / (double)count,
         times[count / 2], times[count * 9 / 10], times[count * 99 / 100]);
  fflush(stdout);
  free(times);
  free(parts);
}

static void start(const char *repository, const char *backends)
{
  struct TRITONSERVER_ServerOptions *options = NULL;
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
  check(TRITONSERVER_ResponseAllocatorNew(&allocator, alloc_fn, release_fn, NULL));
}

static bool is_possible(const struct round *round)
{
  return round->inputs >= 1 && round->inputs <= MAX_INPUTS && round->byte_size >= 1 &&
         (round->models == 0 || !keeping) && round->threads >= 1 && round->in_flight >= round->threads &&
         round->in_flight <= MAX_IN_FLIGHT && round->in_flight % round->threads == 0 &&
         round->count >= round->threads;
}

int main(int argc, char **argv)
{
  if (argc < 3 || argc > 4 || (argc == 4 && strcmp(argv[3], "keep") != 0)) {
    fprintf(stderr, "usage: c_loop MODEL_REPOSITORY BACKEND_DIRECTORY [keep]\n");
    return 2;
  }
  keeping = argc == 4;
  for (size_t i = 0; i < MAX_INPUTS; i++)
    snprintf(input_names[i], NAME_SIZE, "INPUT%zu", i);
  for (size_t i = 0; i < MAX_IN_FLIGHT; i++)
    pthread_cond_init(&slots[i].arrived, NULL);
  double begin = now_us();
  start(argv[1], argv[2]);
  printf("{\"start_ms\": %.3f}\n", (now_us() - begin) / 1e3);
  fflush(stdout);

  struct round round;
  while (scanf("%63s %zu %zu %zu %zu %zu %zu %zu", round.model, &round.models, &round.inputs,
               &round.byte_size, &round.batched, &round.threads, &round.in_flight,
               &round.count) == 8) {
    if (!is_possible(&round))
      fail("a round that cannot be done");
    run_round(&round);
  }
  begin = now_us();
  drop_kept();
  check(TRITONSERVER_ServerDelete(server));
  printf("{\"stop_ms\": %.3f}\n", (now_us() - begin) / 1e3);
  return 0;
}
