/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Completion queues and what waits in them. Triton's threads push, Python's threads wait and take.
 *
 * Each slot has its own list of completions, so a thread can wait for one inference without seeing the others; a
 * queue links the slots that have completions and no one asleep for them, for those who take whatever is ready.
 *
 * Slots (slot.c) and queues live in memory that is reused but never given back. That makes three things safe without
 * reference counts: looking at a stale token, signalling after unlocking, and an inference that outlives its queue.
 */

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "internal.h"

struct tffi_queue {
  pthread_mutex_t lock;
  pthread_cond_t arrived; /* who sleeps in tffi_queue_wait, `sleepers` of them */
  tffi_slot *ready_first, *ready_last;
  uint32_t ready; /* length of that list; read without the lock by the glance */
  uint32_t sleepers;
  uint32_t unwoken; /* as a slot's */
  uint32_t wakes; /* calls of tffi_queue_wake; read without the lock by those about to wait */
  uint32_t references;
  int fd; /* -1 until asked for */
  bool fd_is_set;
  bool is_open;   /* until tffi_queue_close; then completions are freed as they come */
  uint32_t forks; /* as the process's when it was made */
  tffi_queue *free_next;
};

static struct {
  pthread_mutex_t lock;
  tffi_queue *queues;
} idle = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP};

static void after_fork_in_child(void)
{
  idle.queues = NULL;
}

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&idle.lock, after_fork_in_child);
}

void tffi_queue_new(tffi_queue **place)
{
  pthread_mutex_lock(&idle.lock);
  tffi_queue *queue = idle.queues;
  if (queue != NULL) {
    idle.queues = queue->free_next;
  }
  pthread_mutex_unlock(&idle.lock);
  if (queue == NULL) {
    queue = calloc(1, sizeof(*queue));
    if (queue == NULL) {
      return;
    }
    tffi_mutex_init(&queue->lock);
    tffi_cond_init(&queue->arrived);
  }
  pthread_mutex_lock(&queue->lock);
  queue->references = 1;
  queue->fd = -1;
  queue->fd_is_set = false;
  queue->is_open = true;
  queue->forks = tffi_forks;
  pthread_mutex_unlock(&queue->lock);
  tffi_count(&tffi_live.queues, 1);
  *place = queue;
}

/* Under the queue's lock, which it unlocks. */
static void unlock_and_drop_reference(tffi_queue *queue)
{
  const bool last = --queue->references == 0;
  int fd = -1;
  if (last) {
    fd = queue->fd;
    queue->fd = -1;
  }
  pthread_mutex_unlock(&queue->lock);
  if (!last) {
    return;
  }
  if (fd >= 0) {
    close(fd);
  }
  pthread_mutex_lock(&idle.lock);
  queue->free_next = idle.queues;
  idle.queues = queue;
  pthread_mutex_unlock(&idle.lock);
}

tffi_slot *tffi_slot_take(tffi_queue *queue, uint64_t key)
{
  tffi_completion *final = tffi_completion_new();
  if (final == NULL) {
    return NULL;
  }
  tffi_slot *slot = tffi_slot_new();
  if (slot == NULL) {
    tffi_completion_free(final);
    return NULL;
  }
  final->key = key;
  slot->final = final;
  slot->key = key;
  pthread_mutex_lock(&slot->request_lock);
  slot->cancelled = false;
  pthread_mutex_unlock(&slot->request_lock);
  slot->lost = slot->overflowed = false;
  slot->max_pending = slot->unread = 0;
  slot->pending = 2;
  slot->pushed = 0;
  slot->first = slot->last = NULL;
  slot->is_ready = slot->done = false;
  const uint64_t token = tffi_slot_next_token(slot);

  pthread_mutex_lock(&queue->lock);
  queue->references += 1;
  __atomic_store_n(&slot->queue, queue, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->token, token, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&queue->lock);
  tffi_count(&tffi_live.inferences, 1);
  return slot;
}

/* Under the queue's lock: the inference is over. The caller drops the queue's reference, and recycles if told so. */
static bool end_slot(tffi_slot *slot)
{
  __atomic_store_n(&slot->token, 0, __ATOMIC_RELEASE);
  slot->done = false;
  tffi_count(&tffi_live.inferences, -1);
  return slot->sleepers == 0; /* otherwise the last sleeper recycles it */
}

