/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests that serve again, by many threads and for every order of final response and release, while others change
 * models all the time.
 */

#include <string.h>

#include "threads.h"

/* One of the fake library's inferences each, and the spares of its kind. */
static const char *const kinds[] = {"", "r", "s", "ds", "ns", "e", "i", "ir", "ids", "ic"};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };
static tffi_spares *spares[KINDS];
static bool changing;

static void infer(tffi_queue *queue, uint32_t kind, tffi_spares *from, bool cancelled)
{
  uint64_t token = 0;
  driver_seen seen = {0};
  CHECK(driver_submit_spare(kinds[kind], from, queue, 1, &token) == NULL);
  if (cancelled) {
    tffi_inference_cancel(token);
  }
  while (seen.done == 0) {
    tffi_completion *list = NULL;
    CHECK(tffi_inference_wait(token, wakes_of(queue), -1, &list) == TFFI_WAIT_READY);
    driver_take(list, &seen);
  }
}

static void one(tffi_queue *queue, uint32_t kind)
{
  infer(queue, kind, spares[kind], false);
}

/* Spares of its own for eight inferences of a kind, as whoever reads anew what a model is like has them. */
static void *serve_again(void *given)
{
  task *me = given;
  tffi_spares *own = NULL;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    if (i % 8 == 0) {
      tffi_spares_release(&own);
      tffi_spares_new(&own, __atomic_load_n(tffi_model_changes(), __ATOMIC_RELAXED));
    }
    infer(me->queue, (i / 8 + me->number) % KINDS, own, i % 11 == 0);
    if (i % 13 == 0) {
      tffi_spares_change(own);
    }
  }
  tffi_spares_release(&own);
  return NULL;
}

static void *change_models(void *given)
{
  (void)given;
  while (__atomic_load_n(&changing, __ATOMIC_RELAXED)) {
    tffi_spares_forbid();
    tffi_spares_forbid();
    tffi_spares_allow();
    tffi_spares_allow();
    sched_yield();
  }
  return NULL;
}

static uint64_t waiting(void)
{
  tffi_counters now;
  tffi_counters_read(&now);
  return now.spares;
}

static int64_t requests_made(void)
{
  fake_alive alive;
  fake.read_alive(&alive);
  return alive.made;
}

static void make_all(void)
{
  for (uint32_t i = 0; i < KINDS; i++) {
    tffi_spares_new(&spares[i], *tffi_model_changes());
    CHECK(spares[i] != NULL);
  }
}

static void release_all(void)
{
  for (uint32_t i = 0; i < KINDS; i++) {
    tffi_spares_release(&spares[i]);
    CHECK(spares[i] == NULL);
  }
  CHECK(waiting() == 0);
}

/* One thread, so that it is known how many requests there must be. */
static void one_after_the_other(tffi_queue *queue)
{
  make_all();
  const int64_t before = requests_made();
  for (uint32_t i = 0; i < 10 * KINDS; i++) {
    one(queue, i % KINDS);
  }
  CHECK(requests_made() - before == KINDS && waiting() == KINDS);
  tffi_spares *held = NULL;
  tffi_spares_new(&held, *tffi_model_changes());
  uint64_t token = 0;
  CHECK(driver_submit_spare("h", held, queue, 1, &token) == NULL);
  CHECK(tffi_inference_cancel(token));
  tffi_completion *list = NULL;
  driver_seen seen = {0};
  CHECK(tffi_inference_wait(token, wakes_of(queue), -1, &list) == TFFI_WAIT_READY);
  driver_take(list, &seen);
  tffi_spares_release(&held);
  CHECK(waiting() == KINDS);
  tffi_spares_forbid();
  CHECK(waiting() == 0);
  one(queue, 1);
  CHECK(waiting() == 0);
  tffi_spares_allow();
  one(queue, 1); /* it may be another model now */
  CHECK(waiting() == 0);
  release_all();
  make_all();
  one(queue, 1);
  one(queue, 2);
  CHECK(waiting() == 2);
  tffi_spares_change(spares[1]);
  CHECK(waiting() == 1);
  release_all();
}

/* Let go of while inferences hold them: what is in flight ends as ever, and its request with it. */
static void let_go_in_flight(tffi_queue *queue)
{
  enum { MANY = 50 };
  for (uint32_t kind = 0; kind < KINDS; kind++) {
    tffi_spares *own = NULL;
    tffi_spares_new(&own, *tffi_model_changes());
    uint64_t tokens[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
      CHECK(driver_submit_spare(kinds[kind], own, queue, i, &tokens[i]) == NULL);
    }
    tffi_spares_release(&own);
    driver_seen seen = {0};
    while (seen.done < MANY) {
      tffi_completion *list = NULL;
      tffi_queue_wait(queue, wakes_of(queue), -1, &list);
      driver_take(list, &seen);
    }
  }
  CHECK(waiting() == 0);
}

void serving_again(void)
{
  task tasks[WORKERS];
  task changer;
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  one_after_the_other(queue);
  let_go_in_flight(queue);
  const int64_t before = requests_made();
  start(tasks, WORKERS, serve_again, queue, 0);
  join(tasks, WORKERS);
  CHECK(requests_made() - before < WORKERS * ROUNDS / 2);
  changing = true;
  start(&changer, 1, change_models, queue, 0);
  start(tasks, WORKERS, serve_again, queue, 0);
  join(tasks, WORKERS);
  __atomic_store_n(&changing, false, __ATOMIC_RELAXED);
  join(&changer, 1);
  CHECK(waiting() == 0);
  tffi_queue_release(&queue);
}
