/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every tffi_ type and function that Python sees: the source of the cdef and the include of every file in csrc/.
 *
 * The way of the data, one inference:
 *
 *   1. Python describes the request in a tffi_request: names, shapes and pointers into memory that it keeps pinned.
 *   2. tffi_inference_submit (inference.c) takes a slot, makes the TRITONSERVER_InferenceRequest, installs the
 *      callbacks and hands it to Triton. If Triton refuses, everything is given back and the error is returned.
 *   3. Triton's threads call alloc_fn (buffer.c) for output memory: a pooled tffi_buffer, or the caller's own array.
 *   4. response_complete_fn (inference.c) has completion.c copy names and shapes into one tffi_completion, takes over the
 *      buffers and deletes the C response at once; request_release_fn deletes the C request.
 *   5. The completion goes onto the inference's own list in its tffi_queue (queue.c) and wakes the one who waits.
 *      The last one is marked `done`: the final response and the release were both seen, so inputs may go.
 *   6. Python takes the completion, wraps each buffer as an ndarray and frees the rest.
 *
 * No function called by Triton's threads touches Python. A function that can fail returns an error object exactly
 * as Triton's own do (NULL is success), and the caller deletes it.
 *
 * Lines that begin with a number sign are dropped for the cdef, so declarations must not depend on them.
 */

#ifndef TRITONFFI_H
#define TRITONFFI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef TRITONFFI_REAL_HEADER
#include <triton/core/tritonserver.h>
#else
#include "tritonserver.h"
#endif

/* What is alive now, over the whole process. The tests hold these to where they were before each test. */
typedef struct {
  uint64_t buffers;      /* output and batch buffers that Triton, a completion or an array holds */
  uint64_t buffer_bytes; /* their capacity */
  uint64_t pooled_bytes; /* capacity of the idle buffers kept for reuse */
  uint64_t inferences;   /* slots in use: submitted, and their last completion not yet taken */
  uint64_t completions;  /* made and not yet freed */
  uint64_t queues;       /* open queues */
  uint64_t functions;    /* function models that Python or Triton holds */
  uint64_t batches;      /* batches of function models that Python or Triton holds */
  uint64_t traces;       /* traces, their children too, that Python or Triton holds */
  uint64_t spares;       /* requests of Triton's that wait to serve again */
} tffi_counters;

void tffi_counters_read(tffi_counters *counters);

/*
 * One tensor, wherever it stands: an input of a request, an output of a completion, an input or output of a batch.
 * Who owns name, shape and data depends on the place and is said there. `buffer` is set where the memory is ours
 * and the reader may take it over: he stores NULL and calls tffi_buffer_release later.
 */
typedef struct tffi_buffer tffi_buffer;
typedef struct {
  const char *name;
  const int64_t *shape;
  void *data;
  size_t byte_size;
  tffi_buffer *buffer;
  const char *const *labels; /* of the classes of an output of a completion, where they were asked for */
  size_t label_count;
  int64_t memory_type_id;
  TRITONSERVER_MemoryType memory_type;
  TRITONSERVER_DataType datatype;
  uint32_t dim_count;
} tffi_tensor;

/* One named parameter of a request or a response. `type` says which of the values counts; a bool is 0 or 1 in `integer`. */
typedef struct {
  const char *name;
  const char *text;
  int64_t integer;
  double real;
  TRITONSERVER_ParameterType type;
} tffi_parameter;

/*
 * library.c: the library that Triton lives in. One for the process, opened at run time, never closed.
 */

/*
 * Opens the neighbours by full path, as many as can be, then `path`; looks up every function, checks that those
 * without an error channel are there and that the API's major version is ours, and publishes the import table.
 * False, and the reason in `message`, when that fails: then nothing has changed. The same library again is
 * success, another one is refused.
 */
bool tffi_library_load(const char *path, const char *const *neighbours, uint32_t neighbour_count, char *message,
                       size_t message_size);

/* terminate.c: whether so many threads (of more than 16, 16) can be started now, to run at the same time. */
bool tffi_can_start_threads(uint32_t count);

/* The real path of the library; NULL before one is loaded. It lives for ever. */
const char *tffi_library_path(void);

/* Whether the library has the function of this name; false before one is loaded. */
bool tffi_library_has(const char *function);

/* Every name in the import table, in its order. */
uint32_t tffi_library_functions(const char *const **names);

/*
 * Whether dlopen of `path` gives the very extension that runs here: a copy, or a file replaced since the import, is a
 * second library with an empty table. On success the loader knows `path` from then on and does not open it again.
 */