void tffi_slot_give_back(tffi_slot *slot)
{
  tffi_queue *queue = slot->queue;
  tffi_completion_free(slot->final);
  slot->final = NULL;
  pthread_mutex_lock(&queue->lock);
  tffi_linger_awake(&slot->unwoken, slot->sleepers);
  const bool free_it = end_slot(slot);
  unlock_and_drop_reference(queue);
  if (free_it) {
    tffi_slot_recycle(slot);
  } else {
    tffi_wake(&slot->arrived, true);
  }
}

/* The slot of a live token with its queue locked, or NULL. */
static tffi_slot *lock_slot(uint64_t token, tffi_queue **locked)
{
  tffi_slot *slot = tffi_slot_find(token);
  if (slot == NULL || token == 0 || __atomic_load_n(&slot->token, __ATOMIC_ACQUIRE) != token) {
    return NULL;
  }
  tffi_queue *queue = __atomic_load_n(&slot->queue, __ATOMIC_RELAXED);
  pthread_mutex_lock(&queue->lock);
  /* A token is set and cleared under the lock of its own queue: equal here means that this is the right lock. */
  if (__atomic_load_n(&slot->token, __ATOMIC_ACQUIRE) != token ||
      __atomic_load_n(&slot->queue, __ATOMIC_RELAXED) != queue) {
    pthread_mutex_unlock(&queue->lock);
    return NULL;
  }
  *locked = queue;
  return slot;
}

static void link_ready(tffi_queue *queue, tffi_slot *slot)
{
  slot->is_ready = true;
  slot->ready_next = NULL;
  slot->ready_previous = queue->ready_last;
  if (queue->ready_last != NULL) {
    queue->ready_last->ready_next = slot;
  } else {
    queue->ready_first = slot;
  }
  queue->ready_last = slot;
  __atomic_store_n(&queue->ready, queue->ready + 1, __ATOMIC_RELAXED);
}

static void unlink_ready(tffi_queue *queue, tffi_slot *slot)
{
  slot->is_ready = false;
  if (slot->ready_previous != NULL) {
    slot->ready_previous->ready_next = slot->ready_next;
  } else {
    queue->ready_first = slot->ready_next;
  }
  if (slot->ready_next != NULL) {
    slot->ready_next->ready_previous = slot->ready_previous;
  } else {
    queue->ready_last = slot->ready_previous;
  }
  __atomic_store_n(&queue->ready, queue->ready - 1, __ATOMIC_RELAXED);
}

void tffi_slot_push(tffi_slot *slot, tffi_completion *completion)
{
  tffi_queue *queue = slot->queue;
  completion->next = NULL;
  pthread_mutex_lock(&queue->lock);
  if (!queue->is_open) {
    const bool free_it = completion->done && end_slot(slot);
    if (completion->done) {
      /* What came before the closing for somebody who has not woken yet: he finds that the token is stale. */
      completion->next = slot->first;
      slot->first = slot->last = NULL;
      /* Who sleeps here still was woken by the closing and is on his way out; he recycles the slot. */
      unlock_and_drop_reference(queue);
    } else {
      pthread_mutex_unlock(&queue->lock);
    }
    if (free_it) {
      tffi_slot_recycle(slot);
    }
    tffi_completion_free(completion);
    return;
  }
  if (slot->last != NULL) {
    slot->last->next = completion;
  } else {
    slot->first = completion;
  }
  slot->last = completion;
  slot->done = completion->done;
  completion->number = slot->pushed++;
  completion->whole = completion->done && completion->number == 0 && completion->has_response &&
                      completion->error_message == NULL;

  const uint32_t slot_sleepers = slot->sleepers;
  bool wake_queue = false;
  tffi_linger_awake(&slot->unwoken, slot_sleepers);
  if (slot_sleepers == 0) {
    if (!slot->is_ready) {
      link_ready(queue, slot);
    }
    wake_queue = queue->sleepers > 0;
    tffi_linger_awake(&queue->unwoken, 1);
    if (queue->fd >= 0 && !queue->fd_is_set) {
      /* Under the lock, because the descriptor closes with the queue. It cannot block: the counter is 0. */
      queue->fd_is_set = eventfd_write(queue->fd, 1) == 0;
    }
  }
  pthread_mutex_unlock(&queue->lock);
  /* After unlocking, or the woken thread would at once sleep on the lock; neither condition is ever destroyed. */
  if (slot_sleepers > 0) {
    tffi_wake(&slot->arrived, slot_sleepers > 1);
  } else if (wake_queue) {
    tffi_wake(&queue->arrived, false);
  }
}

