/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Exceptions that nobody catches, and that are not to end the process.
 *
 * Triton's python backend shares memory with its stub processes, and locks it. A stub that is killed in the very moment
 * in which it holds that lock never gives it back. After ten seconds the thread of Triton's that waits for it throws an
 * exception of Boost's which nothing there catches, so the C++ runtime is about to abort. This handler comes before:
 * it keeps that thread for ever. The model is lost, as any whose stub was killed, and everything else goes on.
 *
 * Where a model is let go Triton starts a thread for that, on whichever thread is the last to have used the model, and
 * catches nothing where there can be no more threads. So who makes it let one go asks before.
 */

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

typedef void (*terminate_handler)(void);

/* What the C++ ABI says of a type: a pointer to its functions, then its name. */
typedef struct {
  const void *functions;
  const char *name;
} type_info;

static const char lost_lock[] = "N5boost12interprocess14lock_exceptionE";

static const type_info *(*current_exception_type)(void);
static terminate_handler previous;

static _Noreturn void keep_this_thread(void)
{
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL); /* signals are for threads that can do something about them */
  for (;;) {
    pause();
  }
}

/*
 * Called by the C++ runtime, on whichever thread has thrown, with whatever locks it holds. Must not return. Everything
 * but that one exception goes to the handler from before.
 */
static void on_terminate(void)
{
  const type_info *type = current_exception_type();
  if (type != NULL && strcmp(type->name, lost_lock) == 0) {
    tffi_discard(TRITONSERVER_LogMessage(
        TRITONSERVER_LOG_ERROR, __FILE__, __LINE__,
        "a process of the python backend has died with the lock of the memory that it shares with this one; the "
        "requests that it had get no answer, and its model is not unloaded: load it anew"));
    keep_this_thread();
  }
  previous();
  abort();
}

/* The address of a function, which C does not convert to. */
static void find(void *library, const char *name, void *function)
{
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof(symbol));
}

/* Waits until whoever has started it is through with starting others. */
static void *stay(void *starting)
{
  pthread_mutex_lock(starting);
  pthread_mutex_unlock(starting);
  return NULL;
}

bool tffi_can_start_threads(uint32_t count)
{
  enum { MOST = 16 };
  pthread_t threads[MOST];
  pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
  const uint32_t wanted = count < MOST ? count : MOST;
  uint32_t started = 0;
  pthread_mutex_lock(&starting);
  while (started < wanted && pthread_create(&threads[started], NULL, stay, &starting) == 0) {
    started += 1;
  }
  pthread_mutex_unlock(&starting);
  for (uint32_t i = 0; i < started; i++) {
    pthread_join(threads[i], NULL);
  }
  pthread_mutex_destroy(&starting);
  return started == wanted;
}

void tffi_terminate_handle(void *library)
{
  terminate_handler (*set_terminate)(terminate_handler);
  find(library, "_ZSt13set_terminatePFvvE", &set_terminate);
  find(library, "__cxa_current_exception_type", &current_exception_type);
  if (set_terminate != NULL && current_exception_type != NULL) { /* or there is no C++ in it */
    previous = set_terminate(on_terminate);
  }
}
