/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The extension is itself the Triton backend "tritonffi"; these are the functions that Triton calls. function.c has
 * the callables behind the models, gather.c and scatter.c turn requests into batches and results into responses.
 *
 * An instance thread of Triton's sleeps in Execute while a worker runs the callable: that keeps the instance busy, so
 * that Triton's batcher fills the next batch meanwhile. No thread of Triton's waits for the GIL; what Execute waits
 * for is the callable, and tffi_function_abandon ends that wait.
 */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"

enum {
  MESSAGE_SIZE = 512,
  TOKEN_DIGITS = 20 /* of the largest uint64_t */
};

/*
 * The token in the serialised model config, 0 where there is none. No JSON parser is needed for it: these exact bytes
 * with their bare quotes cannot stand inside a JSON string, where each quote has a backslash before it, and
 * {"string_value": ...} is the form of an entry of `parameters` alone. Triton writes the text without spaces.
 */
static uint64_t token_in(const char *json, size_t size)
{
  static const char key[] = "\"tritonffi.token\":{\"string_value\":\"";
  const char *end = json + size;
  const char *at = memmem(json, size, key, sizeof(key) - 1);
  if (at == NULL) {
    return 0;
  }
  at += sizeof(key) - 1;
  char digits[TOKEN_DIGITS + 1] = {0};
  size_t length = 0;
  while (at < end && length < TOKEN_DIGITS && *at >= '0' && *at <= '9') {
    digits[length++] = *at++;
  }
  if (at >= end || *at != '"') {
    return 0;
  }
  return strtoull(digits, NULL, 10);
}

static struct TRITONSERVER_Error *model_token(struct TRITONBACKEND_Model *model, uint64_t *token)
{
  struct TRITONSERVER_Message *config = NULL;
  const char *json = NULL;
  size_t size = 0;
  *token = 0;
  struct TRITONSERVER_Error *error = TRITONBACKEND_ModelConfig(model, 1, &config);
  if (error != NULL) {
    return error;
  }
  error = TRITONSERVER_MessageSerializeToJson(config, &json, &size);
  if (error == NULL) {
    *token = token_in(json, size);
  }
  tffi_discard(TRITONSERVER_MessageDelete(config));
  return error;
}

/* An address in this very library. */
static const char module_mark;

/*
 * Thread: the one that loads the first function model of a server, once for each path under which Triton finds us.
 * Must not: wait, touch Python; nor, in a copy of the extension, call Triton through the import table.
 * Takes and gives: nothing. In a copy, or a file replaced since the import, the table is empty and every call would
 * answer with a pointer that Triton takes for an error object of its own: such a library refuses to serve, with an
 * error object made by the very library that called.
 */
struct TRITONSERVER_Error *TRITONBACKEND_Initialize(struct TRITONBACKEND_Backend *backend)
{
  (void)backend;
  if (tffi_library_path() != NULL) {
    return NULL;
  }
  Dl_info caller = {0};
  Dl_info self = {0};
  void *symbol = NULL;
  if (dladdr(__builtin_return_address(0), &caller) != 0 && caller.dli_fname != NULL) {
    void *handle = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    symbol = handle == NULL ? NULL : dlsym(handle, "TRITONSERVER_ErrorNew");
  }
  if (symbol == NULL) {
    fputs("tritonffi: a copy of the extension was loaded as a backend by an unknown caller\n", stderr);
    abort(); /* whatever is returned, Triton's next step would be into memory that is not there */
  }
  struct TRITONSERVER_Error *(*error_new)(TRITONSERVER_Error_Code, const char *) = NULL;
  memcpy(&error_new, &symbol, sizeof(error_new)); /* POSIX gives both one size, C no conversion */
  char message[MESSAGE_SIZE];
  const bool known = dladdr(&module_mark, &self) != 0 && self.dli_fname != NULL;
  snprintf(message, sizeof(message),
           "'%.300s' is not the tritonffi extension that this process has imported, but a copy of it, or the file was "
           "replaced since; restart the process",
           known ? self.dli_fname : "?");
  return error_new(TRITONSERVER_ERROR_INTERNAL, message);
}

/*
 * Thread: the one that deletes the last server.
 * Must not: wait, touch Python; Initialize may come again.
 * Takes and gives: nothing.
 */
struct TRITONSERVER_Error *TRITONBACKEND_Finalize(struct TRITONBACKEND_Backend *backend)
{
  (void)backend;
  return NULL;
}

/*
 * Thread: the one that loads the first function model, after Initialize.
 * Must not: wait, touch Python.
 * Takes and gives: only the answer that a model without `instance_group` gets one instance on the CPU; Triton's own
 * choice would be one for each GPU.
 */
