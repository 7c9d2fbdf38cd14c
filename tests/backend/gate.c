/* SPDX-License-Identifier: Apache-2.0 */

/* The line at the gate: a list of places, a lock, and one condition for everybody. */

#define _GNU_SOURCE

#include "gate.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

enum { CANCEL_POLL_MS = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static struct gate_place *first;
static bool is_open;

/* The waits end at moments of the monotonic clock, which a static initialiser cannot choose. */
__attribute__((constructor)) static void gate_start(void)
{
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

static struct timespec in_ms(int ms)
{
  struct timespec when;
  clock_gettime(CLOCK_MONOTONIC, &when);
  when.tv_sec += ms / 1000;
  when.tv_nsec += (long)(ms % 1000) * 1000000L;
  if (when.tv_nsec >= 1000000000L) {
    when.tv_sec += 1;
    when.tv_nsec -= 1000000000L;
  }
  return when;
}

static int waiting_locked(void)
{
  int count = 0;
  for (const struct gate_place *place = first; place != NULL; place = place->next)
    count++;
  return count;
}

static int release_locked(int count)
{
  int released = 0;
  while (first != NULL && released != count) {
    first->released = true;
    first = first->next;
    released++;
  }
  pthread_cond_broadcast(&changed);
  return released;
}

static void leave_locked(const struct gate_place *place)
{
  struct gate_place **link = &first;
  while (*link != place)
    link = &(*link)->next;
  *link = place->next;
}

void gate_enter(struct gate_place *place)
{
  pthread_mutex_lock(&lock);
  place->next = NULL;
  place->released = is_open;
  if (!is_open) {
    struct gate_place **last = &first;
    while (*last != NULL)
      last = &(*last)->next;
    *last = place;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
}

bool gate_pass(struct gate_place *place, bool (*is_cancelled)(void *), void *userp)
{
  pthread_mutex_lock(&lock);
  while (!place->released) {
    if (is_cancelled == NULL) {
      pthread_cond_wait(&changed, &lock);
    } else if (is_cancelled(userp)) {
      leave_locked(place);
      pthread_mutex_unlock(&lock);
      return false;
    } else {
      struct timespec when = in_ms(CANCEL_POLL_MS);
      pthread_cond_timedwait(&changed, &lock, &when);
    }
  }
  pthread_mutex_unlock(&lock);
  return true;
}

void tffitest_hold(int closed)
{
  pthread_mutex_lock(&lock);
  is_open = closed == 0;
  if (is_open)
    release_locked(-1);
  pthread_mutex_unlock(&lock);
}

int tffitest_release(int count)
{
  pthread_mutex_lock(&lock);
  int released = release_locked(count);
  pthread_mutex_unlock(&lock);
  return released;
}

int tffitest_waiting(void)
{
  pthread_mutex_lock(&lock);
  int count = waiting_locked();
  pthread_mutex_unlock(&lock);
  return count;
}

int tffitest_wait(int count, int timeout_ms)
{
  struct timespec when = in_ms(timeout_ms);
  pthread_mutex_lock(&lock);
  while (waiting_locked() < count && pthread_cond_timedwait(&changed, &lock, &when) == 0) {
  }
  int waiting = waiting_locked();
  pthread_mutex_unlock(&lock);
  return waiting;
}
