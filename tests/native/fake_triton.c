/* SPDX-License-Identifier: Apache-2.0 */

#include "fake_inside.h"
#include "fake_traces.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  char text[200];
};

struct TRITONSERVER_ResponseAllocator {
  TRITONSERVER_ResponseAllocatorAllocFn_t alloc;
  TRITONSERVER_ResponseAllocatorReleaseFn_t release;
  TRITONSERVER_ResponseAllocatorQueryFn_t query;
  TRITONSERVER_ResponseAllocatorBufferAttributesFn_t describe;
};

typedef struct TRITONSERVER_InferenceRequest {
  char model[32];
  char id[64];
  TRITONSERVER_InferenceRequestReleaseFn_t release;
  void *release_userp;
  struct TRITONSERVER_ResponseAllocator *allocator;
  TRITONSERVER_InferenceResponseCompleteFn_t respond;
  void *respond_userp;
  struct TRITONSERVER_InferenceTrace *trace; /* looked at, and not on its way */
  bool *cancelled; /* made anew by each InferAsync; NULL before the first */
} request;

typedef struct {
  void *data;
  void *userp;
  size_t size;
} memory;

typedef struct TRITONSERVER_InferenceResponse {
  struct TRITONSERVER_ResponseAllocator *allocator;
  char id[64];
  bool failed;
  memory output;
  uint32_t *stage; /* of a response that is read while its inference ends: 1 it is being read, 2 all else is over */
} response;

/* What is left to be done for a request, for a thread of the library's. */
typedef struct job {
  struct job *next;
  request *about;
  TRITONSERVER_InferenceResponseCompleteFn_t respond; /* copies: the request may be gone by then */
  void *respond_userp;
  response *last;
  bool final;
  bool release;
} job;

fake_alive alive;
static int64_t calls;
static int64_t fail_at;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t work;
  pthread_t threads[FAKE_THREADS];
  job *first, *last;
  int started;
  bool ending;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

void fake_read_alive(fake_alive *to)
{
  const int64_t *from = (const int64_t *)&alive;
  for (size_t i = 0; i < sizeof(alive) / sizeof(int64_t); i++) {
    ((int64_t *)to)[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
  }
}

void fake_fail_at(int64_t number)
{
  __atomic_store_n(&calls, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&fail_at, number, __ATOMIC_RELAXED);
}

int64_t fake_calls(void)
{
  return __atomic_load_n(&calls, __ATOMIC_RELAXED);
}

/* Errors */

Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *text)
{
  Error *error = calloc(1, sizeof(*error));
  error->code = code;
  strncpy(error->text, text, sizeof(error->text) - 1);
  count(&alive.errors, 1);
  return error;
}

void TRITONSERVER_ErrorDelete(Error *error)
{
  count(&alive.errors, -1);
  free(error);
}

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(Error *error)
{
  return error->code;
}

const char *TRITONSERVER_ErrorMessage(Error *error)
{
  return error->text;
}

Error *failure(void)
{
  const int64_t number = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  if (number != __atomic_load_n(&fail_at, __ATOMIC_RELAXED)) {
    return NULL;
  }
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "made to fail");
}

/* The rest of what must be there */

#define TEXT(name, type)         \
  const char *name(type value)   \
  {                              \
    (void)value;                 \
    return #name;                \
  }

const char *TRITONSERVER_ErrorCodeString(Error *error)
{
  (void)error;
  return "";
}
TEXT(TRITONSERVER_DataTypeString, TRITONSERVER_DataType)
TEXT(TRITONSERVER_MemoryTypeString, TRITONSERVER_MemoryType)
TEXT(TRITONSERVER_ParameterTypeString, TRITONSERVER_ParameterType)
TEXT(TRITONSERVER_InstanceGroupKindString, TRITONSERVER_InstanceGroupKind)
TEXT(TRITONSERVER_InferenceTraceLevelString, TRITONSERVER_InferenceTraceLevel)
TEXT(TRITONSERVER_InferenceTraceActivityString, TRITONSERVER_InferenceTraceActivity)

TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char *text)
{
  (void)text;
  return TRITONSERVER_TYPE_INVALID;
}

uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType type)
{
  return type == TRITONSERVER_TYPE_FP32 ? 4 : 0;
}

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level)
{
  (void)level;
  return false;
}

struct TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, TRITONSERVER_ParameterType type,
                                                         const void *value)
{
  (void)name;
  (void)type;
  (void)value;
  return NULL;
}

struct TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name, const void *value, uint64_t size)
{
  (void)name;
  (void)value;
  (void)size;
  return NULL;
}

void TRITONSERVER_ParameterDelete(struct TRITONSERVER_Parameter *parameter)
{
  (void)parameter;
}

Error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor)
{
  MAY_FAIL();
  *major = TRITONSERVER_API_VERSION_MAJOR;
  *minor = TRITONSERVER_API_VERSION_MINOR;
  return NULL;
}

/* Allocator */

Error *TRITONSERVER_ResponseAllocatorNew(struct TRITONSERVER_ResponseAllocator **allocator,
                                         TRITONSERVER_ResponseAllocatorAllocFn_t alloc,
                                         TRITONSERVER_ResponseAllocatorReleaseFn_t release,
                                         TRITONSERVER_ResponseAllocatorStartFn_t start)
{
  (void)start;
  MAY_FAIL();
  *allocator = calloc(1, sizeof(**allocator));
  count(&alive.allocators, 1);
  (*allocator)->alloc = alloc;
  (*allocator)->release = release;
  return NULL;
}

Error *TRITONSERVER_ResponseAllocatorDelete(struct TRITONSERVER_ResponseAllocator *allocator)
{
  free(allocator);
  count(&alive.allocators, -1);
  return failure();
}

Error *TRITONSERVER_ResponseAllocatorSetQueryFunction(struct TRITONSERVER_ResponseAllocator *allocator,
                                                      TRITONSERVER_ResponseAllocatorQueryFn_t query)
{
  MAY_FAIL();
  allocator->query = query;
  return NULL;
}

Error *TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    struct TRITONSERVER_ResponseAllocator *allocator, TRITONSERVER_ResponseAllocatorBufferAttributesFn_t function)
{
  MAY_FAIL();
  allocator->describe = function;
  return NULL;
}

/* Requests */

Error *TRITONSERVER_InferenceRequestNew(request **made, struct TRITONSERVER_Server *server, const char *model,
                                        int64_t version)
{
  (void)server;
  (void)version;
  MAY_FAIL();
  request *fresh = calloc(1, sizeof(*fresh));
  strncpy(fresh->model, model, sizeof(fresh->model) - 1);
  count(&alive.requests, 1);
  count(&alive.made, 1);
  *made = fresh;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestDelete(request *old)
{
  if (old->trace != NULL) {
    fake_trace_drop(old->trace);
  }
  count(&alive.requests, -1);
  free(old->cancelled);
  free(old);
  return failure();
}

Error *TRITONSERVER_InferenceRequestSetId(request *to, const char *id)
{
  MAY_FAIL();
  strncpy(to->id, id, sizeof(to->id) - 1);
  return NULL;
}

#define SETTER(name, ...)      \
  Error *name(__VA_ARGS__)     \
  {                            \
    (void)to;                  \
    (void)value;               \
    return failure();          \
  }

SETTER(TRITONSERVER_InferenceRequestSetFlags, request *to, uint32_t value)
SETTER(TRITONSERVER_InferenceRequestSetCorrelationId, request *to, uint64_t value)
SETTER(TRITONSERVER_InferenceRequestSetCorrelationIdString, request *to, const char *value)
SETTER(TRITONSERVER_InferenceRequestSetPriorityUInt64, request *to, uint64_t value)
SETTER(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds, request *to, uint64_t value)
SETTER(TRITONSERVER_InferenceRequestAddRequestedOutput, request *to, const char *value)
SETTER(TRITONSERVER_InferenceRequestAddRawInput, request *to, const char *value)
SETTER(TRITONSERVER_BufferAttributesSetMemoryType, struct TRITONSERVER_BufferAttributes *to,
       TRITONSERVER_MemoryType value)
SETTER(TRITONSERVER_BufferAttributesSetMemoryTypeId, struct TRITONSERVER_BufferAttributes *to, int64_t value)
SETTER(TRITONSERVER_BufferAttributesSetByteSize, struct TRITONSERVER_BufferAttributes *to, size_t value)

#define KEYED_SETTER(name, type)                                     \
  Error *name(request *to, const char *key, type value)              \
  {                                                                  \
    (void)to;                                                        \
    (void)key;                                                       \
    (void)value;                                                     \
    return failure();                                                \
  }

KEYED_SETTER(TRITONSERVER_InferenceRequestSetIntParameter, const int64_t)
KEYED_SETTER(TRITONSERVER_InferenceRequestSetBoolParameter, const bool)
KEYED_SETTER(TRITONSERVER_InferenceRequestSetDoubleParameter, const double)
KEYED_SETTER(TRITONSERVER_InferenceRequestSetStringParameter, const char *)

Error *TRITONSERVER_BufferAttributesNew(struct TRITONSERVER_BufferAttributes **made)
{
  MAY_FAIL();
  *made = malloc(1);
  count(&alive.attributes, 1);
  return NULL;
}

Error *TRITONSERVER_BufferAttributesDelete(struct TRITONSERVER_BufferAttributes *old)
{
  free(old);
  count(&alive.attributes, -1);
  return failure();
}

Error *TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    request *to, const char *name, const void *base, struct TRITONSERVER_BufferAttributes *attributes)
{
  (void)to;
  (void)name;
  (void)base;
  (void)attributes;
  return failure();
}