/* Under the queue's lock, when nothing is ready any more: an event loop would go on looking for it. */
static void clear_fd(tffi_queue *queue)
{
  if (queue->fd_is_set) {
    eventfd_t ignored;
    (void)eventfd_read(queue->fd, &ignored);
    queue->fd_is_set = false;
  }
}

/* Under the queue's lock: detaches the slot's list and says whether the inference is over with it. */
static bool detach(tffi_queue *queue, tffi_slot *slot, tffi_completion **first, tffi_completion **last)
{
  *first = slot->first;
  *last = slot->last;
  slot->first = slot->last = NULL;
  if (slot->is_ready) {
    unlink_ready(queue, slot);
    if (queue->ready_first == NULL) {
      clear_fd(queue);
    }
  }
  return slot->done;
}

/* Under the queue's lock. The references of inferences that are over go here too; the caller's keeps the queue. */
static tffi_completion *take_ready(tffi_queue *queue)
{
  tffi_completion *list = NULL;
  tffi_completion **end = &list;
  while (queue->ready_first != NULL) {
    tffi_slot *slot = queue->ready_first;
    tffi_completion *first = NULL;
    tffi_completion *last = NULL;
    const bool over = detach(queue, slot, &first, &last);
    *end = first;
    end = &last->next; /* there is one: only slots that have completions are in that list */
    if (over) {
      queue->references -= 1;
      if (end_slot(slot)) {
        tffi_slot_recycle(slot);
      }
    }
  }
  return list;
}

/* Sleeps until signalled or, where there is one, until the deadline; false: the deadline has passed. */
static bool sleep_until(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *deadline, uint32_t *unwoken)
{
  tffi_linger_asleep(unwoken);
  const int result = deadline == NULL ? pthread_cond_wait(cond, lock) : pthread_cond_timedwait(cond, lock, deadline);
  tffi_linger_awake(unwoken, 1);
  return result != ETIMEDOUT;
}

tffi_wait tffi_queue_wait(tffi_queue *queue, uint32_t wakes, int64_t timeout_ns, tffi_completion **completions)
{
  struct timespec at = {0, 0};
  const struct timespec *deadline = NULL;
  *completions = NULL;
  if (queue->forks != tffi_forks) {
    return TFFI_WAIT_GONE;
  }
  pthread_mutex_lock(&queue->lock);
  bool in_time = timeout_ns != 0;
  if (timeout_ns > 0 && queue->ready_first == NULL) {
    at = tffi_deadline(timeout_ns);
    deadline = &at;
  }
  while (queue->ready_first == NULL && queue->wakes == wakes && in_time && queue->is_open) {
    queue->sleepers += 1;
    in_time = sleep_until(&queue->arrived, &queue->lock, deadline, &queue->unwoken);
    queue->sleepers -= 1;
  }
  tffi_wait result = TFFI_WAIT_READY;
  if (queue->ready_first != NULL) {
    *completions = take_ready(queue);
  } else if (!queue->is_open) {
    result = TFFI_WAIT_GONE;
  } else {
    result = queue->wakes != wakes ? TFFI_WAIT_WOKEN : TFFI_WAIT_TIMEOUT;
  }
  pthread_mutex_unlock(&queue->lock);
  return result;
}

