/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Our C code under many threads: submits, waits, cancels, closes, in every order that Triton's threads allow. Made for
 * ThreadSanitizer; the checks hold without it too.
 */

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "threads.h"

static const char *const kinds[] = {"", "r", "s", "d", "dr", "ds", "n", "nr", "ns", "dn", "dns", "e", "es", "i", "ir",
                                    "id", "in", "ie", "is", "ids", "ic", "icr", "icn"};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void check_seen(const char *how, const driver_seen *seen)
{
  CHECK(seen->done == 1);
  const bool failed = strchr(how, 'e') != NULL || strchr(how, 'h') != NULL;
  const bool silent = strchr(how, 'n') != NULL;
  CHECK(seen->errors == (failed && !silent ? 1 : 0));
  CHECK(seen->responses == (strchr(how, 'd') != NULL ? 3u : 0u) + (strchr(how, 'c') != NULL ? 1u : 0u) +
                               (failed || silent ? 0u : 1u));
}

uint32_t wakes_of(const tffi_queue *queue)
{
  return __atomic_load_n(tffi_queue_wakes(queue), __ATOMIC_RELAXED);
}

void start(task *tasks, uint32_t count, void *(*work)(void *), tffi_queue *queue, uint64_t token)
{
  for (uint32_t i = 0; i < count; i++) {
    tasks[i].queue = queue;
    tasks[i].token = token;
    tasks[i].number = i;
    tasks[i].count = 0;
    CHECK(pthread_create(&tasks[i].thread, NULL, work, &tasks[i]) == 0);
  }
}

void join(task *tasks, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    pthread_join(tasks[i].thread, NULL);
  }
}

/* Every order of responses and release, each waited for by its token, with waits that end early in between. */
static void *submit_and_wait(void *given)
{
  task *me = given;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    const char *how = kinds[(i + me->number) % KINDS];
    uint64_t token = 0;
    driver_seen seen = {0};
    CHECK(driver_submit(how, me->queue, i, &token) == NULL);
    CHECK(token != 0);
    while (seen.done == 0) {
      tffi_completion *list = NULL;
      const int64_t timeout_ns = i % 3 == 0 ? -1 : (int64_t)(i % 3) * 20000;
      const tffi_wait result = tffi_inference_wait(token, wakes_of(me->queue), timeout_ns, &list);
      CHECK(result == TFFI_WAIT_READY || (result == TFFI_WAIT_TIMEOUT && i % 3 != 0));
      driver_take(list, &seen);
    }
    check_seen(how, &seen);
    tffi_completion *none = NULL;
    CHECK(tffi_inference_wait(token, wakes_of(me->queue), -1, &none) == TFFI_WAIT_GONE && none == NULL);
    CHECK(!tffi_inference_cancel(token) && !tffi_inference_is_cancelled(token));
  }
  return NULL;
}

static void every_order(void)
{
  task tasks[WORKERS];
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  start(tasks, WORKERS, submit_and_wait, queue, 0);
  join(tasks, WORKERS);
  tffi_queue_release(&queue);
}

/* Many producers, and consumers that take whatever is ready. */
static uint32_t finished;

static void *produce(void *given)
{
  task *me = given;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint64_t token = 0;
    CHECK(driver_submit(kinds[i % KINDS], me->queue, i, &token) == NULL);
    if (i % 7 == 0) {
      tffi_inference_cancel(token);
    }
  }
  return NULL;
}

