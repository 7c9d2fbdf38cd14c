/* SPDX-License-Identifier: Apache-2.0 */

/* What the files in csrc/ share among themselves; Python sees none of it. */

#ifndef TRITONFFI_INTERNAL_H
#define TRITONFFI_INTERNAL_H

#include <pthread.h>
#include <time.h>

#include "tritonffi.h"

/* The live counters; each file adds to its own with tffi_count. */
extern tffi_counters tffi_live;

static inline void tffi_count(uint64_t *counter, int64_t change)
{
  __atomic_add_fetch(counter, (uint64_t)change, __ATOMIC_RELAXED);
}

/* terminate.c: has an exception that nobody in the library catches end a thread of its, and not the process. */
void tffi_terminate_handle(void *library);

static inline void tffi_discard(struct TRITONSERVER_Error *error)
{
  if (error != NULL) {
    TRITONSERVER_ErrorDelete(error);
  }
}

/* The absolute monotonic time `timeout_ns` from now, for pthread_cond_timedwait on a tffi_cond_init condition. */
static inline struct timespec tffi_deadline(int64_t timeout_ns)
{
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  at.tv_sec += (time_t)(timeout_ns / 1000000000);
  at.tv_nsec += (long)(timeout_ns % 1000000000);
  if (at.tv_nsec >= 1000000000) {
    at.tv_sec += 1;
    at.tv_nsec -= 1000000000;
  }
  return at;
}

static inline void tffi_mutex_init(pthread_mutex_t *mutex)
{
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

static inline void tffi_cond_init(pthread_cond_t *cond)
{
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attributes);
  pthread_condattr_destroy(&attributes);
}

enum { TFFI_WORTH_LENDING = 64 << 10 /* bytes; what is smaller is copied in a microsecond, and then the copy's to keep */ };

/*
 * fork.c: for constructors. From then on the lock is held while the process forks; `in_child` (NULL: nothing) runs in the
 * child with all such locks held.
 */
void tffi_hold_at_fork(pthread_mutex_t *lock, void (*in_child)(void));

/* buffer.c: one more holder of a buffer. */
void tffi_buffer_retain(tffi_buffer *buffer);

/* buffer.c: the process's one response allocator. It is made at the first call and lives for ever, because Triton keeps its bare address in every response. */
struct TRITONSERVER_Error *tffi_allocator(struct TRITONSERVER_ResponseAllocator **allocator);

/*
 * request.c: what an inference wants of its outputs, copied from its request into one block: free() gives it back.
 * `out` has name, data, size and memory type of each output that goes into the caller's own memory.
 */
typedef struct {
  tffi_tensor *out;
  const char **labelled;
  uint32_t out_count;
  uint32_t labelled_count;
  bool batching;
} tffi_wanted;

/* False: no memory. *wanted is NULL where the request wants nothing of the kind. */
bool tffi_wanted_new(const tffi_request *request, tffi_wanted **wanted);
/* The caller's memory for an output, or NULL. Both look-ups take NULL for `wanted`. */
const tffi_tensor *tffi_wanted_out(const tffi_wanted *wanted, const char *name);
bool tffi_wanted_labels(const tffi_wanted *wanted, const char *name);
/* How many classes an output has, or a row of it; 0 where its bytes are not even as many. */
size_t tffi_wanted_classes(const tffi_wanted *wanted, const int64_t *shape, uint64_t dim_count, size_t byte_size);

/* request.c: fills the C request from the description; after an error the caller deletes it. */
struct TRITONSERVER_Error *tffi_request_describe(struct TRITONSERVER_InferenceRequest *to, const tffi_request *from,
                                                 const void *const *data);

/* request.c: gives a request that has served the data of another; after an error the caller deletes it. */
struct TRITONSERVER_Error *tffi_request_refill(struct TRITONSERVER_InferenceRequest *to, const tffi_request *from,
                                               const void *const *data);

/*
 * spare.c: for one more inference, which holds the spares until tffi_spares_put. A request that waits, or NULL: then the
 * caller makes one, after this call. It is kept later if their generation is still the same.
 */
struct TRITONSERVER_InferenceRequest *tffi_spares_take(tffi_spares *spares, uint64_t *generation);
/* The inference is over. Its request, if it may serve again: it waits, or is deleted. */
void tffi_spares_put(tffi_spares *spares, struct TRITONSERVER_InferenceRequest *request, uint64_t generation);
/* Around a call that may change the models of a server: build_ffi.py has the list. */
void tffi_spares_forbid(void);
void tffi_spares_allow(void);

/*
 * slot.c, queue.c: an inference in flight. The memory of a slot is never given back, so that a stale token may be
 * looked at: it finds a slot whose token differs. Everything below `queue` is under the queue's lock, but for what says so.
 */