Error *TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request *to, const char *name, const void *base,
                                                                  size_t size, TRITONSERVER_MemoryType type,
                                                                  int64_t type_id, const char *policy)
{
  (void)to;
  (void)name;
  (void)base;
  (void)size;
  (void)type;
  (void)type_id;
  (void)policy;
  return failure();
}

Error *TRITONSERVER_InferenceRequestAddInput(request *to, const char *name, const TRITONSERVER_DataType datatype,
                                             const int64_t *shape, uint64_t dim_count)
{
  (void)to;
  (void)name;
  (void)datatype;
  (void)shape;
  (void)dim_count;
  return failure();
}

Error *TRITONSERVER_InferenceRequestRemoveAllInputData(request *from, const char *name)
{
  (void)from;
  (void)name;
  return failure();
}

Error *TRITONSERVER_InferenceRequestAppendInputData(request *to, const char *name, const void *base, size_t size,
                                                    TRITONSERVER_MemoryType type, int64_t type_id)
{
  (void)to;
  (void)name;
  (void)base;
  (void)size;
  (void)type;
  (void)type_id;
  return failure();
}

Error *TRITONSERVER_InferenceRequestSetReleaseCallback(request *to, TRITONSERVER_InferenceRequestReleaseFn_t function,
                                                       void *userp)
{
  MAY_FAIL();
  to->release = function;
  to->release_userp = userp;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetResponseCallback(request *to, struct TRITONSERVER_ResponseAllocator *allocator,
                                                        void *allocator_userp,
                                                        TRITONSERVER_InferenceResponseCompleteFn_t function,
                                                        void *userp)
{
  (void)allocator_userp;
  MAY_FAIL();
  to->allocator = allocator;
  to->respond = function;
  to->respond_userp = userp;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestCancel(request *to)
{
  if (to->cancelled == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "not with a model yet");
  }
  __atomic_store_n(to->cancelled, true, __ATOMIC_RELEASE);
  return failure();
}

/* What becomes of a request */

static response *make_response(const request *of, bool failed)
{
  response *made = calloc(1, sizeof(*made));
  made->allocator = of->allocator;
  memcpy(made->id, of->id, sizeof(made->id));
  made->failed = failed;
  count(&alive.responses, 1);
  if (!failed) {
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    memory *output = &made->output;
    output->size = FAKE_FLOATS * sizeof(float);
    Error *error = of->allocator->query == NULL
                       ? NULL
                       : of->allocator->query(of->allocator, of->respond_userp, "y", &output->size, &type, &type_id);
    if (error == NULL) {
      error = of->allocator->alloc(of->allocator, "y", output->size, TRITONSERVER_MEMORY_GPU, 0, of->respond_userp,
                                   &output->data, &output->userp, &type, &type_id);
    }
    if (error == NULL && of->allocator->describe != NULL) {
      error = of->allocator->describe(of->allocator, "y", NULL, of->respond_userp, output->userp);
    }
    if (error != NULL) {
      TRITONSERVER_ErrorDelete(error);
      made->failed = true;
      *output = (memory){0};
    } else {
      memset(output->data, 7, output->size);
    }
  }
  return made;
}

static void run(job *at)
{
  if ((at->final || at->last != NULL) && at->respond != NULL) {
    at->respond(at->last, at->final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, at->respond_userp);
  }
  if (at->release) {
    at->about->release(at->about, TRITONSERVER_REQUEST_RELEASE_ALL, at->about->release_userp);
  }
  free(at);
}

static void push(job *what)
{
  pthread_mutex_lock(&pool.lock);
  if (pool.last != NULL) {
    pool.last->next = what;
  } else {
    pool.first = what;
  }
  pool.last = what;
  pthread_cond_signal(&pool.work);
  pthread_mutex_unlock(&pool.lock);
}

static job *make_job(request *about, response *last, bool final, bool release)
{
  job *made = calloc(1, sizeof(*made));
  *made = (job){NULL, about, about->respond, about->respond_userp, last, final, release};
  return made;
}

static void *work(void *unused);

static void start_threads(void)
{
  pthread_mutex_lock(&pool.lock);
  while (pool.started < FAKE_THREADS) {
    pthread_create(&pool.threads[pool.started], NULL, work, NULL);
    pool.started++;
  }
  pthread_mutex_unlock(&pool.lock);
}

/* Everything that happens to a request, on this thread but for the letter s. */
static void serve(request *about)
{
  const char *how = about->model;
  if (strchr(how, 'h') != NULL) {
    while (!__atomic_load_n(about->cancelled, __ATOMIC_ACQUIRE)) {
    }
  }
  for (int i = 0; strchr(how, 'd') != NULL && i < 3; i++) {
    about->respond(make_response(about, false), 0, about->respond_userp);
  }
  uint32_t *stage = NULL;
  if (strchr(how, 'c') != NULL) {
    response *early = make_response(about, false);
    stage = early->stage = calloc(1, sizeof(*stage));
    start_threads();
    push(make_job(about, early, false, false));
    while (__atomic_load_n(stage, __ATOMIC_ACQUIRE) != 1) {
    }
  }
  const bool failed = strchr(how, 'e') != NULL || strchr(how, 'h') != NULL;
  response *last = strchr(how, 'n') != NULL ? NULL : make_response(about, failed);
  if (strchr(how, 's') != NULL) {
    job *final = make_job(about, last, true, false);
    push(make_job(about, NULL, false, true));
    run(final);
  } else if (strchr(how, 'r') != NULL) {
    job *final = make_job(about, last, true, false);
    run(make_job(about, NULL, false, true));
    run(final);
  } else {
    run(make_job(about, last, true, true));
  }
  if (stage != NULL) {
    __atomic_store_n(stage, 2, __ATOMIC_RELEASE);
  }
}

static void *work(void *unused)
{
  (void)unused;
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    job *next = pool.first;
    if (next != NULL) {
      pool.first = next->next;
      if (pool.first == NULL) {
        pool.last = NULL;
      }
      pthread_mutex_unlock(&pool.lock);
      if (!next->final && !next->release && next->last == NULL) {
        serve(next->about);
        free(next);
      } else {
        run(next);
      }
      pthread_mutex_lock(&pool.lock);
    } else if (pool.ending) {
      break;
    } else {
      pthread_cond_wait(&pool.work, &pool.lock);
    }
  }
  pthread_mutex_unlock(&pool.lock);
  return NULL;
}