tffi_wait tffi_inference_wait(uint64_t token, uint32_t wakes, int64_t timeout_ns, tffi_completion **completions)
{
  struct timespec at = {0, 0};
  const struct timespec *deadline = NULL;
  tffi_queue *queue = NULL;
  *completions = NULL;
  tffi_slot *slot = lock_slot(token, &queue);
  if (slot == NULL) {
    return TFFI_WAIT_GONE;
  }
  bool in_time = timeout_ns != 0;
  if (timeout_ns > 0 && slot->first == NULL) {
    at = tffi_deadline(timeout_ns);
    deadline = &at;
  }
  while (slot->token == token && slot->first == NULL && queue->wakes == wakes && in_time && queue->is_open) {
    slot->sleepers += 1;
    in_time = sleep_until(&slot->arrived, &queue->lock, deadline, &slot->unwoken);
    slot->sleepers -= 1;
  }
  if (slot->token != token) {
    /* Another thread took the last completion meanwhile. */
    const bool free_it = slot->sleepers == 0;
    pthread_mutex_unlock(&queue->lock);
    if (free_it) {
      tffi_slot_recycle(slot);
    }
    return TFFI_WAIT_GONE;
  }
  if (slot->first == NULL) {
    const tffi_wait result = queue->wakes != wakes || !queue->is_open ? TFFI_WAIT_WOKEN : TFFI_WAIT_TIMEOUT;
    pthread_mutex_unlock(&queue->lock);
    return result;
  }
  tffi_completion *last = NULL;
  if (detach(queue, slot, completions, &last)) {
    const bool free_it = end_slot(slot);
    unlock_and_drop_reference(queue);
    if (free_it) {
      tffi_slot_recycle(slot);
    }
  } else {
    pthread_mutex_unlock(&queue->lock);
  }
  return TFFI_WAIT_READY;
}

void tffi_inference_consume(uint64_t token)
{
  tffi_queue *queue = NULL;
  tffi_slot *slot = lock_slot(token, &queue);
  if (slot != NULL) {
    __atomic_sub_fetch(&slot->unread, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&queue->lock);
  }
}

bool tffi_inference_is_over(uint64_t token)
{
  tffi_queue *queue = NULL;
  const tffi_slot *slot = lock_slot(token, &queue);
  if (slot == NULL) {
    return true;
  }
  const bool over = slot->done;
  pthread_mutex_unlock(&queue->lock);
  return over;
}

/* Under the queue's lock. */
static void wake_all(tffi_queue *queue)
{
  __atomic_store_n(&queue->wakes, queue->wakes + 1, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&queue->arrived);
  tffi_slot *slot = NULL;
  for (uint32_t i = 0; (slot = tffi_slot_at(i)) != NULL; i++) {
    if (__atomic_load_n(&slot->queue, __ATOMIC_RELAXED) == queue) {
      pthread_cond_broadcast(&slot->arrived);
    }
  }
}

void tffi_queue_wake(tffi_queue *queue)
{
  if (queue->forks != tffi_forks) {
    return;
  }
  pthread_mutex_lock(&queue->lock);
  wake_all(queue);
  pthread_mutex_unlock(&queue->lock);
}

void tffi_queue_close(tffi_queue *queue)
{
  if (queue->forks != tffi_forks) {
    return;
  }
  pthread_mutex_lock(&queue->lock);
  tffi_completion *list = take_ready(queue);
  const bool was_open = queue->is_open;
  queue->is_open = false;
  wake_all(queue);
  pthread_mutex_unlock(&queue->lock);
  if (was_open) {
    tffi_count(&tffi_live.queues, -1);
  }
  tffi_completion_free(list);
}

void tffi_queue_release(tffi_queue **place)
{
  tffi_queue *queue = *place;
  if (queue == NULL || queue->forks != tffi_forks) {
    return;
  }
  tffi_queue_close(queue);
  pthread_mutex_lock(&queue->lock);
  unlock_and_drop_reference(queue);
}

const uint32_t *tffi_queue_ready(const tffi_queue *queue)
{
  return &queue->ready;
}

const uint32_t *tffi_queue_wakes(const tffi_queue *queue)
{
  return &queue->wakes;
}

int tffi_queue_fd(tffi_queue *queue)
{
  if (queue->forks != tffi_forks) {
    return -1;
  }
  pthread_mutex_lock(&queue->lock);
  if (queue->fd < 0) {
    queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue->fd >= 0 && queue->ready_first != NULL) {
      queue->fd_is_set = eventfd_write(queue->fd, 1) == 0;
    }
  }
  const int fd = queue->fd;
  pthread_mutex_unlock(&queue->lock);
  return fd;
}