bool tffi_library_is_self(const char *path, char *message, size_t message_size);

/*
 * For a forked child of a process in which Triton has run: at the end of the process the library's static destructors
 * are not run. They join threads that are not there, and abort as soon as the child has had a thread of its own.
 */
void tffi_library_forked(void);

/* buffer.c: output memory */

/*
 * Memory that Triton's backends write into and that arrays then own. At most two hold a buffer: Triton, between
 * alloc_fn and release_fn, and the completion, batch or array that reads it. The last to let go returns it to the
 * pool. From 4 KB on it begins on a page: a copy between badly placed buffers is many times slower.
 */
tffi_buffer *tffi_buffer_new(size_t byte_size);
void *tffi_buffer_data(tffi_buffer *buffer);
void tffi_buffer_release(tffi_buffer *buffer);
/* The same, by the address of the data: what the ffi.gc owner under an array knows. */
void tffi_buffer_release_data(void *data);

/* Idle memory kept for reuse: at most `limit` bytes over the process. Setting it gives back what is above. */
void tffi_pool_set_limit(size_t limit);
size_t tffi_pool_limit(void);

/* queue.c and inference.c: the data path */

/*
 * One response, or the news that an inference is over, as one flat block. Every pointer in it lives as long as the
 * block.
 */
typedef struct tffi_completion {
  struct tffi_completion *next; /* in a list that the waits hand out; NULL ends it */
  uint64_t key;                 /* as given at the submission */
  uint64_t number;              /* of the completions of its inference, from 0: readers on two threads keep the order */
  const char *error_message;    /* NULL: no error */
  const char *model_name;
  const char *request_id;
  tffi_tensor *outputs;
  uint64_t layout; /* equal numbers mean the same model version, names, types and shapes in the same order; 0: unknown */
  uint64_t saying; /* equal numbers mean the same parameters; 0: unknown */
  tffi_parameter *parameters;
  int64_t model_version;
  int32_t error_code; /* a TRITONSERVER_Error_Code where error_message is set */
  uint32_t output_count;
  uint32_t parameter_count;
  bool has_response; /* false: only a final flag came, there is nothing to read */
  bool overflowed;   /* it is the error that stands for all responses that found max_pending others unread */
  bool done;         /* the last of its inference: Triton is through with the request and its input memory */
  bool whole;        /* the only one of its inference, a response without error */
  bool cancelled;    /* the final flag came alone, and a cancel before it: what the model has sent is perhaps not all */
  bool answered;     /* the last response, an error, of an ensemble whose request has not come back yet */
} tffi_completion;

/* Frees a list of completions, and the buffers that the reader did not take over. */
void tffi_completion_free(tffi_completion *completions);

/* Where completions wait to be taken. One reference from Python, one for each inference in flight. */
typedef struct tffi_queue tffi_queue;

typedef enum {
  TFFI_WAIT_READY = 0,   /* *completions holds a list */
  TFFI_WAIT_TIMEOUT = 1, /* the time is up, nothing came */
  TFFI_WAIT_GONE = 2,    /* another caller has taken what this one waits for, the token is stale, the queue closed */
  TFFI_WAIT_WOKEN = 3    /* tffi_queue_wake was called */
} tffi_wait;

/* Makes one where *queue is. The place is owned before it, so that a signal handler that raises in Python loses none. */
void tffi_queue_new(tffi_queue **queue);
/*
 * Drops what is ready and whatever still comes, and wakes everyone who waits. The caller's reference stays: as long as
 * it does the queue may be asked, and answers that there is nothing.
 */
void tffi_queue_close(tffi_queue *queue);
/* Closes the queue, if there is one, and lets go of it. Of this and the rest: in a forked child nothing happens to
 * queues made before. */
void tffi_queue_release(tffi_queue **queue);

/*
 * Takes all completions that nobody waits for by token, waiting until there is one. Of both waits: a timeout of 0
 * only looks, a negative one waits without end. `wakes` is what *tffi_queue_wakes was before the caller looked
 * whether there is anything to wait for: who was told meanwhile that there is not must not fall asleep.
 */
