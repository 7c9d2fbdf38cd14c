/* SPDX-License-Identifier: Apache-2.0 */

/* Several who take what comes for one inference: by token, whatever is ready, within a bound, through handover.c. */

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

static uint32_t submitted;
static uint32_t finished;

static bool all_finished(void)
{
  return __atomic_load_n(&finished, __ATOMIC_RELAXED) == WORKERS * ROUNDS;
}

static void take(tffi_completion *list)
{
  driver_seen seen = {0};
  driver_take(list, &seen);
  __atomic_add_fetch(&finished, seen.done, __ATOMIC_RELAXED);
}

/* Submits and waits for each, as long as others have not taken it all. */
static void *take_by_token(void *given)
{
  static const char *const kinds[] = {"", "r", "s", "d", "ds", "i", "id", "n"};
  task *me = given;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint64_t token = 0;
    tffi_wait result = TFFI_WAIT_READY;
    CHECK(driver_ok(driver_submit(kinds[i % 8], me->queue, i, &token)));
    __atomic_add_fetch(&submitted, 1, __ATOMIC_RELAXED);
    while (result != TFFI_WAIT_GONE) {
      tffi_completion *list = NULL;
      result = tffi_inference_wait(token, wakes_of(me->queue), i % 2 == 0 ? -1 : 50000, &list);
      CHECK((result == TFFI_WAIT_READY) == (list != NULL));
      take(list);
    }
    CHECK(tffi_inference_is_over(token));
  }
  return NULL;
}

static void *take_ready(void *given)
{
  task *me = given;
  while (!all_finished()) {
    tffi_completion *list = NULL;
    const tffi_wait result = tffi_queue_wait(me->queue, wakes_of(me->queue), me->number == 0 ? -1 : 100000, &list);
    CHECK((result == TFFI_WAIT_READY) == (list != NULL) && result != TFFI_WAIT_GONE);
    take(list);
  }
  return NULL;
}

static void *wake(void *given)
{
  task *me = given;
  while (!all_finished()) {
    tffi_queue_wake(me->queue);
    sched_yield();
  }
  tffi_queue_wake(me->queue); /* who has waited since for what does not come any more */
  return NULL;
}

void takers(void)
{
  task by_token[WORKERS];
  task ready[2];
  task wakers[1];
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  finished = 0;
  start(ready, 2, take_ready, queue, 0);
  start(by_token, WORKERS, take_by_token, queue, 0);
  start(wakers, 1, wake, queue, 0);
  join(by_token, WORKERS);
  join(wakers, 1);
  join(ready, 2);
  CHECK(all_finished());
  tffi_queue_release(&queue);
}

static bool is_set(int descriptor)
{
  struct pollfd asked = {.fd = descriptor, .events = POLLIN};
  CHECK(poll(&asked, 1, 0) >= 0);
  return asked.revents == POLLIN;
}

/* An event loop that finds its descriptor set and nothing ready would look again and again. */
void descriptors(void)
{
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  const int descriptor = tffi_queue_fd(queue);
  for (uint32_t i = 0; i < 2; i++) {
    uint64_t tokens[2];
    driver_seen seen = {0};
    tffi_completion *list = NULL;
    CHECK(!is_set(descriptor));
    for (uint32_t j = 0; j < 2; j++) {
      CHECK(driver_submit("i", queue, j, &tokens[j]) == NULL);
      CHECK(is_set(descriptor));
    }
    CHECK(tffi_inference_wait(tokens[i], wakes_of(queue), -1, &list) == TFFI_WAIT_READY);
    CHECK(is_set(descriptor));
    driver_take(list, &seen);
    if (i == 0) {
      CHECK(tffi_inference_wait(tokens[1], wakes_of(queue), -1, &list) == TFFI_WAIT_READY);
    } else {
      CHECK(tffi_queue_wait(queue, wakes_of(queue), -1, &list) == TFFI_WAIT_READY);
    }
    driver_take(list, &seen);
    CHECK(seen.done == 2 && !is_set(descriptor));
  }
  tffi_queue_release(&queue);
}

static tffi_ticket shown;
static bool showing;

/* Cancels each inference that it sees once, or waits for one that is about to be refused. */
static void *cancel_shown(void *given)
{
  (void)given;
  uint64_t last = 0;
  while (__atomic_load_n(&showing, __ATOMIC_RELAXED)) {
    const uint64_t token = __atomic_load_n(&shown.token, __ATOMIC_RELAXED);
    if (token != last && tffi_inference_cancel(token)) {
      last = token;
    }
  }
  return NULL;
}

static void *wait_for_shown(void *given)
{
  task *me = given;
  while (__atomic_load_n(&showing, __ATOMIC_RELAXED)) {
    tffi_completion *list = NULL;
    const uint64_t token = __atomic_load_n(&shown.token, __ATOMIC_RELAXED);
    CHECK(tffi_inference_wait(token, wakes_of(me->queue), -1, &list) == TFFI_WAIT_GONE);
    CHECK(list == NULL);
  }
  return NULL;
}

static struct TRITONSERVER_Error *show(const char *how, tffi_queue *queue, tffi_spares *spares)
{
  const tffi_request request = {.model_name = how, .model_version = -1, .request_id = "an id", .spares = spares};
  struct TRITONSERVER_Error *error = NULL;
  tffi_inference_submit(NULL, &request, NULL, 1, queue, &shown, &error);
  return error;
}

