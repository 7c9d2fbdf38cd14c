/* SPDX-License-Identifier: Apache-2.0 */

/* What function.c, backend.c, gather.c, describe.c, scatter.c and stream.c share: a function model and one call of its callable. */

#ifndef TRITONFFI_BATCH_H
#define TRITONFFI_BATCH_H

#include "internal.h"
#include "tritonbackend.h"

typedef enum {
  BATCH_QUEUED,    /* waits for a worker */
  BATCH_RUNNING,   /* a worker has it; its callable runs */
  BATCH_ANSWERING, /* the worker sends the responses, in C */
  BATCH_FINISHED,  /* answered, and its requests are released */
  BATCH_ABANDONED  /* nobody waits for the callable any more; Execute answers */
} batch_state;

/* An instance of a model: what its state in Triton points to. Execute calls of one instance never overlap. */
typedef struct {
  struct TRITONBACKEND_ModelInstance *native;
  tffi_function *function;
  uint32_t worker;        /* the one that gets its batches */
  uint64_t warm_up_calls; /* of Execute that are still to come; those after them are requests of users */
  bool is_warming_up;     /* the present call of Execute is one */
} function_instance;

/*
 * A batch is held by Execute and, once a worker took it, by that worker; the last to let go frees it. It is one block
 * of memory, with the arrays behind it. Its requests belong to the one who moved it to ANSWERING or ABANDONED.
 */
typedef struct function_batch {
  tffi_batch shown;
  tffi_function *function;
  function_instance *instance; /* valid until Execute returns */
  struct TRITONBACKEND_Request **requests;
  struct TRITONBACKEND_Response **responses; /* room for one per request */
  struct TRITONSERVER_Error **errors;        /* likewise, while they are answered */
  void *described;                           /* the memory of shown.requests */
  struct TRITONBACKEND_ResponseFactory *factory; /* of a decoupled model's request, once it is needed */
  uint64_t response_start_ns;                    /* when the next response of a decoupled model begins; 0: the first */
  struct function_batch *next_of_call;       /* in the list of one Execute */
  struct function_batch *next_queued;        /* under the function's lock, as the next three */
  struct function_batch *next_live, *previous_live;
  batch_state state;
  pthread_cond_t answered; /* Execute sleeps on it: FINISHED or ABANDONED */
  uint64_t exec_start_ns;
  uint64_t compute_start_ns;
  uint32_t references;
  uint32_t worker; /* the instance's */
  struct function_batch *next_lingering; /* under the lock of linger.c */
  int32_t linger_asleep; /* Execute returns when so many threads wait for results */
  int32_t linger_open;   /* or so many inferences are with Triton */
} function_batch;

/* The batches that wait for one worker, under the function's lock. */
typedef struct {
  pthread_cond_t work; /* the idle worker sleeps on it */
  function_batch *first, *last;
} worker_queue;

struct tffi_function {
  uint64_t token;
  tffi_function *next; /* in the registry, under its lock, as `references` */
  uint32_t references; /* Python's and Triton's */

  pthread_mutex_t lock; /* over all that follows up to `name` */
  worker_queue *queues; /* one for each worker */
  function_batch *live; /* queued, running or being answered */
  uint32_t instances;   /* made so far, over all models of this function */
  uint32_t executing;   /* calls of Execute that have not returned; atomic */
  uint32_t models;      /* Triton's models of this function: one, two while a reload overlaps */
  bool lending; /* inputs of single requests are not copied where they can be lent; atomic */
  bool loaded;
  bool closing;
  bool abandoned;
  bool has_failed;      /* before `loaded`; the next two are of the first failure */
  TRITONSERVER_Error_Code first_error_code;
  char first_error[1024]; /* cut short where it is longer */

  char *name; /* never changed, as the rest */
  char **input_names;
  uint32_t *input_ranks;
  uint32_t input_count;
  uint32_t worker_count;
  uint64_t warm_up_calls;
  int32_t max_batch_size; /* 0: Triton gathers no requests */
  bool batching;
  bool stacking;
  bool describing;
  bool decoupled;
};

/* gather.c, scatter.c: what was copied; atomic. */
extern tffi_copies tffi_copied;

/* The clock readings that Triton's statistics of one execution are made of. */
typedef struct {
  uint64_t exec_start, compute_start, compute_end, exec_end;
} tffi_timing;

