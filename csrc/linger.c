/* SPDX-License-Identifier: Apache-2.0 */

/*
 * When an instance of a function model is free for its next batch: not at once.
 *
 * Triton gives an idle instance the first request that comes. But where the answers to a batch have woken a thread of
 * Python's, it is about to submit more, one after the other; a callable that is called for the first of them alone waits
 * for the GIL against the very thread that makes the others. So Execute stays in the answered batch, and Triton gathers,
 * until as many inferences are with Triton as before the answers; half of them, where that is worth a call, so that the
 * others can be read and made during it. Or until as many threads wait for results as before: then no more will come.
 * Where neither comes about the worker ends it after a moment, which it spends waiting for its next batch.
 */

#include "batch.h"

enum { WORTH_A_CALL = 8 /* requests */ };

/* Who waits, and what is open, over the whole process. Atomic, and as exact as the locks of the queues make them. */
static int32_t asleep;
static int32_t open;

static struct {
  pthread_mutex_t lock;
  function_batch *first;
  uint32_t count; /* read without the lock: whether there is anything to look at */
} lingering = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void after_fork_in_child(void)
{
  lingering.first = NULL;
  lingering.count = 0;
  asleep = open = 0;
}

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&lingering.lock, after_fork_in_child);
}

static bool is_over(const function_batch *batch)
{
  return __atomic_load_n(&asleep, __ATOMIC_SEQ_CST) >= batch->linger_asleep ||
         __atomic_load_n(&open, __ATOMIC_SEQ_CST) >= batch->linger_open;
}

/* Under the lock: takes the first batch out of the list that is over, or, if there is one, `wanted` and no other. */
static function_batch *take(const function_batch *wanted)
{
  for (function_batch **at = &lingering.first; *at != NULL; at = &(*at)->next_lingering) {
    function_batch *batch = *at;
    if (wanted != NULL ? batch == wanted : is_over(batch)) {
      *at = batch->next_lingering;
      __atomic_sub_fetch(&lingering.count, 1, __ATOMIC_SEQ_CST);
      return batch;
    }
  }
  return NULL;
}

/* Whoever takes a batch out of the list has Execute return. */
static bool end(const function_batch *wanted)
{
  pthread_mutex_lock(&lingering.lock);
  function_batch *batch = take(wanted);
  pthread_mutex_unlock(&lingering.lock);
  if (batch != NULL) {
    tffi_batch_settle(batch);
  }
  return batch != NULL;
}

static void look(void)
{
  while (__atomic_load_n(&lingering.count, __ATOMIC_SEQ_CST) > 0 && end(NULL)) {
  }
}

void tffi_linger_opened(void)
{
  __atomic_add_fetch(&open, 1, __ATOMIC_SEQ_CST);
  look();
}

void tffi_linger_closed(void)
{
  __atomic_sub_fetch(&open, 1, __ATOMIC_SEQ_CST);
}

void tffi_linger_asleep(uint32_t *unwoken)
{
  *unwoken += 1;
  __atomic_add_fetch(&asleep, 1, __ATOMIC_SEQ_CST);
  look();
}

void tffi_linger_awake(uint32_t *unwoken, uint32_t count)
{
  const uint32_t woken = *unwoken < count ? *unwoken : count;
  *unwoken -= woken;
  __atomic_sub_fetch(&asleep, (int32_t)woken, __ATOMIC_SEQ_CST);
}

void tffi_linger_before(function_batch *batch)
{
  const int32_t waiting = __atomic_load_n(&asleep, __ATOMIC_SEQ_CST);
  const int64_t in_flight = (int64_t)__atomic_load_n(&tffi_live.inferences, __ATOMIC_RELAXED);
  const int64_t wanted = waiting > 0 && in_flight >= 2 * WORTH_A_CALL ? in_flight / 2 : in_flight;
  const int32_t full = batch->function->max_batch_size;
  batch->linger_open = wanted < full ? (int32_t)wanted : full;
  batch->linger_asleep = waiting > 0 ? waiting : 1;
}

void tffi_linger_begin(function_batch *batch)
{
  /* The requests of one call that could not be stacked are several batches, and Execute waits for them one by one. */
  if (batch->next_of_call != NULL || is_over(batch)) {
    tffi_batch_settle(batch);
    return;
  }
  pthread_mutex_lock(&lingering.lock);
  batch->next_lingering = lingering.first;
  lingering.first = batch;
  __atomic_add_fetch(&lingering.count, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&lingering.lock);
  look(); /* what came before the list knew of the batch */
}

void tffi_linger_end(const function_batch *batch)
{
  end(batch);
}