/* One that waits to be cancelled is, also by a thread that does so but once; a request that has served is no trouble. */
static void cancelled_early(tffi_queue *queue)
{
  static const char *const held[] = {"h", "hr", "hs"};
  tffi_spares *spares = NULL;
  tffi_spares_new(&spares, *tffi_model_changes());
  for (uint32_t i = 0; i < 2 * ROUNDS; i++) {
    tffi_completion *list = NULL;
    driver_seen seen = {0};
    CHECK(show(i % 2 == 0 ? "" : held[i / 2 % 3], queue, i % 2 == 0 ? spares : NULL) == NULL);
    CHECK(tffi_inference_wait(shown.token, wakes_of(queue), -1, &list) == TFFI_WAIT_READY);
    driver_take(list, &seen);
    CHECK(seen.done == 1 && seen.errors == i % 2);
  }
  tffi_spares_release(&spares);
}

void early_birds(void)
{
  task birds[2];
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  showing = true;
  start(birds, 1, cancel_shown, queue, 0);
  cancelled_early(queue);
  __atomic_store_n(&showing, false, __ATOMIC_RELAXED);
  join(birds, 1);
  showing = true;
  start(birds, 2, wait_for_shown, queue, 0);
  for (uint32_t i = 0; i < 10 * ROUNDS; i++) {
    CHECK(!driver_ok(show("x", queue, NULL)));
  }
  __atomic_store_n(&showing, false, __ATOMIC_RELAXED);
  join(birds, 2);
  tffi_queue_release(&queue);
}

static void *read_within_bound(void *given)
{
  task *me = given;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    const tffi_request request = {.model_name = i % 3 == 0 ? "ds" : "d", .model_version = -1, .max_pending = 1 + i % 4};
    struct TRITONSERVER_Error *error = NULL;
    tffi_ticket ticket = {0, 0};
    uint32_t responses = 0;
    bool overflowed = false;
    const uint64_t token = tffi_inference_submit(NULL, &request, NULL, i, me->queue, &ticket, &error);
    CHECK(token != 0 && error == NULL);
    for (bool done = false; !done;) {
      tffi_completion *list = NULL;
      CHECK(tffi_inference_wait(token, wakes_of(me->queue), -1, &list) == TFFI_WAIT_READY);
      for (const tffi_completion *at = list; at != NULL; at = at->next) {
        overflowed = overflowed || at->overflowed;
        responses += at->has_response ? 1 : 0;
        done = at->done;
        if (at->has_response && !done) {
          tffi_inference_consume(token);
        }
      }
      tffi_completion_free(list);
    }
    CHECK(overflowed || responses == 4);
    CHECK(responses <= 4 && responses > 0 && (!overflowed || request.max_pending < 4));
  }
  return NULL;
}

void bounds(void)
{
  task readers[WORKERS];
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  start(readers, WORKERS, read_within_bound, queue, 0);
  join(readers, WORKERS);
  tffi_queue_release(&queue);
}

typedef struct {
  tffi_handover *handover;
  struct TRITONSERVER_InferenceRequest *request;
} fetching;

static void *fetch_request(void *given)
{
  fetching *what = given;
  CHECK(tffi_handover_request(what->handover, -1, &what->request) == TFFI_WAIT_READY);
  return NULL;
}

/* The last that comes may be the response or the request; the handover is gone at once. */
static void *hand_over(void *given)
{
  static const char *const kinds[] = {"", "r", "s", "d", "ds", "i", "dr", "n"};
  task *me = given;
  struct TRITONSERVER_ResponseAllocator *allocator = NULL;
  CHECK(driver_ok(
      TRITONSERVER_ResponseAllocatorNew(&allocator, tffi_handover_alloc_fn, tffi_handover_release_fn, NULL)));
  for (uint32_t i = 0; i < ROUNDS / 3; i++) {
    const char *how = kinds[(i + me->number) % 8];
    pthread_t other;
    fetching what = {tffi_handover_new(), NULL};
    struct TRITONSERVER_InferenceRequest *request = NULL;
    CHECK(driver_ok(TRITONSERVER_InferenceRequestNew(&request, NULL, how, -1)));
    CHECK(driver_ok(TRITONSERVER_InferenceRequestSetReleaseCallback(request, tffi_handover_request_release_fn,
                                                                    what.handover)));
    CHECK(driver_ok(TRITONSERVER_InferenceRequestSetResponseCallback(
        request, allocator, what.handover, tffi_handover_response_complete_fn, what.handover)));
    CHECK(pthread_create(&other, NULL, fetch_request, &what) == 0);
    CHECK(driver_ok(TRITONSERVER_ServerInferAsync(NULL, request, NULL)));
    for (uint32_t flags = 0; flags == 0;) {
      struct TRITONSERVER_InferenceResponse *response = NULL;
      CHECK(tffi_handover_response(what.handover, -1, &response, &flags) == TFFI_WAIT_READY);
      if (response != NULL && i % 2 == 0) {
        CHECK(driver_ok(TRITONSERVER_InferenceResponseDelete(response)));
      } else if (response != NULL) {
        CHECK(driver_ok(TRITONSERVER_InferenceResponseError(response)));
        CHECK(driver_ok(TRITONSERVER_InferenceResponseDelete(response)));
      }
    }
    pthread_join(other, NULL);
    tffi_handover_delete(what.handover);
    CHECK(what.request == request);
    CHECK(driver_ok(TRITONSERVER_InferenceRequestDelete(request)));
  }
  CHECK(driver_ok(TRITONSERVER_ResponseAllocatorDelete(allocator)));
  return NULL;
}

void handovers(void)
{
  task owners[WORKERS];
  start(owners, WORKERS, hand_over, NULL, 0);
  join(owners, WORKERS);
  tffi_pool_set_limit(0);
}
