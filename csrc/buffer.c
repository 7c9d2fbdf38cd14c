/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Output memory and the response allocator that hands it to Triton. Buffers of a page or more are kept for reuse in
 * size classes (four to a doubling, so that at most a fifth is wasted), bounded by tffi_pool_set_limit; smaller ones
 * are left to malloc.
 */

#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

enum {
  PAGE = 4096,
  SMALL_ALIGNMENT = 64, /* a cache line: what vector loads of numpy and backends like best; holds the header */
  CLASS_COUNT = 4 * 52
};

/* Stands right before the data it describes, so that an array's address is enough to release its memory. */
struct tffi_buffer {
  void *allocation;
  size_t capacity;
  tffi_buffer *next_idle;
  uint32_t class_index; /* CLASS_COUNT: not pooled */
  uint32_t references;
};

_Static_assert(sizeof(struct tffi_buffer) <= SMALL_ALIGNMENT, "the header stands in front of the data");

tffi_counters tffi_live;

/* Threads pass it to and fro all the time, so what changes with each buffer shares one cache line with the lock. */
static struct {
  _Alignas(64) pthread_mutex_t lock;
  uint64_t live; /* buffers that somebody holds */
  size_t live_bytes;
  size_t idle_bytes;
  size_t limit;
  tffi_buffer *idle[CLASS_COUNT];
} pool = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP, .limit = (size_t)64 << 20};

static void lock_pool(void)
{
  pthread_mutex_lock(&pool.lock);
}

static void unlock_pool(void)
{
  pthread_mutex_unlock(&pool.lock);
}

__attribute__((constructor)) static void handle_forks(void)
{
  tffi_hold_at_fork(&pool.lock, NULL);
}

void tffi_counters_read(tffi_counters *counters)
{
  const uint64_t *from = (const uint64_t *)&tffi_live;
  uint64_t *to = (uint64_t *)counters;
  for (size_t i = 0; i < sizeof(tffi_counters) / sizeof(uint64_t); i++) {
    to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
  }
  lock_pool();
  counters->buffers = pool.live;
  counters->buffer_bytes = pool.live_bytes;
  counters->pooled_bytes = pool.idle_bytes;
  unlock_pool();
}

/*
 * The class whose capacity is the smallest of PAGE * 2^k * {1, 1.25, 1.5, 1.75} that holds `size`, rounded up to whole
 * pages. Returns CLASS_COUNT where no size_t could hold it.
 */
static uint32_t class_of(size_t size, size_t *capacity)
{
  size_t base = PAGE;
  for (uint32_t index = 0; index < CLASS_COUNT; index++) {
    const size_t whole = base + base / 4 * (index % 4);
    const size_t pages = (whole + PAGE - 1) / PAGE * PAGE;
    if (size <= pages) {
      *capacity = pages;
      return index;
    }
    if (index % 4 == 3) {
      if (base > SIZE_MAX / 4) {
        break;
      }
      base *= 2;
    }
  }
  return CLASS_COUNT;
}

static tffi_buffer *make(size_t capacity, size_t alignment, uint32_t class_index)
{
  if (capacity > SIZE_MAX - alignment) {
    return NULL;
  }
  /* One unit of alignment in front: room for the header, and the data begins on the next. */
  char *allocation = aligned_alloc(alignment, alignment + capacity);
  if (allocation == NULL) {
    return NULL;
  }
  tffi_buffer *buffer = (tffi_buffer *)(void *)(allocation + alignment) - 1;
  buffer->allocation = allocation;
  buffer->capacity = capacity;
  buffer->class_index = class_index;
  buffer->next_idle = NULL;
  return buffer;
}

/* Under the lock: it has a holder from now on. */
static void count_in(tffi_buffer *buffer)
{
  buffer->references = 1;
  pool.live += 1;
  pool.live_bytes += buffer->capacity;
}

/* An idle buffer of a class, or NULL. */
static tffi_buffer *take_idle(uint32_t index)
{
  lock_pool();
  tffi_buffer *buffer = pool.idle[index];
  if (buffer != NULL) {
    pool.idle[index] = buffer->next_idle;
    pool.idle_bytes -= buffer->capacity;
    count_in(buffer);
  }
  unlock_pool();
  return buffer;
}