static inline uint64_t tffi_now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline bool tffi_is_cpu(TRITONSERVER_MemoryType type)
{
  return type == TRITONSERVER_MEMORY_CPU || type == TRITONSERVER_MEMORY_CPU_PINNED;
}

/* function.c: the function of a token, held and counted as one model more; NULL where none is open to new models. */
tffi_function *tffi_function_enter(uint64_t token);
/* function.c: the model is gone. */
void tffi_function_leave(tffi_function *function);
/* function.c: the worker for one more instance: each its own, as long as there is one model of the function. */
uint32_t tffi_function_assign_worker(tffi_function *function);

/*
 * function.c: whether a failure must not be told to Triton, because it is the warm-up's. If so, the first one is
 * remembered for tffi_function_set_loaded.
 */
bool tffi_instance_hides_error(const function_instance *instance, struct TRITONSERVER_Error *error);

/* function.c: hands batches to the workers and waits until each is answered; abandoned ones it answers itself. */
void tffi_batches_run(tffi_function *function, function_batch *first);
/* function.c: takes a running batch over for its answer. False: it was abandoned. */
bool tffi_batch_claim(function_batch *batch);
/* function.c: a claimed batch runs on, after a response that was not the last. */
void tffi_batch_resume(function_batch *batch);
/* function.c: the answer is given; Execute may return. */
void tffi_batch_settle(function_batch *batch);
/* function.c: one holder less. */
void tffi_batch_drop(function_batch *batch);

/* linger.c: the batch is about to be answered. */
void tffi_linger_before(function_batch *batch);
/* linger.c: it is answered; Execute returns, now or soon. tffi_linger_end must follow before the worker lets go. */
void tffi_linger_begin(function_batch *batch);
void tffi_linger_end(const function_batch *batch);

/*
 * gather.c: sorts the requests of one Execute into batches that can be stacked, with their inputs gathered. Requests
 * that cannot be read are answered at once.
 */
function_batch *tffi_batches_gather(function_instance *instance, struct TRITONBACKEND_Request **requests,
                                    uint32_t request_count);

/* describe.c: copies what the requests say beside their inputs, for the callable to keep. */
struct TRITONSERVER_Error *tffi_batch_describe(function_batch *batch);

/* scatter.c: answers one request with an error, counts the failure, releases the request. The error stays the caller's. */
void tffi_request_answer_error(const function_instance *instance, struct TRITONBACKEND_Request *request,
                               struct TRITONSERVER_Error *error, const tffi_timing *at);
/* scatter.c: of one output, where the rows of each request begin, and the shape that is given to Triton. */
typedef struct {
  uint64_t *offsets; /* one more than there are requests; the last is the size */
  int64_t *shape;    /* room for the output's shape, in which the batch axis changes */
} tffi_cut;

/* scatter.c: the cuts of all outputs, in one block that the caller frees, also after an error. */
struct TRITONSERVER_Error *tffi_outputs_cut(const function_batch *batch, const tffi_result *result, tffi_cut **cuts);
/* scatter.c: fills batch->responses[index]: parameters, and the rows of the outputs that the request asked for. */
struct TRITONSERVER_Error *tffi_response_fill(const function_batch *batch, uint32_t index, const tffi_result *result,
                                              const tffi_cut *cuts);
/* scatter.c: claims a batch and answers it, unless the result does not fit or the batch was abandoned. Settling is left. */
struct TRITONSERVER_Error *tffi_batch_answer(function_batch *batch, const tffi_result *result, bool *answered);
/* scatter.c: counts a batch of one request that succeeded. */
void tffi_batch_report(function_batch *batch, const tffi_timing *at);

/*
 * stream.c: counts one response of a decoupled model, `failure` NULL or what it is. Without output_start_ns it is one
 * that holds nothing. The batch must be claimed, or abandoned and Execute's.
 */
void tffi_response_report(function_batch *batch, uint64_t output_start_ns, struct TRITONSERVER_Error *failure);
/* stream.c: lets the model go; no response follows. */
void tffi_factory_drop(function_batch *batch);

/* scatter.c: answers all requests of a batch with the error, as above, and deletes it. */
void tffi_batch_answer_error(function_batch *batch, struct TRITONSERVER_Error *error);
/* scatter.c: an error about an input or output, beginning with the names of model and tensor. */
struct TRITONSERVER_Error *tffi_tensor_error(const tffi_function *function, const char *kind, const char *name,
                                             TRITONSERVER_Error_Code code, const char *text);

#endif