typedef struct tffi_slot {
  uint64_t token; /* 0: nothing in flight. Read without the lock, then again under it. */
  tffi_queue *queue;
  uint64_t key;
  pthread_cond_t arrived;                         /* who sleeps in tffi_inference_wait, `sleepers` of them */
  tffi_completion *first, *last;                  /* completions not yet taken */
  struct tffi_slot *ready_next, *ready_previous;  /* in the queue's list of slots with completions and no sleeper */
  uint32_t sleepers;
  uint32_t unwoken; /* sleepers that no push has woken yet */
  uint64_t pushed; /* completions so far */
  bool is_ready;   /* in that list */
  bool done;       /* the `done` completion is in the slot's list */

  pthread_mutex_t request_lock; /* over the three below: cancel against InferAsync and the last callback */
  struct TRITONSERVER_InferenceRequest *request; /* NULL once final response and release were seen */
  bool submitting;                               /* InferAsync is not over yet */
  bool cancelled;

  tffi_completion *final; /* made at submission, filled by the final response, kept back until the release was seen */
  uint32_t pending;       /* of final response and release, how many are to come, and responses being read; atomic */
  uint32_t max_pending;   /* of the request; 0: no bound */
  uint32_t unread;        /* responses pushed and not consumed, counted where there is a bound; atomic */
  bool overflowed;        /* the bound was passed: later responses are dropped; atomic */
  bool lost;              /* a response before the final one found no memory; atomic */
  bool ensemble;          /* as the request's */

  const void *lent_as;         /* the request that may lend; NULL: none. In slot.c's table, under its lock, as the next */
  struct tffi_slot *lent_next;

  tffi_spares *spares;                           /* of the request; NULL: none */
  struct TRITONSERVER_InferenceRequest *released; /* Triton has given it back: kept until the final response was seen */
  uint64_t generation_taken;                     /* what tffi_spares_take said */

  tffi_wanted *wanted; /* NULL: nothing; freed when final response and release were seen */

  uint32_t index;
  uint32_t forks;      /* as its queue's; atomic */
  uint64_t generation; /* 44 bits count: a slot that is used again every microsecond has them for half a year */
  struct tffi_slot *free_next;
} tffi_slot;

/*
 * slot.c: how often this process is a fork of one that had the extension. What was made before the last fork is of no
 * use and not touched any more: threads that are not there may have held its locks.
 */
extern uint32_t tffi_forks;
/* slot.c: memory for an inference; NULL where memory is out. */
tffi_slot *tffi_slot_new(void);
/* slot.c: the memory may be used again. */
void tffi_slot_recycle(tffi_slot *slot);
/* slot.c: the token of the slot's next inference. */
uint64_t tffi_slot_next_token(tffi_slot *slot);
/* slot.c: the slot of a number; NULL from the first number on that never was one. */
tffi_slot *tffi_slot_at(uint32_t index);
/* slot.c: the slot of a token, right or stale; NULL for a number that never was one, or one from before a fork. */
tffi_slot *tffi_slot_find(uint64_t token);

/* wake.c: wakes one who sleeps, or all; while this thread holds its wakes, all, and not before it lets them go. */
void tffi_wake(pthread_cond_t *condition, bool all);
void tffi_wakes_hold(void);
void tffi_wakes_let_go(void);

/*
 * slot.c: whoever has this request, from Triton, may know where its inputs lie, until tffi_slot_lend_no_more. The same
 * pointer is the request in Triton's API for backends; one that Triton has made of it is another.
 */
void tffi_slot_lend(tffi_slot *slot, const void *request);
void tffi_slot_lend_no_more(tffi_slot *slot);
/* The inference of a request that lends; false: there is none. */
bool tffi_slot_find_lender(const void *request, const tffi_queue **queue, uint64_t *key);

/* A slot for one inference whose completions go to `queue`, with token and `final` set; NULL where memory is out. */
tffi_slot *tffi_slot_take(tffi_queue *queue, uint64_t key);
/* Undoes tffi_slot_take where nothing was submitted; who waits for it already finds that it is gone. */
void tffi_slot_give_back(tffi_slot *slot);
/* Appends a completion to the slot's list and wakes whoever wants it. After one that is `done` the slot is not the caller's any more. */
void tffi_slot_push(tffi_slot *slot, tffi_completion *completion);

/* linger.c: one more inference is with Triton, or one less. */
void tffi_linger_opened(void);
void tffi_linger_closed(void);
/*
 * linger.c: one more thread sleeps until a completion comes, or so many less; `unwoken` counts them where they sleep, under
 * the lock there. A thread is awake from the push on that wakes it, or when it wakes of itself, whichever is first.
 */
void tffi_linger_asleep(uint32_t *unwoken);
void tffi_linger_awake(uint32_t *unwoken, uint32_t count);

/* trace.c: the trace becomes an inference's. An error where it is not the caller's any more. */
struct TRITONSERVER_Error *tffi_trace_give(tffi_trace *trace, struct TRITONSERVER_InferenceTrace **native);
/*
 * The inference did not come about, and its request is deleted. Triton has released the trace if it had come as far as
 * to look at it; where it had not, the trace is the caller's again.
 */
void tffi_trace_refused(tffi_trace *trace);

/* layout.c: a number for these words, the same for the same words as long as it is remembered; 0: no memory. */
uint64_t tffi_layout_number(const uint64_t *words, size_t count);

/* completion.c: a completion without content; NULL where memory is out. */
tffi_completion *tffi_completion_new(void);
/* Gives it an error, whose text lives on. */
void tffi_completion_set_error(tffi_completion *completion, int32_t code, const char *message);
/* Reads the response into the completion; what cannot be read becomes the completion's error. Deletes the response. */
void tffi_completion_fill(tffi_completion *completion, struct TRITONSERVER_InferenceResponse *response,
                          const tffi_wanted *wanted);

#endif