tffi_wait tffi_queue_wait(tffi_queue *queue, uint32_t wakes, int64_t timeout_ns, tffi_completion **completions);
/* Where the queue counts the inferences that tffi_queue_wait would find: a glance without lock or call. */
const uint32_t *tffi_queue_ready(const tffi_queue *queue);
/* An eventfd that becomes readable when completions come, for event loops. It belongs to the queue; -1: no more descriptors. */
int tffi_queue_fd(tffi_queue *queue);
/* Where the queue counts the calls of tffi_queue_wake. */
const uint32_t *tffi_queue_wakes(const tffi_queue *queue);
/* Makes every wait on the queue that began before, or with an older count, return TFFI_WAIT_WOKEN if nothing is there. */
void tffi_queue_wake(tffi_queue *queue);

/*
 * A piece of the data of an input: the pieces follow one another, behind the data of its tffi_tensor. Those with a
 * host policy are other data for instances that have this policy; there must be data without a policy all the same.
 */
typedef struct {
  const void *data;
  size_t byte_size;
  const char *host_policy; /* NULL: for all instances */
  int64_t memory_type_id;
  TRITONSERVER_MemoryType memory_type;
  uint32_t input; /* its place among the inputs */
} tffi_piece;

/*
 * A trace for one inference; tritonffi_trace.h has its functions. Python has one reference, Triton one from a
 * successful submission to the release callback. It lies in a family with the children that are made of it, by Triton
 * for the steps of an ensemble or by tffi_trace_spawn, and the whole family is freed at once when nobody holds any.
 */
typedef struct tffi_trace tffi_trace;

/*
 * spare.c: requests of Triton's for inferences that differ in nothing but the addresses of their inputs. One that has
 * served waits here for the next. It holds on to its model, so all of them are let go when a function of Triton's is
 * called through this extension that changes models or ends a server, and while such a call lasts none is kept. Where
 * Triton's python backend is loaded none is kept at all: its models may change others unseen.
 *
 * Not for models whose schedulers leave their mark on a request: ensembles, those with sequences, those that keep the order
 * of their answers, and those with answers out of the response cache. Whether a model is one of them is known as of some
 * count of tffi_model_changes, and none is kept any more where that is another one. The data of an input must need no look at it, as that of BYTES does, and lie in one piece.
 */
typedef struct tffi_spares tffi_spares;

/* Where it is counted how often models may have changed, in whichever server: when such a call begins, and when it ends. */
const uint64_t *tffi_model_changes(void);
/* Makes them where *spares is, with the count before it was asked what the model is like; NULL: no memory. */
void tffi_spares_new(tffi_spares **spares, uint64_t changes);
/* Lets go of them: of what waits now, and of what is in flight when it is over. */
void tffi_spares_release(tffi_spares **spares);
/* What follows differs in more than addresses from what was before: that is let go. */
void tffi_spares_change(tffi_spares *spares);

/*
 * What an inference asks for. All pointers are borrowed: names, shapes and texts for the call, input data and the
 * memory of `out` until the completion that says `done`.
 *
 * An input of TRITONSERVER_TYPE_INVALID is a raw one: Triton takes name, type and shape from the model's only input.
 * An output that stands in `out` is written there, if it has exactly that size; otherwise the response is an error.
 */
typedef struct {
  const char *model_name;
  int64_t model_version; /* -1: the latest when Triton makes the request */
  const char *request_id;
  const char *correlation_text; /* NULL: correlation_id counts */
  uint64_t correlation_id;
  uint64_t priority;
  uint64_t timeout_us;
  const tffi_tensor *inputs; /* without `data`, which comes with the submission */
  const tffi_piece *pieces;
  const char *const *outputs; /* names of the outputs wanted; none: all */
  const tffi_tensor *out; /* name, data, byte_size and memory type of outputs into the caller's memory */
  const char *const *labelled; /* names of the outputs whose class labels are wanted */
  const tffi_parameter *parameters;
  tffi_spares *spares; /* may serve and are served; NULL: the request is for this inference alone */
  tffi_trace *trace; /* NULL: none. Triton's from the submission on, unless that fails before it is looked at */
  uint32_t input_count;
  uint32_t piece_count;
  uint32_t output_count;
  uint32_t out_count;
  uint32_t labelled_count;
  uint32_t parameter_count;
  uint32_t flags;       /* TRITONSERVER_RequestFlag bits */
  uint32_t max_pending; /* of a decoupled model: how many responses may wait to be read; 0: any number */
  bool batching;  /* the model's: whether the first axis of an output is a batch, whose rows have the same labels */
  bool lending;   /* whether a function model may be told where input data lies: tffi_batch says more */
  bool ensemble;  /* the model is one: an error is told at once, for the request may never come back */
} tffi_request;

