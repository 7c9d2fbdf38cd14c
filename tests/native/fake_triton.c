/* SPDX-License-Identifier: Apache-2.0 */

#include "fake_triton.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tritonbackend.h"
#include "tritonserver.h"

typedef struct TRITONSERVER_Error Error;

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  char text[200];
};

struct TRITONSERVER_ResponseAllocator {
  TRITONSERVER_ResponseAllocatorAllocFn_t alloc;
  TRITONSERVER_ResponseAllocatorReleaseFn_t release;
};

typedef struct TRITONSERVER_InferenceRequest {
  char model[32];
  char id[64];
  TRITONSERVER_InferenceRequestReleaseFn_t release;
  void *release_userp;
  struct TRITONSERVER_ResponseAllocator *allocator;
  TRITONSERVER_InferenceResponseCompleteFn_t respond;
  void *respond_userp;
  bool cancelled;
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

static fake_alive alive;
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

static void count(int64_t *what, int64_t change)
{
  __atomic_add_fetch(what, change, __ATOMIC_RELAXED);
}

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

static Error *failure(void)
{
  const int64_t number = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  if (number != __atomic_load_n(&fail_at, __ATOMIC_RELAXED)) {
    return NULL;
  }
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "made to fail");
}

#define MAY_FAIL()            \
  do {                        \
    Error *made = failure();  \
    if (made != NULL) {       \
      return made;            \
    }                         \
  } while (0)

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
  (void)allocator;
  (void)query;
  return failure();
}

