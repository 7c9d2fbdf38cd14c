/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One inference from request to completion: makes the C request, submits it, and runs on Triton's threads when the
 * responses and the request come back. The C request lives until both the final response and its release were seen,
 * because a model that gives it back first can still be asked to cancel; a C response only for the length of
 * response_complete_fn: a response that is held blocks unload and stop.
 */

#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* The final response and the release are both seen, and the responses before are read, by whichever callback is last. */
static void finish_if_last(tffi_slot *slot)
{
  if (__atomic_sub_fetch(&slot->pending, 1, __ATOMIC_ACQ_REL) != 0) {
    return;
  }
  tffi_completion *final = slot->final;
  slot->final = NULL;
  free(slot->wanted);
  slot->wanted = NULL;
  pthread_mutex_lock(&slot->request_lock);
  slot->request = NULL;
  const bool cancelled = slot->cancelled;
  pthread_mutex_unlock(&slot->request_lock);
  struct TRITONSERVER_InferenceRequest *request = slot->released;
  slot->released = NULL;
  if (cancelled || slot->spares == NULL) {
    tffi_discard(TRITONSERVER_InferenceRequestDelete(request));
    request = NULL;
  }
  if (slot->spares != NULL) {
    tffi_spares_put(slot->spares, request, slot->generation_taken);
    slot->spares = NULL;
  }
  final->done = true;
  tffi_linger_closed();
  if (__atomic_load_n(&slot->lost, __ATOMIC_RELAXED)) {
    final->has_response = true;
    tffi_completion_set_error(final, TRITONSERVER_ERROR_UNAVAILABLE, "no memory for one of the responses; it was dropped");
  }
  tffi_slot_push(slot, final);
}

/* Under the slot's lock, while there is a request. What is asked for during InferAsync waits for its end. */
static void ask_to_cancel(tffi_slot *slot)
{
  slot->cancelled = true;
  if (!slot->submitting) {
    tffi_discard(TRITONSERVER_InferenceRequestCancel(slot->request));
  }
}

static bool was_cancelled(tffi_slot *slot)
{
  pthread_mutex_lock(&slot->request_lock);
  const bool cancelled = slot->cancelled;
  pthread_mutex_unlock(&slot->request_lock);
  return cancelled;
}

static void cancel_slot(tffi_slot *slot)
{
  pthread_mutex_lock(&slot->request_lock);
  if (slot->request != NULL) {
    ask_to_cancel(slot);
  }
  pthread_mutex_unlock(&slot->request_lock);
}

/*
 * Where the responses that may wait are bounded: reads the response if there is room. The first one without is replaced
 * by an error and cancels the request, the later ones are dropped. False: there is nothing to push.
 */
static bool fill_within_bound(tffi_slot *slot, tffi_completion *completion,
                              struct TRITONSERVER_InferenceResponse *response)
{
  if (__atomic_add_fetch(&slot->unread, 1, __ATOMIC_RELAXED) <= slot->max_pending &&
      !__atomic_load_n(&slot->overflowed, __ATOMIC_RELAXED)) {
    tffi_completion_fill(completion, response, slot->wanted);
    return true;
  }
  tffi_discard(TRITONSERVER_InferenceResponseDelete(response));
  if (__atomic_exchange_n(&slot->overflowed, true, __ATOMIC_RELAXED)) {
    return false;
  }
  completion->has_response = completion->overflowed = true;
  tffi_completion_set_error(completion, TRITONSERVER_ERROR_UNAVAILABLE, "too many responses waited to be read");
  cancel_slot(slot);
  return true;
}

/*
 * An ensemble of which a step fails while others run answers with the error, and where Triton is older than core#483
 * never gives the request back. So that whoever waits is told, the error goes ahead of the news of the release. Where
 * there is no memory for that, or another response is still being read, it is told with the release.
 */
static void answer_early(tffi_slot *slot)
{
  tffi_completion *answer = slot->final;
  if (answer->error_message == NULL || __atomic_load_n(&slot->pending, __ATOMIC_ACQUIRE) != 2) {
    return;
  }
  tffi_completion *rest = tffi_completion_new();
  if (rest != NULL) {
    rest->key = slot->key;
    slot->final = rest;
    answer->answered = true;
    tffi_slot_push(slot, answer);
  }
}

/*
 * Thread: the model instance's, the scheduler's, an ensemble's, or the submitting one before InferAsync returns;
 * several for one decoupled request, and before or after request_release_fn.
 * Must not: wait, touch Python, keep the response.
 * Takes and gives: takes the response and deletes it; gives a completion to the slot's queue. The final one is given
 * together with the news of the release.
 */