/* The token of the inference with a key. */
typedef struct {
  uint64_t token;
  uint64_t key;
} tffi_ticket;

/*
 * Submits, with data[i] the address of the first data of input i. Returns the token, which names the inference until its `done` completion has been taken and is harmless
 * afterwards; it stands in the ticket before Triton can know of the inference. The key is the caller's own name for it,
 * which comes back in each completion. 0: *error says why, nothing is in flight and nothing is held.
 */
uint64_t tffi_inference_submit(struct TRITONSERVER_Server *server, const tffi_request *request,
                               const void *const *data, uint64_t key, tffi_queue *queue, tffi_ticket *ticket,
                               struct TRITONSERVER_Error **error);
/*
 * Submits the same request several times with other data, one right after the other, so that a model's thread that
 * takes them does not fall asleep between two. data[] has the addresses of the inputs of the first, then those of the
 * second. False: one or more came to nothing, whose tokens stay 0; it stops no other.
 */
bool tffi_inference_submit_each(struct TRITONSERVER_Server *server, const tffi_request *request,
                                const void *const *data, const uint64_t *keys, uint32_t count, tffi_queue *queue,
                                uint64_t *tokens);
/* Waits for completions of this inference and takes them. */
tffi_wait tffi_inference_wait(uint64_t token, uint32_t wakes, int64_t timeout_ns, tffi_completion **completions);
/* Whether Triton is through with it: its last completion is there, taken or not. */
bool tffi_inference_is_over(uint64_t token);
/*
 * Asks Triton to give the inference up, at the end of its submission where that is not over; its completions come all
 * the same. False: it is over already.
 */
bool tffi_inference_cancel(uint64_t token);
/* Whether tffi_inference_cancel was called while it was in flight; false for a stale token. */
bool tffi_inference_is_cancelled(uint64_t token);
/*
 * One response of an inference with max_pending has been read. Where one more comes than may wait, Triton cannot be
 * made to wait: the inference is cancelled, an error stands in the place of that response, and later ones are dropped.
 */
void tffi_inference_consume(uint64_t token);

/* bytes.c: the framing of BYTES tensors */

/*
 * A BYTES tensor is its elements in row order, each a length of 4 bytes, little-endian, and that many bytes. All
 * memory here is the caller's; `data` may lie at any address, and NULL where there is nothing.
 */

/*
 * Walks over at most `count` elements from *offset on and returns over how many: fewer means that the element of that
 * number is cut short, or that the data ended before it. *offset is then behind the last whole element, so it equals
 * `size` where nothing is left over. `lengths` gets the length of each element, unless it is NULL. With UINT64_MAX it
 * counts what is there.
 */
uint64_t tffi_bytes_scan(const void *data, size_t size, uint64_t count, size_t *offset, uint32_t *lengths);
/* Moves *offset over exactly `count` elements. False: they are not all there. */
bool tffi_bytes_skip(const void *data, size_t size, uint64_t count, size_t *offset);

/*
 * Frames the elements that lie one after the other in `payload`: framed_size is payload_size + 4 * count. Returns how
 * many were written; fewer than `count` means that the length of the element of that number cannot be: negative, over
 * 32 bits, or past the end of the payload or of the room for it.
 */
uint64_t tffi_bytes_pack(const void *payload, size_t payload_size, const int64_t *lengths, uint64_t count,
                         void *framed, size_t framed_size);
/*
 * The same for elements with a separator between each two: framed_size is joined_size - (count - 1) + 4 * count.
 * False: there are not exactly count - 1 separators (an element contains one), or an element is over 32 bits long.
 */
bool tffi_bytes_pack_separated(const void *joined, size_t joined_size, char separator, uint64_t count, void *framed,
                               size_t framed_size);

/*
 * Copies `count` elements from `offset` on, whose lengths a scan has found, to `rows` of `width` bytes each, with NULs
 * behind the shorter ones: the layout of numpy's fixed-width strings. False: an element is longer than that, or its
 * own last byte is a NUL, which would look the same.
 */
bool tffi_bytes_spread(const void *data, size_t offset, const uint32_t *lengths, uint64_t count, size_t width,
                       void *rows);

/*
 * Writes framed elements as a format of Python's struct module ("4x5s4x0s"), which makes all the bytes objects in one
 * call. `text` has room for 13 characters an element; returns how many were written.
 */
size_t tffi_bytes_format(const uint32_t *lengths, uint64_t count, char *text);

/* log.c: Triton's log */

