/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Waking those who wait for completions: at once, or after the last of many that one thread gives. Who is woken by the
 * first would often run in place of the thread that is about to give the second, find nothing, and sleep again.
 */

#include "internal.h"

enum { MOST = 64 }; /* conditions; what is more is signalled at once */

static _Thread_local struct {
  pthread_cond_t *conditions[MOST];
  uint32_t count;
  bool holding;
} held;

void tffi_wake(pthread_cond_t *condition, bool all)
{
  uint32_t place = 0;
  while (held.holding && place < held.count && held.conditions[place] != condition) {
    place++;
  }
  if (!held.holding || place == MOST) {
    (all ? pthread_cond_broadcast : pthread_cond_signal)(condition);
  } else if (place == held.count) {
    held.conditions[held.count++] = condition;
  }
}

void tffi_wakes_hold(void)
{
  held.holding = true;
}

void tffi_wakes_let_go(void)
{
  held.holding = false;
  while (held.count > 0) {
    pthread_cond_broadcast(held.conditions[--held.count]);
  }
}