static void response_complete_fn(struct TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
  tffi_slot *slot = userp;
  const bool is_final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
  if (!is_final) {
    /* Other threads may come with all the rest while this one still reads: the slot is not given up before it is through. */
    __atomic_add_fetch(&slot->pending, 1, __ATOMIC_RELAXED);
  }
  if (response != NULL) {
    tffi_completion *completion = is_final ? slot->final : tffi_completion_new();
    if (completion == NULL) {
      tffi_discard(TRITONSERVER_InferenceResponseDelete(response));
      __atomic_store_n(&slot->lost, true, __ATOMIC_RELAXED);
    } else {
      completion->key = slot->key;
      bool filled = true;
      if (slot->max_pending > 0) {
        filled = fill_within_bound(slot, completion, response);
      } else {
        tffi_completion_fill(completion, response, slot->wanted);
      }
      if (is_final && slot->ensemble) {
        answer_early(slot);
      } else if (!is_final && filled) {
        tffi_slot_push(slot, completion);
      } else if (!is_final) {
        tffi_completion_free(completion);
      }
    }
  } else if (is_final) {
    slot->final->cancelled = was_cancelled(slot);
  }
  finish_if_last(slot);
}

/*
 * Thread: any of Triton's, or the submitting one; before or after the final response.
 * Must not: wait, touch Python.
 * Takes and gives: takes the request back, for the last of the callbacks to delete or to have it serve again; from now
 * on Triton does not read the input memory.
 */
static void request_release_fn(struct TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
  if ((flags & TRITONSERVER_REQUEST_RELEASE_ALL) == 0) {
    return;
  }
  tffi_slot *slot = userp;
  tffi_slot_lend_no_more(slot);
  slot->released = request;
  finish_if_last(slot);
}

/* InferAsync is over: from now on the request can be cancelled, if it is still there. */
static void have_submitted(tffi_slot *slot, uint64_t token)
{
  pthread_mutex_lock(&slot->request_lock);
  if (slot->request != NULL && __atomic_load_n(&slot->token, __ATOMIC_ACQUIRE) == token) {
    slot->submitting = false;
    if (slot->cancelled) {
      ask_to_cancel(slot);
    }
  }
  pthread_mutex_unlock(&slot->request_lock);
}

/*
 * Gives the request to Triton. After an error it is the caller's again, and so is the slot. Other threads may see the
 * token at once, and cancel: Triton makes what it cancels in InferAsync, in place of what a request that serves again
 * still has.
 */
static struct TRITONSERVER_Error *hand_over(struct TRITONSERVER_Server *server, tffi_slot *slot,
                                            struct TRITONSERVER_InferenceRequest *irequest,
                                            struct TRITONSERVER_ResponseAllocator *allocator,
                                            struct TRITONSERVER_InferenceTrace *trace, uint64_t *token)
{
  const uint64_t own = slot->token;
  pthread_mutex_lock(&slot->request_lock);
  slot->request = irequest;
  slot->submitting = true;
  pthread_mutex_unlock(&slot->request_lock);
  struct TRITONSERVER_Error *error =
      TRITONSERVER_InferenceRequestSetReleaseCallback(irequest, request_release_fn, slot);
  if (error == NULL) {
    error = TRITONSERVER_InferenceRequestSetResponseCallback(irequest, allocator, slot, response_complete_fn, slot);
  }
  if (error == NULL) {
    /* From here the callbacks may run, on this thread too, and the slot may be another inference's on return. */
    __atomic_store_n(token, own, __ATOMIC_RELAXED);
    tffi_linger_opened();
    error = TRITONSERVER_ServerInferAsync(server, irequest, trace);
    if (error == NULL) {
      have_submitted(slot, own);
      return NULL;
    }
    __atomic_store_n(token, 0, __ATOMIC_RELAXED);
    tffi_linger_closed();
  }
  pthread_mutex_lock(&slot->request_lock);
  slot->request = NULL;
  slot->submitting = false;
  pthread_mutex_unlock(&slot->request_lock);
  return error;
}

static bool is_worth_lending(const tffi_request *request)
{
  bool large = false;
  for (uint32_t i = 0; request->lending && i < request->input_count; i++) {
    large = large || request->inputs[i].byte_size >= TFFI_WORTH_LENDING;
  }
  for (uint32_t i = 0; request->lending && i < request->piece_count; i++) {
    large = large || request->pieces[i].byte_size >= TFFI_WORTH_LENDING;
  }
  return large;
}

