/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Things of several sizes one behind the other in a block of memory. What does not fit any more is only measured, so that
 * the same code goes over them a second time, with room enough.
 */

#ifndef TRITONFFI_PLACE_H
#define TRITONFFI_PLACE_H

#include <stdint.h>
#include <string.h>

typedef struct {
  char *base; /* NULL: there is no block yet, and `size` is 0 */
  size_t size;
  size_t used;
} layout;

/* Room for `size` bytes, aligned for all that is laid out here; NULL: it does not fit. */
static inline void *place(layout *to, size_t size)
{
  to->used = (to->used + sizeof(int64_t) - 1) / sizeof(int64_t) * sizeof(int64_t);
  void *at = to->used + size <= to->size ? to->base + to->used : NULL;
  to->used += size;
  return at;
}

/* A copy of a text, of an empty one where Triton says NULL. */
static inline const char *place_text(layout *to, const char *text)
{
  if (text == NULL) {
    text = "";
  }
  const size_t size = strlen(text) + 1;
  char *at = place(to, size);
  return at == NULL ? NULL : memcpy(at, text, size);
}

#endif