/*
 * Watches the file at `path`, with those that the descriptor `watch` watches already; negative: with a new one. The
 * descriptor becomes readable when one of them is written to. It belongs to the caller, and never blocks. -1: the
 * system gives no watch, and `watch` is as it was.
 */
int tffi_log_watch(int watch, const char *path);
/* dlpack.c: arrays that other libraries lend, in the layout of the DLPack ABI */

typedef struct {
  int32_t type; /* 1: CPU, 2: CUDA, 3: CUDA pinned, 13: CUDA managed */
  int32_t id;
} tffi_dlpack_device;

typedef struct {
  uint8_t code; /* 0: int, 1: unsigned, 2: float, 4: bfloat, 6: bool */
  uint8_t bits;
  uint16_t lanes;
} tffi_dlpack_type;

typedef struct {
  void *data;
  tffi_dlpack_device device;
  int32_t ndim;
  tffi_dlpack_type dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL: C order */
  uint64_t byte_offset;
} tffi_dlpack_tensor;

/* What a capsule named "dltensor" holds. The one who renames the capsule owns it and calls the deleter once. */
typedef struct tffi_dlpack {
  tffi_dlpack_tensor tensor;
  void *context;
  void (*deleter)(struct tffi_dlpack *self);
} tffi_dlpack;

/* The same of one named "dltensor_versioned". Where `major` is another one, only the deleter may be relied on. */
typedef struct tffi_dlpack_versioned {
  uint32_t major;
  uint32_t minor;
  void *context;
  void (*deleter)(struct tffi_dlpack_versioned *self);
  uint64_t flags; /* bit 0: read-only */
  tffi_dlpack_tensor tensor;
} tffi_dlpack_versioned;

void tffi_dlpack_release(tffi_dlpack *managed);
void tffi_dlpack_versioned_release(tffi_dlpack_versioned *managed);

/* handover.c: callbacks for those who call Triton's own functions */

/*
 * Triton calls back on threads of its own, where Python must not run. So the callbacks below are C: give their
 * addresses, `ffi.addressof(lib, "tffi_handover_alloc_fn")`, to Triton's functions. What the two of a request get lies
 * in the handover that is their `userp` until a thread of Python's fetches it; one handover may serve many requests.
 */
typedef struct tffi_handover tffi_handover;

/* NULL: no memory. */
tffi_handover *tffi_handover_new(void);
/* Only when every request that was submitted with it was fetched. Responses that nobody fetched are deleted. */
void tffi_handover_delete(tffi_handover *handover);

/*
 * Waits for the next response, which is then the caller's to delete. It is NULL where only a flag came. Of both waits:
 * a timeout of 0 only looks, a negative one waits without end (and without Ctrl-C); TFFI_WAIT_GONE means that there was
 * no memory to keep one.
 */
tffi_wait tffi_handover_response(tffi_handover *handover, int64_t timeout_ns,
                                 struct TRITONSERVER_InferenceResponse **response, uint32_t *flags);
/* Waits until Triton gives a request back. From then on it may be changed, submitted again, or deleted. */
tffi_wait tffi_handover_request(tffi_handover *handover, int64_t timeout_ns,
                                struct TRITONSERVER_InferenceRequest **request);

/* For TRITONSERVER_InferenceRequestSetResponseCallback and TRITONSERVER_InferenceRequestSetReleaseCallback. */
void tffi_handover_response_complete_fn(struct TRITONSERVER_InferenceResponse *response, uint32_t flags, void *userp);
void tffi_handover_request_release_fn(struct TRITONSERVER_InferenceRequest *request, uint32_t flags, void *userp);

/* For TRITONSERVER_ResponseAllocatorNew: CPU memory, given back when the response is deleted. `userp` is not used. */
struct TRITONSERVER_Error *tffi_handover_alloc_fn(struct TRITONSERVER_ResponseAllocator *allocator,
                                                  const char *tensor_name, size_t byte_size,
                                                  TRITONSERVER_MemoryType memory_type, int64_t memory_type_id,
                                                  void *userp, void **buffer, void **buffer_userp,
                                                  TRITONSERVER_MemoryType *actual_memory_type,
                                                  int64_t *actual_memory_type_id);
struct TRITONSERVER_Error *tffi_handover_release_fn(struct TRITONSERVER_ResponseAllocator *allocator, void *buffer,
                                                    void *buffer_userp, size_t byte_size,
                                                    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id);

#include "tritonffi_function.h"
#include "tritonffi_trace.h"

#endif
