/* SPDX-License-Identifier: Apache-2.0 */

/* What the files of the driver `threads` share: its threads, and what they do. */

#ifndef THREADS_H
#define THREADS_H

#include "driver.h"

enum { WORKERS = 4, ROUNDS = 300 };

/* A thread that runs `work` on an argument of its own. */
typedef struct {
  pthread_t thread;
  tffi_queue *queue;
  uint64_t token;
  uint32_t number;
  uint32_t count;
} task;

void start(task *tasks, uint32_t count, void *(*work)(void *), tffi_queue *queue, uint64_t token);
void join(task *tasks, uint32_t count);
uint32_t wakes_of(const tffi_queue *queue);

/* Requests that serve again, while others change models. */
void serving_again(void);
/* Callbacks of handover.c on the library's threads, and who fetches what they give. */
void handovers(void);
/* Some wait for an inference by its token, others for whatever is ready, and somebody wakes them all. */
void takers(void);
/* The descriptor of a queue is set as long as something is ready. */
void descriptors(void);
/* Others see the token as soon as there is one, and cancel or wait before the submission is over. */
void early_birds(void);
/* Responses that may not wait to be read in any number, while they are read. */
void bounds(void);
/* A function model: instances that execute, workers that answer, and in the end somebody who gives up. */
void functions(bool abandon, bool decoupled);
/* One that is loaded and unloaded, closed and given up, all at once. */
void stops(void);

#endif
