/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What happens to locks when the process forks: they are held meanwhile, so that none is left locked in the child by a
 * thread that is not there. A child may drop arrays, and have a server of its own.
 */

#include <stdlib.h>

#include "internal.h"

enum { MOST = 16 };

static struct {
  pthread_mutex_t *lock;
  void (*in_child)(void);
} held[MOST];
static size_t count;

static void before_fork(void)
{
  for (size_t i = count; i-- > 0;) {
    pthread_mutex_lock(held[i].lock);
  }
}

static void after_fork_in_parent(void)
{
  for (size_t i = 0; i < count; i++) {
    pthread_mutex_unlock(held[i].lock);
  }
}

static void after_fork_in_child(void)
{
  for (size_t i = 0; i < count; i++) {
    if (held[i].in_child != NULL) {
      held[i].in_child();
    }
  }
  after_fork_in_parent();
}

void tffi_hold_at_fork(pthread_mutex_t *lock, void (*in_child)(void))
{
  if (count == MOST) {
    abort(); /* the library is just being loaded: whoever adds a lock too many learns it at once */
  }
  if (count == 0) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  }
  held[count].lock = lock;
  held[count].in_child = in_child;
  count += 1;
}
