/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests of Triton's that have served and wait to serve again: to make one and to delete it, on another thread, is
 * half of what an inference costs. A request holds on to the model that it was made for. So whatever may change the
 * models lets go of all of them, and those that were made before its end are not kept.
 */

#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { FEW = 16, MOST = 4096 /* of one kind: what is in flight beyond is deleted */ };

/* A block of requests that wait; the last one in is the first out, for it is in the caches yet. */
typedef struct shelf {
  struct shelf *next; /* among those to be emptied */
  uint32_t count;
  uint32_t room;
  struct TRITONSERVER_InferenceRequest *requests[];
} shelf;

/* Those of one kind: alike in all but the addresses of their inputs. Everything is under the lock. */
struct tffi_spares {
  tffi_spares *next, *previous;
  shelf *shelf;        /* NULL: none has waited yet */
  uint64_t generation; /* how often tffi_spares_change was called */
  uint64_t changes;    /* the count as of which it is known that they may serve again */
  uint32_t references; /* Python's, and one for each inference in flight */
  uint32_t forks;
  bool is_owned; /* by Python: nobody takes what waits otherwise */
};

static struct {
  pthread_mutex_t lock;
  tffi_spares *first;
  uint64_t changes; /* written under the lock, read without */
  uint32_t forbidden; /* how many calls are changing models now, and one for ever where has_python */
  bool has_python;    /* Triton's python backend was seen: its models may change others, of which nobody learns */
} all = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP};

static void after_fork_in_child(void)
{
  all.first = NULL;
  all.forbidden = all.has_python ? 1 : 0;
}

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&all.lock, after_fork_in_child);
}

/* Not under the lock: with the last request of a model the model goes. */
static void empty(shelf *shelves)
{
  while (shelves != NULL) {
    shelf *next = shelves->next;
    for (uint32_t i = 0; i < shelves->count; i++) {
      tffi_discard(TRITONSERVER_InferenceRequestDelete(shelves->requests[i]));
    }
    tffi_count(&tffi_live.spares, -(int64_t)shelves->count);
    free(shelves);
    shelves = next;
  }
}

/* Under the lock: takes the shelf away, with those taken before behind it. */
static shelf *take_shelf(tffi_spares *spares, shelf *others)
{
  shelf *taken = spares->shelf;
  if (taken == NULL) {
    return others;
  }
  spares->shelf = NULL;
  taken->next = others;
  return taken;
}

static bool put_on_shelf(tffi_spares *spares, struct TRITONSERVER_InferenceRequest *request)
{
  shelf *to = spares->shelf;
  if (to == NULL || to->count == to->room) {
    const uint32_t room = to == NULL ? FEW : 2 * to->room;
    shelf *larger = room > MOST ? NULL : realloc(to, sizeof(*to) + room * sizeof(struct TRITONSERVER_InferenceRequest *));
    if (larger == NULL) {
      return false;
    }
    if (to == NULL) {
      larger->count = 0;
    }
    larger->room = room;
    spares->shelf = to = larger;
  }
  to->requests[to->count++] = request;
  tffi_count(&tffi_live.spares, 1);
  return true;
}

/* Under the lock: one reference less; true: it was the last, and the memory is the caller's to free. */
static bool drop_reference(tffi_spares *spares)
{
  spares->references -= 1;
  if (spares->references > 0) {
    return false;
  }
  if (spares->next != NULL) {
    spares->next->previous = spares->previous;
  }
  if (spares->previous != NULL) {
    spares->previous->next = spares->next;
  } else {
    all.first = spares->next;
  }
  return true;
}

void tffi_spares_new(tffi_spares **spares, uint64_t changes)
{
  tffi_spares *made = calloc(1, sizeof(*made));
  *spares = made;
  if (made == NULL) {
    return;
  }
  made->references = 1;
  made->is_owned = true;
  made->forks = tffi_forks;
  made->changes = changes;
  pthread_mutex_lock(&all.lock);
  made->next = all.first;
  if (made->next != NULL) {
    made->next->previous = made;
  }
  all.first = made;
  pthread_mutex_unlock(&all.lock);
}

void tffi_spares_release(tffi_spares **spares)
{
  tffi_spares *own = *spares;
  *spares = NULL;
  if (own == NULL || own->forks != tffi_forks) {
    return;
  }
  pthread_mutex_lock(&all.lock);
  own->is_owned = false;
  shelf *taken = take_shelf(own, NULL);
  const bool free_it = drop_reference(own);
  pthread_mutex_unlock(&all.lock);
  if (free_it) {
    free(own);
  }
  empty(taken);
}

void tffi_spares_change(tffi_spares *spares)
{
  if (spares->forks != tffi_forks) {
    return;
  }
  pthread_mutex_lock(&all.lock);
  spares->generation += 1;
  shelf *taken = take_shelf(spares, NULL);
  pthread_mutex_unlock(&all.lock);
  empty(taken);
}

struct TRITONSERVER_InferenceRequest *tffi_spares_take(tffi_spares *spares, uint64_t *generation)
{
  struct TRITONSERVER_InferenceRequest *request = NULL;
  pthread_mutex_lock(&all.lock);
  spares->references += 1;
  *generation = spares->generation;
  shelf *from = spares->shelf;
  if (from != NULL && from->count > 0) {
    request = from->requests[--from->count];
    tffi_count(&tffi_live.spares, -1);
  }
  pthread_mutex_unlock(&all.lock);
  return request;
}

void tffi_spares_put(tffi_spares *spares, struct TRITONSERVER_InferenceRequest *request, uint64_t generation)
{
  pthread_mutex_lock(&all.lock);
  if (request != NULL && spares->is_owned && all.forbidden == 0 && spares->changes == all.changes &&
      spares->generation == generation && put_on_shelf(spares, request)) {
    request = NULL;
  }
  const bool free_it = drop_reference(spares);
  pthread_mutex_unlock(&all.lock);
  if (free_it) {
    free(spares);
  }
  if (request != NULL) {
    tffi_discard(TRITONSERVER_InferenceRequestDelete(request));
  }
}

void tffi_spares_forbid(void)
{
  shelf *taken = NULL;
  pthread_mutex_lock(&all.lock);
  all.forbidden += 1;
  __atomic_store_n(&all.changes, all.changes + 1, __ATOMIC_RELEASE);
  for (tffi_spares *spares = all.first; spares != NULL; spares = spares->next) {
    taken = take_shelf(spares, taken);
  }
  pthread_mutex_unlock(&all.lock);
  empty(taken);
}

const uint64_t *tffi_model_changes(void)
{
  return &all.changes;
}

/* For dl_iterate_phdr. */
static int is_python_backend(struct dl_phdr_info *info, size_t size, void *unused)
{
  (void)size;
  (void)unused;
  return info->dlpi_name != NULL && strstr(info->dlpi_name, "libtriton_python.so") != NULL;
}

void tffi_spares_allow(void)
{
  const bool is_seen = dl_iterate_phdr(is_python_backend, NULL) != 0;
  pthread_mutex_lock(&all.lock);
  __atomic_store_n(&all.changes, all.changes + 1, __ATOMIC_RELEASE);
  if (!is_seen || all.has_python) {
    all.forbidden -= 1;
  }
  all.has_python = all.has_python || is_seen;
  pthread_mutex_unlock(&all.lock);
}