void fake_stop_threads(void)
{
  pthread_mutex_lock(&pool.lock);
  pool.ending = true;
  pthread_cond_broadcast(&pool.work);
  pthread_mutex_unlock(&pool.lock);
  for (int i = 0; i < pool.started; i++) {
    pthread_join(pool.threads[i], NULL);
  }
  pool.started = 0;
  pool.ending = false;
}

Error *TRITONSERVER_ServerInferAsync(struct TRITONSERVER_Server *server, request *about,
                                     struct TRITONSERVER_InferenceTrace *trace)
{
  (void)server;
  MAY_FAIL();
  sched_yield(); /* here others may do what comes too early */
  free(about->cancelled);
  about->cancelled = calloc(1, sizeof(*about->cancelled));
  if (strchr(about->model, 'x') != NULL) {
    sched_yield();
    about->trace = trace;
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "refused");
  }
  if (trace != NULL) {
    fake_trace_run(trace);
  }
  if (strchr(about->model, 'i') != NULL) {
    serve(about);
  } else {
    start_threads();
    push(make_job(about, NULL, false, false));
  }
  return NULL;
}

/* Responses */

Error *TRITONSERVER_InferenceResponseDelete(response *old)
{
  if (old->output.data != NULL) {
    Error *error = old->allocator->release(old->allocator, old->output.data, old->output.userp, old->output.size,
                                           TRITONSERVER_MEMORY_CPU, 0);
    if (error != NULL) {
      TRITONSERVER_ErrorDelete(error);
    }
  }
  count(&alive.responses, -1);
  free(old->stage);
  free(old);
  return failure();
}