struct TRITONSERVER_Error *TRITONBACKEND_GetBackendAttribute(struct TRITONBACKEND_Backend *backend,
                                                             struct TRITONBACKEND_BackendAttribute *attributes)
{
  (void)backend;
  return TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1,
                                                                 NULL, 0);
}

/*
 * Thread: one of Triton's that loads models; while an old model of the same name still serves.
 * Must not: wait, touch Python.
 * Takes and gives: gives the model a reference to its function, which ModelFinalize takes back.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(struct TRITONBACKEND_Model *model)
{
  const char *name = NULL;
  uint64_t token = 0;
  char message[MESSAGE_SIZE];
  struct TRITONSERVER_Error *error = TRITONBACKEND_ModelName(model, &name);
  if (error == NULL) {
    error = model_token(model, &token);
  }
  if (error != NULL) {
    return error;
  }
  if (token == 0) {
    snprintf(message, sizeof(message),
             "model '%.128s': its config names no Python function; load it with Server.load_function", name);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, message);
  }
  tffi_function *function = tffi_function_enter(token);
  if (function == NULL) {
    snprintf(message, sizeof(message),
             "model '%.128s': its Python function is gone, or was never in this process (token %llu)", name,
             (unsigned long long)token);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, message);
  }
  error = TRITONBACKEND_ModelSetState(model, function);
  if (error != NULL) {
    tffi_function_leave(function);
  }
  return error;
}

/*
 * Thread: one of Triton's that unloads models; also after a ModelInitialize that failed.
 * Must not: wait, touch Python.
 * Takes and gives: takes back the model's reference to its function. Workers of a closing function leave then.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(struct TRITONBACKEND_Model *model)
{
  void *state = NULL;
  struct TRITONSERVER_Error *error = TRITONBACKEND_ModelState(model, &state);
  if (error != NULL || state == NULL) {
    return error;
  }
  tffi_discard(TRITONBACKEND_ModelSetState(model, NULL));
  tffi_function_leave(state);
  return NULL;
}

/*
 * Thread: the instance's own, before its warm-up.
 * Must not: wait, touch Python.
 * Takes and gives: makes the instance's state. The model holds the reference to the function, and outlives it.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(struct TRITONBACKEND_ModelInstance *native)
{
  struct TRITONBACKEND_Model *model = NULL;
  void *state = NULL;
  struct TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceModel(native, &model);
  if (error == NULL) {
    error = TRITONBACKEND_ModelState(model, &state);
  }
  if (error != NULL) {
    return error;
  }
  function_instance *instance = calloc(1, sizeof(*instance));
  if (instance == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for one more instance");
  }
  instance->native = native;
  instance->function = state;
  instance->worker = tffi_function_assign_worker(instance->function);
  instance->warm_up_calls = instance->function->warm_up_calls;
  error = TRITONBACKEND_ModelInstanceSetState(native, instance);
  if (error != NULL) {
    free(instance);
  }
  return error;
}

/*
 * Thread: one of Triton's that unloads models; also after a ModelInstanceInitialize that failed.
 * Must not: wait, touch Python.
 * Takes and gives: frees the instance's state.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(struct TRITONBACKEND_ModelInstance *native)
{
  void *state = NULL;
  struct TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(native, &state);
  if (error == NULL && state != NULL) {
    tffi_discard(TRITONBACKEND_ModelInstanceSetState(native, NULL));
    free(state);
  }
  return error;
}

/*
 * Thread: the instance's own, during the load too (warm-up).
 * Must not: touch Python. It waits for the callable by intent, and for nothing else: the instance is busy so long.
 * Takes and gives: takes the requests, all of which are answered and released when it returns, whatever happened.
 */
struct TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance *native,
                                                              struct TRITONBACKEND_Request **requests,
                                                              const uint32_t request_count)
{
  void *state = NULL;
  struct TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(native, &state);
  if (error != NULL) {
    return error; /* Triton keeps the requests then, and answers them */
  }
  function_instance *instance = state;
  /*
   * Nothing tells a request of the warm-up from a user's, but the warm-up comes first and its length is known. The
   * time of the load would not do: the model serves users before the load has returned.
   */
  instance->is_warming_up = instance->warm_up_calls > 0;
  if (instance->is_warming_up) {
    instance->warm_up_calls--;
  }
  tffi_function *function = instance->function;
  __atomic_add_fetch(&function->executing, 1, __ATOMIC_RELAXED);
  tffi_batches_run(function, tffi_batches_gather(instance, requests, request_count));
  /* The model, which holds the function, outlives its instance's thread. */
  __atomic_sub_fetch(&function->executing, 1, __ATOMIC_RELEASE);
  return NULL;
}