static void *consume(void *given)
{
  task *me = given;
  while (__atomic_load_n(&finished, __ATOMIC_RELAXED) < WORKERS * ROUNDS) {
    tffi_completion *list = NULL;
    driver_seen seen = {0};
    tffi_queue_wait(me->queue, wakes_of(me->queue), me->number == 0 ? 1000000 : 50000, &list);
    (void)__atomic_load_n(tffi_queue_ready(me->queue), __ATOMIC_RELAXED);
    driver_take(list, &seen);
    __atomic_add_fetch(&finished, seen.done, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void many_producers(void)
{
  task producers[WORKERS];
  task consumers[2];
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  CHECK(tffi_queue_fd(queue) >= 0);
  finished = 0;
  start(consumers, 2, consume, queue, 0);
  start(producers, WORKERS, produce, queue, 0);
  join(producers, WORKERS);
  join(consumers, 2);
  tffi_queue_release(&queue);
}

/* Three wait for one inference, others cancel it: one of the three sees the end, nobody hangs. */
static void *wait_to_the_end(void *given)
{
  task *me = given;
  tffi_wait result = TFFI_WAIT_READY;
  while (result != TFFI_WAIT_GONE && me->count == 0) {
    tffi_completion *list = NULL;
    driver_seen seen = {0};
    result = tffi_inference_wait(me->token, wakes_of(me->queue), me->number == 0 ? -1 : 300000, &list);
    driver_take(list, &seen);
    me->count += seen.done;
  }
  return NULL;
}

static void *cancel(void *given)
{
  task *me = given;
  for (uint32_t i = 0; i < 20; i++) {
    tffi_inference_cancel(me->token);
    tffi_inference_is_cancelled(me->token);
  }
  return NULL;
}

static void waiters_and_cancellers(void)
{
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  for (uint32_t i = 0; i < ROUNDS / 3; i++) {
    task waiters[3];
    task cancellers[2];
    uint64_t token = 0;
    static const char *const some[] = {"h", "hr", "hs", "s", "d", "i", "hds"};
    CHECK(driver_submit(some[i % 7], queue, 1, &token) == NULL);
    start(waiters, 3, wait_to_the_end, queue, token);
    start(cancellers, 2, cancel, queue, token);
    join(cancellers, 2);
    join(waiters, 3);
    CHECK(waiters[0].count + waiters[1].count + waiters[2].count == 1);
  }
  tffi_queue_release(&queue);
}

/* A queue that is closed wakes everyone at once; what is in flight ends as it likes, and is dropped. */
static void *wait_at_queue(void *given)
{
  task *me = given;
  tffi_completion *list = NULL;
  CHECK(tffi_queue_wait(me->queue, wakes_of(me->queue), -1, &list) != TFFI_WAIT_READY);
  CHECK(tffi_queue_wait(me->queue, wakes_of(me->queue), -1, &list) == TFFI_WAIT_GONE);
  return NULL;
}

static void *wait_for_token(void *given)
{
  task *me = given;
  tffi_completion *list = NULL;
  const tffi_wait result = tffi_inference_wait(me->token, wakes_of(me->queue), -1, &list);
  CHECK(result == TFFI_WAIT_WOKEN || result == TFFI_WAIT_GONE);
  return NULL;
}

static void close_with_work_in_flight(void)
{
  for (uint32_t i = 0; i < ROUNDS / 10; i++) {
    enum { HELD = 2 };
    uint64_t tokens[HELD];
    task at_queue[2];
    task at_token[2];
    tffi_queue *queue = NULL;
    tffi_queue_new(&queue);
    for (uint32_t j = 0; j < HELD; j++) {
      CHECK(driver_submit(i % 2 == 0 ? "hs" : "hdr", queue, j, &tokens[j]) == NULL);
    }
    start(at_queue, 2, wait_at_queue, queue, 0);
    start(at_token, 2, wait_for_token, queue, tokens[0]);
    if (i % 3 == 0) {
      usleep(500);
    }
    tffi_queue_close(queue);
    tffi_queue_close(queue);
    join(at_queue, 2);
    join(at_token, 2);
    if (i % 2 == 0) {
      tffi_queue_release(&queue);
    }
    for (uint32_t j = 0; j < HELD; j++) {
      CHECK(tffi_inference_cancel(tokens[j]));
    }
    if (i % 2 != 0) {
      tffi_queue_release(&queue);
    }
  }
}

/* One that is closed while responses come for somebody who sleeps, or has just been woken. */
static void *wait_for_what_comes(void *given)
{
  task *me = given;
  tffi_completion *list = NULL;
  tffi_inference_wait(me->token, wakes_of(me->queue), -1, &list);
  tffi_completion_free(list);
  return NULL;
}

static void close_while_it_comes(void)
{
  for (uint32_t i = 0; i < ROUNDS; i++) {
    task sleepers[2];
    uint64_t token = 0;
    tffi_queue *queue = NULL;
    tffi_queue_new(&queue);
    CHECK(driver_submit("hd", queue, 1, &token) == NULL);
    start(sleepers, 2, wait_for_what_comes, queue, token);
    if (i % 2 == 0) {
      usleep(200);
    }
    CHECK(tffi_inference_cancel(token));
    for (uint32_t j = 0; j < i % 50; j++) {
      sched_yield();
    }
    tffi_queue_close(queue);
    join(sleepers, 2);
    tffi_queue_release(&queue);
  }
}

/* Buffers from hand to hand, and a pool whose limit changes meanwhile. */
static void *use_buffers(void *given)
{
  task *me = given;
  for (uint32_t i = 0; i < 5 * ROUNDS; i++) {
    tffi_buffer *buffer = tffi_buffer_new((size_t)(i * 977 % 40000));
    CHECK(buffer != NULL);
    memset(tffi_buffer_data(buffer), (int)i, 1);
    tffi_buffer_retain(buffer);
    tffi_buffer_release(buffer);
    tffi_buffer_release_data(tffi_buffer_data(buffer));
    if (i % 100 == 0) {
      tffi_counters seen;
      tffi_pool_set_limit(me->number % 2 == 0 ? 1 << 16 : 1 << 20);
      tffi_counters_read(&seen);
    }
  }
  return NULL;
}

static void buffers(void)
{
  task tasks[WORKERS];
  start(tasks, WORKERS, use_buffers, NULL, 0);
  join(tasks, WORKERS);
  tffi_pool_set_limit(0);
}

/* A slot that was used four billion times goes on giving tokens that are good. */
static void used_for_long(void)
{
  tffi_slot *slot = NULL;
  for (uint32_t i = 0; (slot = tffi_slot_at(i)) != NULL; i++) {
    slot->generation = UINT32_MAX - 2;
  }
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  for (uint32_t i = 0; i < 5; i++) {
    uint64_t token = 0;
    driver_seen seen = {0};
    tffi_completion *list = NULL;
    CHECK(driver_submit("i", queue, 1, &token) == NULL);
    CHECK(token > UINT32_MAX);
    CHECK(tffi_inference_wait(token, wakes_of(queue), -1, &list) == TFFI_WAIT_READY);
    driver_take(list, &seen);
    check_seen("i", &seen);
  }
  tffi_queue_release(&queue);
}

/* Forks while other threads hold what locks there are; the child lets go of what it has and goes on by itself. */
static bool forking;
static tffi_spares *all_spares;

static void *be_busy(void *given)
{
  task *me = given;
  while (__atomic_load_n(&forking, __ATOMIC_RELAXED)) {
    tffi_buffer_release(tffi_buffer_new(10000));
    uint64_t token = 0;
    uint64_t unused = 0;
    tffi_completion *list = NULL;
    driver_seen seen = {0};
    CHECK(driver_submit_spare("i", all_spares, me->queue, 1, &token) == NULL);
    CHECK(tffi_inference_wait(token, wakes_of(me->queue), -1, &list) == TFFI_WAIT_READY);
    driver_take(list, &seen);
    tffi_function *function = driver_function(1, false, &unused);
    tffi_function_release(&function);
  }
  return NULL;
}

static void child(tffi_queue *queue, tffi_buffer *buffer, tffi_spares *spares, uint64_t token)
{
  alarm(20);
  tffi_completion *list = NULL;
  tffi_buffer_release(buffer);
  CHECK(tffi_inference_wait(token, wakes_of(queue), -1, &list) == TFFI_WAIT_GONE);
  CHECK(tffi_queue_wait(queue, wakes_of(queue), -1, &list) == TFFI_WAIT_GONE);
  CHECK(!tffi_inference_cancel(token));
  tffi_queue_wake(queue);
  tffi_queue_release(&queue);
  tffi_spares_change(spares);
  tffi_spares_release(&spares);
  tffi_queue *own = NULL;
  tffi_queue_new(&own);
  driver_seen seen = {0};
  CHECK(driver_submit("i", own, 1, &token) == NULL);
  CHECK(tffi_inference_wait(token, wakes_of(own), -1, &list) == TFFI_WAIT_READY);
  driver_take(list, &seen);
  check_seen("i", &seen);
  tffi_queue_release(&own);
  uint64_t unused = 0;
  tffi_function *function = driver_function(1, false, &unused);
  tffi_function_release(&function);
  _exit(0);
}

static void forks(void)
{
  task tasks[WORKERS];
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  uint64_t token = 0;
  CHECK(driver_submit("h", queue, 1, &token) == NULL);
  tffi_spares_new(&all_spares, *tffi_model_changes());
  forking = true;
  start(tasks, WORKERS, be_busy, queue, 0);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    tffi_buffer *buffer = tffi_buffer_new(10000);
    const pid_t pid = fork();
    if (pid == 0) {
      child(queue, buffer, all_spares, token);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
    tffi_buffer_release(buffer);
  }
  __atomic_store_n(&forking, false, __ATOMIC_RELAXED);
  join(tasks, WORKERS);
  CHECK(tffi_inference_cancel(token));
  tffi_spares_release(&all_spares);
  tffi_queue_release(&queue);
}

int main(int count, char **arguments)
{
  CHECK(count == 3);
  driver_load(arguments[1]);
  const char *what = arguments[2];
  if (strcmp(what, "forks") == 0) {
    forks();
  } else {
    CHECK(strcmp(what, "threads") == 0);
    every_order();
    driver_check_empty();
    many_producers();
    driver_check_empty();
    waiters_and_cancellers();
    driver_check_empty();
    close_with_work_in_flight();
    driver_check_empty();
    close_while_it_comes();
    driver_check_empty();
    buffers();
    driver_check_empty();
    serving_again();
    driver_check_empty();
    handovers();
    driver_check_empty();
    takers();
    driver_check_empty();
    descriptors();
    early_birds();
    driver_check_empty();
    bounds();
    driver_check_empty();
    for (int i = 0; i < 4; i++) {
      functions(i % 2 != 0, i / 2 != 0);
      driver_check_empty();
    }
    stops();
    driver_check_empty();
    used_for_long();
  }
  driver_check_empty();
  fake.stop_threads();
  return 0;
}