Error *TRITONSERVER_InferenceResponseError(response *of)
{
  return of->failed ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_CANCELLED, "") : NULL;
}

Error *TRITONSERVER_InferenceResponseModel(response *of, const char **name, int64_t *version)
{
  (void)of;
  MAY_FAIL();
  *name = "fake";
  *version = 1;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseId(response *of, const char **id)
{
  MAY_FAIL();
  *id = of->id;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseParameterCount(response *of, uint32_t *number)
{
  (void)of;
  MAY_FAIL();
  *number = FAKE_PARAMETERS;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseParameter(response *of, const uint32_t index, const char **name,
                                               TRITONSERVER_ParameterType *type, const void **value)
{
  (void)of;
  MAY_FAIL();
  fake_parameter(index, name, type, value);
  return NULL;
}

void fake_parameter(uint32_t index, const char **name, TRITONSERVER_ParameterType *type, const void **value)
{
  static const int64_t number = 42;
  static const bool flag = true;
  static const double real = 0.5;
  static const struct {
    const char *name;
    const void *value;
    TRITONSERVER_ParameterType type;
  } all[FAKE_PARAMETERS] = {{"text", "some", TRITONSERVER_PARAMETER_STRING},
                            {"number", &number, TRITONSERVER_PARAMETER_INT},
                            {"flag", &flag, TRITONSERVER_PARAMETER_BOOL},
                            {"real", &real, TRITONSERVER_PARAMETER_DOUBLE},
                            {"bytes", "some", TRITONSERVER_PARAMETER_BYTES}};
  *name = all[index].name;
  *type = all[index].type;
  *value = all[index].value;
}

Error *TRITONSERVER_InferenceResponseOutputClassificationLabel(response *of, const uint32_t index, const size_t class,
                                                               const char **label)
{
  (void)of;
  (void)index;
  MAY_FAIL();
  *label = class % 2 == 0 ? "even" : NULL;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseOutputCount(response *of, uint32_t *number)
{
  if (of->stage != NULL && __atomic_load_n(of->stage, __ATOMIC_ACQUIRE) == 0) {
    __atomic_store_n(of->stage, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(of->stage, __ATOMIC_ACQUIRE) != 2) {
    }
  }
  MAY_FAIL();
  *number = of->failed ? 0 : 1;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseOutput(response *of, const uint32_t index, const char **name,
                                            TRITONSERVER_DataType *datatype, const int64_t **shape,
                                            uint64_t *dim_count, const void **base, size_t *size,
                                            TRITONSERVER_MemoryType *type, int64_t *type_id, void **userp)
{
  static const int64_t dims[] = {FAKE_FLOATS};
  (void)index;
  MAY_FAIL();
  *name = "y";
  *datatype = TRITONSERVER_TYPE_FP32;
  *shape = dims;
  *dim_count = 1;
  *base = of->output.data;
  *size = of->output.size;
  *type = TRITONSERVER_MEMORY_CPU;
  *type_id = 0;
  *userp = of->output.userp;
  return NULL;
}