/* The C request as it is described, new or used before. After an error there may be one all the same, to be deleted. */
static struct TRITONSERVER_Error *make_request(struct TRITONSERVER_Server *server, const tffi_request *request,
                                               const void *const *data,
                                               struct TRITONSERVER_InferenceRequest **irequest, uint64_t *generation)
{
  *irequest = request->spares == NULL ? NULL : tffi_spares_take(request->spares, generation);
  if (*irequest != NULL) {
    return tffi_request_refill(*irequest, request, data);
  }
  struct TRITONSERVER_Error *error =
      TRITONSERVER_InferenceRequestNew(irequest, server, request->model_name, request->model_version);
  return error == NULL ? tffi_request_describe(*irequest, request, data) : error;
}

/* Makes the C request and hands it to Triton; after an error nothing is held. */
static struct TRITONSERVER_Error *submit(struct TRITONSERVER_Server *server, const tffi_request *request,
                                         const void *const *data, uint64_t key, tffi_queue *queue, uint64_t *token)
{
  struct TRITONSERVER_InferenceRequest *irequest = NULL;
  struct TRITONSERVER_ResponseAllocator *allocator = NULL;
  struct TRITONSERVER_InferenceTrace *trace = NULL;
  uint64_t generation = 0;
  tffi_slot *slot = NULL;
  tffi_wanted *wanted = NULL;
  __atomic_store_n(token, 0, __ATOMIC_RELAXED);
  struct TRITONSERVER_Error *error = tffi_allocator(&allocator);
  if (error != NULL) {
    return error;
  }
  error = make_request(server, request, data, &irequest, &generation);
  if (error == NULL && !tffi_wanted_new(request, &wanted)) {
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for what is wanted of the outputs");
  }
  if (error == NULL && request->trace != NULL) {
    error = tffi_trace_give(request->trace, &trace);
  }
  if (error == NULL) {
    slot = tffi_slot_take(queue, key);
    if (slot == NULL) {
      error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for one more inference in flight");
    }
  }
  if (slot != NULL) {
    slot->max_pending = request->max_pending;
    slot->ensemble = request->ensemble;
    slot->wanted = wanted;
    slot->spares = request->spares;
    slot->generation_taken = generation;
    if (is_worth_lending(request)) {
      tffi_slot_lend(slot, irequest);
    }
    error = hand_over(server, slot, irequest, allocator, trace, token);
    if (error == NULL) {
      return NULL;
    }
    slot->wanted = NULL;
    slot->spares = NULL;
    tffi_slot_lend_no_more(slot);
    tffi_slot_give_back(slot);
  }
  free(wanted);
  if (irequest != NULL) {
    tffi_discard(TRITONSERVER_InferenceRequestDelete(irequest));
  }
  if (request->spares != NULL) {
    tffi_spares_put(request->spares, NULL, generation);
  }
  if (trace != NULL) {
    tffi_trace_refused(request->trace);
  }
  return error;
}

uint64_t tffi_inference_submit(struct TRITONSERVER_Server *server, const tffi_request *request,
                               const void *const *data, uint64_t key, tffi_queue *queue, tffi_ticket *ticket,
                               struct TRITONSERVER_Error **error)
{
  __atomic_store_n(&ticket->token, 0, __ATOMIC_RELAXED);
  ticket->key = key;
  *error = submit(server, request, data, key, queue, &ticket->token);
  return ticket->token;
}

bool tffi_inference_submit_each(struct TRITONSERVER_Server *server, const tffi_request *request,
                                const void *const *data, const uint64_t *keys, uint32_t count, tffi_queue *queue,
                                uint64_t *tokens)
{
  bool are_started = true;
  for (uint32_t i = 0; i < count; i++) {
    tffi_discard(submit(server, request, data, keys[i], queue, &tokens[i]));
    are_started = are_started && tokens[i] != 0;
    data += request->input_count;
  }
  return are_started;
}

bool tffi_inference_cancel(uint64_t token)
{
  tffi_slot *slot = tffi_slot_find(token);
  bool asked = false;
  if (slot == NULL || token == 0) {
    return false;
  }
  pthread_mutex_lock(&slot->request_lock);
  /*
   * A slot changes hands only after the last of its callbacks has been here, so under this lock the token cannot change
   * while `request` is set.
   */
  if (slot->request != NULL && __atomic_load_n(&slot->token, __ATOMIC_ACQUIRE) == token) {
    ask_to_cancel(slot);
    asked = true;
  }
  pthread_mutex_unlock(&slot->request_lock);
  return asked;
}

bool tffi_inference_is_cancelled(uint64_t token)
{
  tffi_slot *slot = tffi_slot_find(token);
  if (slot == NULL || token == 0) {
    return false;
  }
  pthread_mutex_lock(&slot->request_lock);
  const bool cancelled = __atomic_load_n(&slot->token, __ATOMIC_ACQUIRE) == token && slot->cancelled;
  pthread_mutex_unlock(&slot->request_lock);
  return cancelled;
}