tffi_buffer *tffi_buffer_new(size_t byte_size)
{
  tffi_buffer *buffer = NULL;
  if (byte_size < PAGE) {
    /* Never without memory: Triton calls release_fn only for addresses that are not NULL. */
    const size_t rounded = (byte_size + SMALL_ALIGNMENT) / SMALL_ALIGNMENT * SMALL_ALIGNMENT;
    buffer = make(rounded, SMALL_ALIGNMENT, CLASS_COUNT);
  } else {
    size_t capacity = 0;
    const uint32_t index = class_of(byte_size, &capacity);
    if (index == CLASS_COUNT) {
      return NULL;
    }
    buffer = take_idle(index);
    if (buffer != NULL) {
      return buffer;
    }
    buffer = make(capacity, PAGE, index);
  }
  if (buffer != NULL) {
    lock_pool();
    count_in(buffer);
    unlock_pool();
  }
  return buffer;
}

void *tffi_buffer_data(tffi_buffer *buffer)
{
  return buffer + 1;
}

void tffi_buffer_retain(tffi_buffer *buffer)
{
  __atomic_add_fetch(&buffer->references, 1, __ATOMIC_RELAXED);
}

/* Under the lock: takes idle buffers out until at most `limit` bytes are left, the largest first, onto a list. */
static tffi_buffer *take_excess(size_t limit)
{
  tffi_buffer *excess = NULL;
  for (uint32_t index = CLASS_COUNT; index-- > 0 && pool.idle_bytes > limit;) {
    while (pool.idle[index] != NULL && pool.idle_bytes > limit) {
      tffi_buffer *buffer = pool.idle[index];
      pool.idle[index] = buffer->next_idle;
      pool.idle_bytes -= buffer->capacity;
      buffer->next_idle = excess;
      excess = buffer;
    }
  }
  return excess;
}

static void free_all(tffi_buffer *buffers)
{
  while (buffers != NULL) {
    tffi_buffer *next = buffers->next_idle;
    free(buffers->allocation);
    buffers = next;
  }
}

void tffi_buffer_release(tffi_buffer *buffer)
{
  if (buffer == NULL || __atomic_sub_fetch(&buffer->references, 1, __ATOMIC_ACQ_REL) != 0) {
    return;
  }
  tffi_buffer *excess = buffer;
  buffer->next_idle = NULL;
  lock_pool();
  pool.live -= 1;
  pool.live_bytes -= buffer->capacity;
  if (buffer->class_index < CLASS_COUNT && buffer->capacity <= pool.limit) {
    /* What was used last is likeliest to be wanted next, so others make room for it. */
    excess = take_excess(pool.limit - buffer->capacity);
    buffer->next_idle = pool.idle[buffer->class_index];
    pool.idle[buffer->class_index] = buffer;
    pool.idle_bytes += buffer->capacity;
  }
  unlock_pool();
  free_all(excess);
}

void tffi_buffer_release_data(void *data)
{
  tffi_buffer_release((tffi_buffer *)data - 1);
}

void tffi_pool_set_limit(size_t limit)
{
  lock_pool();
  pool.limit = limit;
  tffi_buffer *excess = take_excess(limit);
  unlock_pool();
  free_all(excess);
}

size_t tffi_pool_limit(void)
{
  lock_pool();
  const size_t limit = pool.limit;
  unlock_pool();
  return limit;
}

/* The memory that the caller gave for an output, or NULL. The userp of all three callbacks is the slot. */
static const tffi_tensor *out_of(const void *userp, const char *tensor_name)
{
  const tffi_slot *slot = userp;
  return tffi_wanted_out(slot->wanted, tensor_name);
}

/*
 * Thread: any of Triton's, also the submitting one, several at once for one request.
 * Must not: wait, touch Python, return NULL memory (release_fn would not be called for it).
 * Takes and gives: gives Triton one reference to a buffer through buffer_userp; release_fn takes it back. The caller's
 * own memory goes without. Whatever memory the backend would prefer, it gets that or CPU memory and is told so.
 */
