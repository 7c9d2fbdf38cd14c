/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The part of tritonffi.h about Python callables as models (backend.c, function.c, gather.c, describe.c, scatter.c,
 * stream.c). Source of the cdef too; only tritonffi.h includes it.
 */

#ifndef TRITONFFI_FUNCTION_H
#define TRITONFFI_FUNCTION_H

/*
 * A callable as Triton sees it: the model whose config carries its token. It is made before the model is loaded, and
 * worker threads of Python's take batches from it. One reference belongs to Python, which keeps it until the last worker
 * has left; Triton holds one for each model. The one who drops the last frees it.
 */
typedef struct tffi_function tffi_function;

/* What a request of a batch says beside its inputs. */
typedef struct {
  const char *id;
  const char *correlation_text; /* NULL: correlation_id counts */
  const tffi_parameter *parameters;
  uint64_t correlation_id;
  uint64_t timeout_us; /* that it may wait in Triton's queue; 0: for ever */
  uint32_t parameter_count;
  uint32_t flags; /* TRITONSERVER_RequestFlag bits */
} tffi_batch_request;

/*
 * One call of the callable: requests that fit together, stacked along the first axis if `batching`. Inputs stand in
 * the order of tffi_function_new; one that the requests do not have has no data. Everything lives as long as the
 * batch; the input memory is the batch's own, and the reader may take its `buffer` over.
 *
 * An input with data and no buffer is lent: it lies where the one who submitted the inference holds it, until that is
 * over. That may be at once where the batch is abandoned: so whoever reads must first hold the same memory, and then see
 * that the batch still runs.
 */
typedef struct {
  tffi_tensor *inputs;
  const tffi_queue *queue; /* of the inference that lends; NULL: nothing is lent */
  uint64_t key;            /* its key */
  const tffi_batch_request *requests; /* NULL where the function does not ask for them */
  const int64_t *rows;                /* of each request; 1 where the model does not batch */
  int64_t row_count;   /* their sum */
  uint32_t input_count;
  uint32_t request_count;
  bool batching;
  bool is_warm_up; /* Triton's load waits for the answer, and must not see an error */
} tffi_batch;

/* What tffi_function_new is told; all of it is copied. */
typedef struct {
  const char *model_name;
  const tffi_tensor *inputs; /* of each, the name and the rank in the callable's array (dim_count) are read */
  uint64_t warm_up_calls;    /* of each instance */
  uint32_t input_count;
  uint32_t worker_count; /* as many as the model has instances */
  int32_t max_batch_size; /* rows that Triton's batcher gathers at most; 0: the model has none */
  bool batching;         /* arrays have a batch axis */
  bool stacking;         /* requests that fit together become one call; only with a batch axis, not if decoupled */
  bool decoupled;        /* tffi_batch_send and tffi_batch_end answer */
  bool describing;       /* batches say what their requests say beside the inputs */
} tffi_function_spec;

/* Data of functions that was copied, or lent, since the process began: of inputs and outputs of more than 0 bytes. */
typedef struct {
  uint64_t inputs; /* of requests, into the memory of a batch */
  uint64_t input_bytes;
  uint64_t lent_inputs; /* not copied */
  uint64_t outputs; /* of calls, into those of responses */
  uint64_t output_bytes;
} tffi_copies;

void tffi_copies_read(tffi_copies *copies);

/*
 * Makes a function model, in *place. *token names it in the model config, as parameter "tritonffi.token". *place stays
 * NULL where there is no memory.
 */
void tffi_function_new(const tffi_function_spec *spec, uint64_t *token, tffi_function **place);
/* Drops the reference that tffi_function_new gave, once: *place is NULL then. */
void tffi_function_release(tffi_function **place);

/*
 * Triton's load has returned. Failures of its warm-up were answered as successes without outputs, because Triton
 * crashes after a failed warm-up; the first of them is returned here.
 */
struct TRITONSERVER_Error *tffi_function_set_loaded(tffi_function *function);

/*
 * Waits for a batch, which is the caller's until tffi_batch_release. Workers count from 0; the batches of one
 * instance all go to one worker, because Triton keeps a sequence at one instance. A negative timeout waits without
 * end. TFFI_WAIT_GONE: there will be none, the worker may leave.
 */
tffi_wait tffi_function_next(tffi_function *function, uint32_t worker, int64_t timeout_ns, tffi_batch **batch);

/* Inputs are not lent to this function any more. */
void tffi_function_stop_lending(tffi_function *function);

/* How many of its instances are in the middle of a call, as Triton sees it. */
uint32_t tffi_function_executing(const tffi_function *function);

/* No new model may use the function, and its workers leave as soon as Triton has let the present one go. */
void tffi_function_close(tffi_function *function);

/*
 * For callables that do not come to an end when the server is closed: every batch, now and later, is answered with
 * UNAVAILABLE, the result of a callable that still runs is dropped, and idle workers leave. Returns how many batches
 * were given up.
 */
uint32_t tffi_function_abandon(tffi_function *function);

/*
 * What a callable answers. Each output is one tensor over all rows. The parameters of the responses stand one after
 * the other, those for the first request first.
 */
typedef struct {
  const tffi_tensor *outputs;
  const tffi_parameter *parameters;
  const uint32_t *parameter_counts; /* of each request; NULL: none have any */
  uint32_t output_count;
} tffi_result;

/*
 * Answers the batch: each request gets its own rows of the outputs that it asked for. An error means that the outputs
 * do not fit the batch and nothing was sent: tffi_batch_fail must follow. On an abandoned batch nothing happens.
 */
struct TRITONSERVER_Error *tffi_batch_finish(tffi_batch *batch, const tffi_result *result);
/*
 * tffi_batch_finish, tffi_batch_release and tffi_function_next in one, so that a worker takes the GIL once for each
 * batch; without a result the batch is answered already. *batch is then the instance's next, which is waited for a moment
 * only, NULL where none came: so that what the answered batch has left in Python is not kept for long. *error is what
 * tffi_batch_finish returns; after one the batch is still the worker's.
 */
void tffi_batch_exchange(tffi_batch **batch, const tffi_result *result, struct TRITONSERVER_Error **error);
/*
 * Of decoupled models, whose batches are one request each: sends one response, after which the batch runs on. An error
 * means that nothing was sent. On an abandoned batch nothing happens.
 */
struct TRITONSERVER_Error *tffi_batch_send(tffi_batch *batch, const tffi_result *result);
/* The same models: there are no more responses. */
void tffi_batch_end(tffi_batch *batch);
/*
 * Whether nobody waits any more for the answer to the request of this number: it was cancelled, or the batch
 * abandoned. False once the batch is answered.
 */
bool tffi_batch_is_cancelled(tffi_batch *batch, uint32_t index);
/* The same of every request, into as many places of `cancelled`, and returns of how many. */
uint32_t tffi_batch_cancelled(tffi_batch *batch, bool *cancelled);
/* Whether its answer is still wanted, and its requests not given back. */
bool tffi_batch_is_running(tffi_batch *batch);
/* Answers every request of the batch with an error. On an abandoned or finished batch nothing happens. */
void tffi_batch_fail(tffi_batch *batch, int32_t code, const char *message);
/* The worker is through with the batch. One that was not answered is answered with an error. */
void tffi_batch_release(tffi_batch *batch);

#endif
