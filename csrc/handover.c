/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Callbacks for those who call Triton's own functions, through tritonffi.capi. Python must not run on Triton's
 * threads, so what the callbacks get waits here until a Python thread fetches it.
 */

#include <errno.h>
#include <stdlib.h>

#include "internal.h"

/* One call of a callback. Freed by whoever fetches it, or with the handover. */
typedef struct item {
  struct item *next;
  struct TRITONSERVER_InferenceResponse *response;
  struct TRITONSERVER_InferenceRequest *request;
  uint32_t flags;
} item;

typedef struct {
  item *first, *last;
  uint32_t lost; /* calls for which there was no memory */
} list;

/* The caller's, who frees it with tffi_handover_delete. Everything is under `lock`. */
struct tffi_handover {
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  list responses;
  list requests;
};

tffi_handover *tffi_handover_new(void)
{
  tffi_handover *handover = calloc(1, sizeof(*handover));
  if (handover != NULL) {
    pthread_mutex_init(&handover->lock, NULL);
    tffi_cond_init(&handover->arrived);
  }
  return handover;
}

static void delete_response(struct TRITONSERVER_InferenceResponse *response)
{
  struct TRITONSERVER_Error *error = response == NULL ? NULL : TRITONSERVER_InferenceResponseDelete(response);
  if (error != NULL) {
    TRITONSERVER_ErrorDelete(error);
  }
}

static void drop(list *items)
{
  while (items->first != NULL) {
    item *first = items->first;
    items->first = first->next;
    delete_response(first->response);
    free(first);
  }
}

void tffi_handover_delete(tffi_handover *handover)
{
  if (handover == NULL) {
    return;
  }
  /* The callback that gave the last item may still be on its way out. */
  pthread_mutex_lock(&handover->lock);
  pthread_mutex_unlock(&handover->lock);
  drop(&handover->responses);
  drop(&handover->requests);
  pthread_cond_destroy(&handover->arrived);
  pthread_mutex_destroy(&handover->lock);
  free(handover);
}

/* With `made` NULL there was no memory for the item. */
static void give(tffi_handover *handover, list *to, item *made)
{
  pthread_mutex_lock(&handover->lock);
  if (made == NULL) {
    to->lost++;
  } else if (to->last == NULL || to->first == NULL) {
    to->first = to->last = made;
  } else {
    to->last->next = made;
    to->last = made;
  }
  pthread_cond_broadcast(&handover->arrived);
  pthread_mutex_unlock(&handover->lock);
}

/* Waits for an item of `from`, which is then the caller's to free. */
static tffi_wait fetch(tffi_handover *handover, list *from, int64_t timeout_ns, item **fetched)
{
  const struct timespec deadline = tffi_deadline(timeout_ns > 0 ? timeout_ns : 0);
  tffi_wait result = TFFI_WAIT_READY;
  int waited = 0;
  *fetched = NULL;
  pthread_mutex_lock(&handover->lock);
  while (from->first == NULL && from->lost == 0 && waited == 0) {
    if (timeout_ns < 0) {
      waited = pthread_cond_wait(&handover->arrived, &handover->lock);
    } else {
      waited = timeout_ns == 0 ? ETIMEDOUT : pthread_cond_timedwait(&handover->arrived, &handover->lock, &deadline);
    }
  }
  if (from->first != NULL) {
    *fetched = from->first;
    from->first = from->first->next;
  } else if (from->lost > 0) {
    from->lost--;
    result = TFFI_WAIT_GONE;
  } else {
    result = TFFI_WAIT_TIMEOUT;
  }
  pthread_mutex_unlock(&handover->lock);
  return result;
}

tffi_wait tffi_handover_response(tffi_handover *handover, int64_t timeout_ns,
                                 struct TRITONSERVER_InferenceResponse **response, uint32_t *flags)
{
  item *fetched = NULL;
  const tffi_wait result = fetch(handover, &handover->responses, timeout_ns, &fetched);
  *response = fetched == NULL ? NULL : fetched->response;
  *flags = fetched == NULL ? 0 : fetched->flags;
  free(fetched);
  return result;
}

tffi_wait tffi_handover_request(tffi_handover *handover, int64_t timeout_ns,
                                struct TRITONSERVER_InferenceRequest **request)
{
  item *fetched = NULL;
  const tffi_wait result = fetch(handover, &handover->requests, timeout_ns, &fetched);
  *request = fetched == NULL ? NULL : fetched->request;
  free(fetched);
  return result;
}

/*
 * Thread: the model instance's, the scheduler's, an ensemble's, or the submitting one before InferAsync returns.
 * Must not: wait, touch Python.
 * Takes and gives: takes the response, NULL where only a flag came, and gives it to whoever fetches it.
 */
void tffi_handover_response_complete_fn(struct TRITONSERVER_InferenceResponse *response, uint32_t flags, void *userp)
{
  tffi_handover *handover = userp;
  item *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    delete_response(response);
  } else {
    made->response = response;
    made->flags = flags;
  }
  give(handover, &handover->responses, made);
}

/*
 * Thread: any of Triton's, or the submitting one; before or after the final response.
 * Must not: wait, touch Python.
 * Takes and gives: takes the request back from Triton and gives it to whoever fetches it.
 */
void tffi_handover_request_release_fn(struct TRITONSERVER_InferenceRequest *request, uint32_t flags, void *userp)
{
  tffi_handover *handover = userp;
  if ((flags & TRITONSERVER_REQUEST_RELEASE_ALL) == 0) {
    return;
  }
  item *made = calloc(1, sizeof(*made));
  if (made != NULL) {
    made->request = request;
  }
  give(handover, &handover->requests, made);
}

/*
 * Thread: any of Triton's, also the submitting one, several at once for one request.
 * Must not: wait, touch Python, return NULL memory (release_fn would not be called for it).
 * Takes and gives: gives Triton a buffer, CPU memory whatever the backend prefers; release_fn takes it back.
 */
struct TRITONSERVER_Error *tffi_handover_alloc_fn(struct TRITONSERVER_ResponseAllocator *allocator,
                                                  const char *tensor_name, size_t byte_size,
                                                  TRITONSERVER_MemoryType memory_type, int64_t memory_type_id,
                                                  void *userp, void **buffer, void **buffer_userp,
                                                  TRITONSERVER_MemoryType *actual_memory_type,
                                                  int64_t *actual_memory_type_id)
{
  (void)allocator;
  (void)tensor_name;
  (void)memory_type;
  (void)memory_type_id;
  (void)userp;
  tffi_buffer *made = tffi_buffer_new(byte_size);
  if (made == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for an output");
  }
  *buffer = tffi_buffer_data(made);
  *buffer_userp = made;
  *actual_memory_type = TRITONSERVER_MEMORY_CPU;
  *actual_memory_type_id = 0;
  return NULL;
}

/*
 * Thread: the one that deletes the response.
 * Must not: wait, touch Python.
 * Takes and gives: takes back what alloc_fn gave.
 */
struct TRITONSERVER_Error *tffi_handover_release_fn(struct TRITONSERVER_ResponseAllocator *allocator, void *buffer,
                                                    void *buffer_userp, size_t byte_size,
                                                    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
  (void)allocator;
  (void)buffer;
  (void)byte_size;
  (void)memory_type;
  (void)memory_type_id;
  tffi_buffer_release(buffer_userp);
  return NULL;
}