static struct TRITONSERVER_Error *alloc_fn(struct TRITONSERVER_ResponseAllocator *allocator, const char *tensor_name,
                                           size_t byte_size, TRITONSERVER_MemoryType memory_type,
                                           int64_t memory_type_id, void *userp, void **data, void **buffer_userp,
                                           TRITONSERVER_MemoryType *actual_memory_type, int64_t *actual_memory_type_id)
{
  (void)allocator;
  (void)memory_type;
  (void)memory_type_id;
  char message[256];
  const tffi_tensor *out = out_of(userp, tensor_name);
  if (out != NULL) {
    if (out->byte_size != byte_size) {
      snprintf(message, sizeof(message), "output '%.128s': the model gives %zu bytes, but 'out' has %zu for it",
               tensor_name, byte_size, out->byte_size);
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, message);
    }
    *data = out->data;
    *buffer_userp = NULL;
    *actual_memory_type = out->memory_type;
    *actual_memory_type_id = out->memory_type_id;
    return NULL;
  }
  tffi_buffer *buffer = tffi_buffer_new(byte_size);
  if (buffer == NULL) {
    snprintf(message, sizeof(message), "output '%.128s': no memory for %zu bytes", tensor_name, byte_size);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, message);
  }
  *data = tffi_buffer_data(buffer);
  *buffer_userp = buffer;
  *actual_memory_type = TRITONSERVER_MEMORY_CPU;
  *actual_memory_type_id = 0;
  return NULL;
}

/*
 * Thread: the one that deletes the response: the one that ran response_complete_fn, or, where it was never sent, the
 * one that made it.
 * Must not: wait, touch Python.
 * Takes and gives: takes back the reference that alloc_fn gave; the memory stays where a completion holds it.
 */
static struct TRITONSERVER_Error *release_fn(struct TRITONSERVER_ResponseAllocator *allocator, void *data,
                                             void *buffer_userp, size_t byte_size,
                                             TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
  (void)allocator;
  (void)data;
  (void)byte_size;
  (void)memory_type;
  (void)memory_type_id;
  tffi_buffer_release(buffer_userp); /* NULL for the caller's own memory */
  return NULL;
}

/*
 * Thread: any of Triton's, before alloc_fn asks for the memory itself.
 * Must not: wait, touch Python; tensor_name and byte_size may be NULL.
 * Takes and gives: only the answer where an output will be: where the caller wants it, or in CPU memory.
 */
static struct TRITONSERVER_Error *query_fn(struct TRITONSERVER_ResponseAllocator *allocator, void *userp,
                                           const char *tensor_name, size_t *byte_size,
                                           TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id)
{
  (void)allocator;
  (void)byte_size;
  const tffi_tensor *out = out_of(userp, tensor_name);
  *memory_type = out == NULL ? TRITONSERVER_MEMORY_CPU : out->memory_type;
  *memory_type_id = out == NULL ? 0 : out->memory_type_id;
  return NULL;
}

/*
 * Thread: the one that has just called alloc_fn.
 * Must not: wait, touch Python, fail: Triton would then not call release_fn for the memory.
 * Takes and gives: describes the memory once more. A setter that fails is passed over, because Triton fills in
 * itself what alloc_fn said; what nobody here gives is a CUDA IPC handle.
 */
static struct TRITONSERVER_Error *buffer_attributes_fn(struct TRITONSERVER_ResponseAllocator *allocator,
                                                       const char *tensor_name,
                                                       struct TRITONSERVER_BufferAttributes *attributes, void *userp,
                                                       void *buffer_userp)
{
  (void)allocator;
  (void)buffer_userp;
  const tffi_tensor *out = out_of(userp, tensor_name);
  if (out != NULL) {
    tffi_discard(TRITONSERVER_BufferAttributesSetMemoryType(attributes, out->memory_type));
    tffi_discard(TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, out->memory_type_id));
  }
  return NULL;
}

struct TRITONSERVER_Error *tffi_allocator(struct TRITONSERVER_ResponseAllocator **allocator)
{
  static pthread_mutex_t lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
  static struct TRITONSERVER_ResponseAllocator *made;
  *allocator = __atomic_load_n(&made, __ATOMIC_ACQUIRE);
  if (*allocator != NULL) {
    return NULL;
  }
  pthread_mutex_lock(&lock);
  struct TRITONSERVER_Error *error = NULL;
  if (made == NULL) {
    struct TRITONSERVER_ResponseAllocator *fresh = NULL;
    error = TRITONSERVER_ResponseAllocatorNew(&fresh, alloc_fn, release_fn, NULL);
    if (error == NULL) {
      error = TRITONSERVER_ResponseAllocatorSetQueryFunction(fresh, query_fn);
    }
    if (error == NULL) {
      error = TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(fresh, buffer_attributes_fn);
    }
    if (error == NULL) {
      __atomic_store_n(&made, fresh, __ATOMIC_RELEASE);
    }
  }
  *allocator = made;
  pthread_mutex_unlock(&lock);
  return error;
}
