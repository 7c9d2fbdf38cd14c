/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The memory of slots, which is reused but never given back, and the tokens that name inferences. A token is the
 * number of a slot and how often that was used; one of which either does not fit any more is stale.
 */

#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
  SLOTS_PER_CHUNK = 256,
  CHUNKS = 4096, /* a million inferences in flight */
  LENDING = 256,
  INDEX_BITS = 20
};

static struct {
  pthread_mutex_t lock;
  tffi_slot *chunks[CHUNKS];
  uint32_t chunk_count; /* written under the lock, read without */
  tffi_slot *idle;
  tffi_slot *lending[LENDING]; /* by the request */
} store = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP};

uint32_t tffi_forks;

static void after_fork_in_child(void)
{
  tffi_forks += 1;
  store.idle = NULL;
  memset(store.lending, 0, sizeof(store.lending));
}

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&store.lock, after_fork_in_child);
}

static bool add_chunk(void)
{
  const uint32_t count = store.chunk_count;
  if (count == CHUNKS) {
    return false;
  }
  tffi_slot *chunk = calloc(SLOTS_PER_CHUNK, sizeof(*chunk));
  if (chunk == NULL) {
    return false;
  }
  for (uint32_t i = SLOTS_PER_CHUNK; i-- > 0;) {
    tffi_slot *slot = &chunk[i];
    tffi_mutex_init(&slot->request_lock);
    tffi_cond_init(&slot->arrived);
    slot->index = count * SLOTS_PER_CHUNK + i;
    slot->free_next = store.idle;
    store.idle = slot;
  }
  store.chunks[count] = chunk;
  __atomic_store_n(&store.chunk_count, count + 1, __ATOMIC_RELEASE);
  return true;
}

tffi_slot *tffi_slot_new(void)
{
  tffi_slot *slot = NULL;
  pthread_mutex_lock(&store.lock);
  if (store.idle != NULL || add_chunk()) {
    slot = store.idle;
    store.idle = slot->free_next;
  }
  pthread_mutex_unlock(&store.lock);
  return slot;
}

void tffi_slot_recycle(tffi_slot *slot)
{
  pthread_mutex_lock(&store.lock);
  slot->free_next = store.idle;
  store.idle = slot;
  pthread_mutex_unlock(&store.lock);
}

uint64_t tffi_slot_next_token(tffi_slot *slot)
{
  __atomic_store_n(&slot->forks, tffi_forks, __ATOMIC_RELAXED);
  /* Generations begin at 1, so no token is 0. */
  slot->generation += 1;
  return slot->generation << INDEX_BITS | slot->index;
}

tffi_slot *tffi_slot_at(uint32_t index)
{
  if (index / SLOTS_PER_CHUNK >= __atomic_load_n(&store.chunk_count, __ATOMIC_ACQUIRE)) {
    return NULL;
  }
  return &store.chunks[index / SLOTS_PER_CHUNK][index % SLOTS_PER_CHUNK];
}

tffi_slot *tffi_slot_find(uint64_t token)
{
  tffi_slot *slot = tffi_slot_at((uint32_t)(token & ((1U << INDEX_BITS) - 1)));
  if (slot == NULL || __atomic_load_n(&slot->forks, __ATOMIC_RELAXED) != tffi_forks) {
    return NULL;
  }
  return slot;
}

/* Of a request, which lies on a multiple of 16. */
static tffi_slot **lending_of(const void *request)
{
  return &store.lending[((uintptr_t)request >> 4) % LENDING];
}

void tffi_slot_lend(tffi_slot *slot, const void *request)
{
  tffi_slot **first = lending_of(request);
  pthread_mutex_lock(&store.lock);
  slot->lent_as = request;
  slot->lent_next = *first;
  *first = slot;
  pthread_mutex_unlock(&store.lock);
}

void tffi_slot_lend_no_more(tffi_slot *slot)
{
  if (slot->lent_as == NULL) {
    return;
  }
  pthread_mutex_lock(&store.lock);
  for (tffi_slot **at = lending_of(slot->lent_as); *at != NULL; at = &(*at)->lent_next) {
    if (*at == slot) {
      *at = slot->lent_next;
      break;
    }
  }
  slot->lent_as = NULL;
  pthread_mutex_unlock(&store.lock);
}

bool tffi_slot_find_lender(const void *request, const tffi_queue **queue, uint64_t *key)
{
  pthread_mutex_lock(&store.lock);
  const tffi_slot *slot = *lending_of(request);
  while (slot != NULL && slot->lent_as != request) {
    slot = slot->lent_next;
  }
  if (slot != NULL) {
    *queue = slot->queue;
    *key = slot->key;
  }
  pthread_mutex_unlock(&store.lock);
  return slot != NULL;
}
