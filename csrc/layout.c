/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Numbers for the layouts of responses (what the outputs are called, their types and shapes) and for what else they
 * say, their parameters. A model's responses are mostly alike, so a reader who remembers what a number means need not
 * look at each again.
 */

#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
  ENTRIES = 256 /* layouts whose numbers are known at a time; a new one drives out one of the same place */
};

static struct {
  pthread_mutex_t lock;
  uint64_t last; /* numbers are never used again */
  struct {
    uint64_t number;
    uint64_t *words;
    size_t count;
  } entries[ENTRIES];
} known = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP};

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&known.lock, NULL);
}

static size_t place_of(const uint64_t *words, size_t count)
{
  uint64_t hash = count;
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
  }
  return (size_t)(hash >> 56);
}

_Static_assert(ENTRIES == 1 << (64 - 56), "the hash is cut to a place among the entries");

uint64_t tffi_layout_number(const uint64_t *words, size_t count)
{
  const size_t place = place_of(words, count);
  const size_t size = count * sizeof(*words);
  pthread_mutex_lock(&known.lock);
  uint64_t number = known.entries[place].number;
  if (number == 0 || known.entries[place].count != count || memcmp(known.entries[place].words, words, size) != 0) {
    uint64_t *copy = malloc(size);
    number = 0;
    if (copy != NULL) {
      number = ++known.last;
      free(known.entries[place].words);
      known.entries[place].number = number;
      known.entries[place].words = memcpy(copy, words, size);
      known.entries[place].count = count;
    }
  }
  pthread_mutex_unlock(&known.lock);
  return number;
}