Error *TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    struct TRITONSERVER_ResponseAllocator *allocator, TRITONSERVER_ResponseAllocatorBufferAttributesFn_t function)
{
  (void)allocator;
  (void)function;
  return failure();
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
  *made = fresh;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestDelete(request *old)
{
  count(&alive.requests, -1);
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

Error *TRITONSERVER_InferenceRequestSetIntParameter(request *to, const char *key, const int64_t value)
{
  (void)to;
  (void)key;
  (void)value;
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
  __atomic_store_n(&to->cancelled, true, __ATOMIC_RELEASE);
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
    Error *error = of->allocator->alloc(of->allocator, "y", output->size, TRITONSERVER_MEMORY_GPU, 0,
                                        of->respond_userp, &output->data, &output->userp, &type, &type_id);
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
  if (at->final && at->respond != NULL) {
    at->respond(at->last, TRITONSERVER_RESPONSE_COMPLETE_FINAL, at->respond_userp);
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

/* Everything that happens to a request, on this thread but for the letter s. */
static void serve(request *about)
{
  const char *how = about->model;
  if (strchr(how, 'h') != NULL) {
    while (!__atomic_load_n(&about->cancelled, __ATOMIC_ACQUIRE)) {
    }
  }
  for (int i = 0; strchr(how, 'd') != NULL && i < 3; i++) {
    about->respond(make_response(about, false), 0, about->respond_userp);
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
      if (!next->final && !next->release) {
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

static void start_threads(void)
{
  pthread_mutex_lock(&pool.lock);
  while (pool.started < FAKE_THREADS) {
    pthread_create(&pool.threads[pool.started], NULL, work, NULL);
    pool.started++;
  }
  pthread_mutex_unlock(&pool.lock);
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
  (void)trace;
  MAY_FAIL();
  if (strchr(about->model, 'x') != NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "refused");
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
  *number = 2;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseParameter(response *of, const uint32_t index, const char **name,
                                               TRITONSERVER_ParameterType *type, const void **value)
{
  static const int64_t number = 42;
  (void)of;
  MAY_FAIL();
  *name = index == 0 ? "text" : "number";
  *type = index == 0 ? TRITONSERVER_PARAMETER_STRING : TRITONSERVER_PARAMETER_INT;
  *value = index == 0 ? (const void *)"some" : (const void *)&number;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseOutputCount(response *of, uint32_t *number)
{
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

/* The backend API: a request with an input x and an output y, both of FAKE_ROWS rows of FAKE_FLOATS */

struct TRITONBACKEND_Request {
  int64_t shape[2];
  float data[FAKE_ROWS * FAKE_FLOATS];
  bool answered;
};

struct TRITONBACKEND_Response {
  struct TRITONBACKEND_Request *of;
  float *data;
  size_t size;
};

void fake_backend_requests(struct TRITONBACKEND_Request **requests, uint32_t number)
{
  for (uint32_t i = 0; i < number; i++) {
    requests[i] = calloc(1, sizeof(*requests[i]));
    requests[i]->shape[0] = FAKE_ROWS;
    requests[i]->shape[1] = FAKE_FLOATS;
    requests[i]->data[0] = (float)i;
    count(&alive.requests, 1);
  }
}

struct TRITONBACKEND_Model {
  void *state;
  char config[128];
};

struct TRITONBACKEND_ModelInstance {
  void *state;
  struct TRITONBACKEND_Model *model;
};

struct TRITONBACKEND_Model *fake_model_new(uint64_t token)
{
  struct TRITONBACKEND_Model *model = calloc(1, sizeof(*model));
  snprintf(model->config, sizeof(model->config), "{\"parameters\":{\"tritonffi.token\":{\"string_value\":\"%llu\"}}}",
           (unsigned long long)token);
  return model;
}

struct TRITONBACKEND_ModelInstance *fake_instance_new(struct TRITONBACKEND_Model *model)
{
  struct TRITONBACKEND_ModelInstance *instance = calloc(1, sizeof(*instance));
  instance->model = model;
  return instance;
}

Error *TRITONBACKEND_ModelName(struct TRITONBACKEND_Model *model, const char **name)
{
  (void)model;
  MAY_FAIL();
  *name = "f";
  return NULL;
}

Error *TRITONBACKEND_ModelConfig(struct TRITONBACKEND_Model *model, const uint32_t version,
                                 struct TRITONSERVER_Message **config)
{
  (void)version;
  MAY_FAIL();
  count(&alive.messages, 1);
  *config = (struct TRITONSERVER_Message *)model;
  return NULL;
}

Error *TRITONSERVER_MessageSerializeToJson(struct TRITONSERVER_Message *message, const char **base, size_t *size)
{
  struct TRITONBACKEND_Model *model = (struct TRITONBACKEND_Model *)message;
  MAY_FAIL();
  *base = model->config;
  *size = strlen(model->config);
  return NULL;
}

Error *TRITONSERVER_MessageDelete(struct TRITONSERVER_Message *message)
{
  (void)message;
  count(&alive.messages, -1);
  return failure();
}

Error *TRITONBACKEND_ModelState(struct TRITONBACKEND_Model *model, void **state)
{
  MAY_FAIL();
  *state = model->state;
  return NULL;
}

Error *TRITONBACKEND_ModelSetState(struct TRITONBACKEND_Model *model, void *state)
{
  MAY_FAIL();
  model->state = state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceModel(struct TRITONBACKEND_ModelInstance *instance,
                                        struct TRITONBACKEND_Model **model)
{
  MAY_FAIL();
  *model = instance->model;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceState(struct TRITONBACKEND_ModelInstance *instance, void **state)
{
  MAY_FAIL();
  *state = instance->state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceSetState(struct TRITONBACKEND_ModelInstance *instance, void *state)
{
  MAY_FAIL();
  instance->state = state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceReportStatistics(struct TRITONBACKEND_ModelInstance *instance,
                                                   struct TRITONBACKEND_Request *about, const bool success,
                                                   const uint64_t exec_start, const uint64_t compute_start,
                                                   const uint64_t compute_end, const uint64_t exec_end)
{
  (void)instance;
  (void)about;
  (void)success;
  (void)exec_start;
  (void)compute_start;
  (void)compute_end;
  (void)exec_end;
  return failure();
}

Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(struct TRITONBACKEND_ModelInstance *instance,
                                                        const uint64_t batch_size, const uint64_t exec_start,
                                                        const uint64_t compute_start, const uint64_t compute_end,
                                                        const uint64_t exec_end)
{
  (void)instance;
  (void)batch_size;
  (void)exec_start;
  (void)compute_start;
  (void)compute_end;
  (void)exec_end;
  return failure();
}

Error *TRITONBACKEND_RequestInput(struct TRITONBACKEND_Request *of, const char *name,
                                  struct TRITONBACKEND_Input **input)
{
  MAY_FAIL();
  if (strcmp(name, "x") != 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "no such input");
  }
  *input = (struct TRITONBACKEND_Input *)of;
  return NULL;
}

Error *TRITONBACKEND_InputProperties(struct TRITONBACKEND_Input *input, const char **name,
                                     TRITONSERVER_DataType *datatype, const int64_t **shape, uint32_t *dim_count,
                                     uint64_t *byte_size, uint32_t *buffer_count)
{
  struct TRITONBACKEND_Request *of = (struct TRITONBACKEND_Request *)input;
  MAY_FAIL();
  *name = "x";
  *datatype = TRITONSERVER_TYPE_FP32;
  *shape = of->shape;
  *dim_count = 2;
  *byte_size = sizeof(of->data);
  *buffer_count = 1;
  return NULL;
}

Error *TRITONBACKEND_InputBuffer(struct TRITONBACKEND_Input *input, const uint32_t index, const void **buffer,
                                 uint64_t *size, TRITONSERVER_MemoryType *type, int64_t *type_id)
{
  struct TRITONBACKEND_Request *of = (struct TRITONBACKEND_Request *)input;
  (void)index;
  MAY_FAIL();
  *buffer = of->data;
  *size = sizeof(of->data);
  *type = TRITONSERVER_MEMORY_CPU;
  *type_id = 0;
  return NULL;
}

Error *TRITONBACKEND_RequestOutputCount(struct TRITONBACKEND_Request *of, uint32_t *number)
{
  (void)of;
  MAY_FAIL();
  *number = 1;
  return NULL;
}

Error *TRITONBACKEND_RequestOutputName(struct TRITONBACKEND_Request *of, const uint32_t index, const char **name)
{
  (void)of;
  (void)index;
  MAY_FAIL();
  *name = "y";
  return NULL;
}

Error *TRITONBACKEND_RequestRelease(struct TRITONBACKEND_Request *of, uint32_t flags)
{
  (void)flags;
  count(&alive.answered, of->answered ? 1 : 0);
  count(&alive.released, 1);
  count(&alive.requests, -1);
  free(of);
  return failure();
}

Error *TRITONBACKEND_ResponseNew(struct TRITONBACKEND_Response **made, struct TRITONBACKEND_Request *of)
{
  MAY_FAIL();
  *made = calloc(1, sizeof(**made));
  (*made)->of = of;
  count(&alive.responses, 1);
  return NULL;
}

static void drop_response(struct TRITONBACKEND_Response *old)
{
  free(old->data);
  free(old);
  count(&alive.responses, -1);
}

Error *TRITONBACKEND_ResponseDelete(struct TRITONBACKEND_Response *old)
{
  drop_response(old);
  return failure();
}

Error *TRITONBACKEND_ResponseSend(struct TRITONBACKEND_Response *last, const uint32_t flags, Error *error)
{
  (void)error;
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0) {
    last->of->answered = true;
  }
  drop_response(last);
  return failure();
}

Error *TRITONBACKEND_ResponseOutput(struct TRITONBACKEND_Response *of, struct TRITONBACKEND_Output **output,
                                    const char *name, const TRITONSERVER_DataType datatype, const int64_t *shape,
                                    const uint32_t dim_count)
{
  (void)name;
  (void)datatype;
  (void)shape;
  (void)dim_count;
  MAY_FAIL();
  *output = (struct TRITONBACKEND_Output *)of;
  return NULL;
}

Error *TRITONBACKEND_OutputBuffer(struct TRITONBACKEND_Output *output, void **buffer, const uint64_t size,
                                  TRITONSERVER_MemoryType *type, int64_t *type_id)
{
  struct TRITONBACKEND_Response *of = (struct TRITONBACKEND_Response *)output;
  (void)type_id;
  MAY_FAIL();
  of->data = malloc(size + 1);
  of->size = size;
  *buffer = of->data;
  *type = TRITONSERVER_MEMORY_CPU;
  return NULL;
}
