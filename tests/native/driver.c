/* SPDX-License-Identifier: Apache-2.0 */

#include "driver.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

fake_library fake;

static void find(void *library, const char *name, void *to)
{
  void *symbol = dlsym(library, name);
  CHECK(symbol != NULL);
  memcpy(to, &symbol, sizeof(symbol));
}

void driver_find(const char *path)
{
  void *library = dlopen(path, RTLD_NOW);
  CHECK(library != NULL);
  find(library, "fake_read_alive", &fake.read_alive);
  find(library, "fake_fail_at", &fake.fail_at);
  find(library, "fake_calls", &fake.calls);
  find(library, "fake_backend_requests", &fake.backend_requests);
  find(library, "fake_model_new", &fake.model_new);
  find(library, "fake_instance_new", &fake.instance_new);
  find(library, "fake_stop_threads", &fake.stop_threads);
  find(library, "fake_trace_run", &fake.trace_run);
  find(library, "fake_trace_settle", &fake.trace_settle);
  find(library, "fake_traces_alive", &fake.traces_alive);
  find(library, "fake_trace_fail_every", &fake.trace_fail_every);
}

void driver_load(const char *path)
{
  char message[1000];
  if (!tffi_library_load(path, NULL, 0, message, sizeof(message))) {
    fprintf(stderr, "%s\n", message);
    exit(1);
  }
  driver_find(path);
}

bool driver_ok(struct TRITONSERVER_Error *error)
{
  if (error != NULL) {
    TRITONSERVER_ErrorDelete(error);
  }
  return error == NULL;
}

static bool is_empty(tffi_counters *ours, fake_alive *theirs)
{
  tffi_counters_read(ours);
  fake.read_alive(theirs);
  return ours->buffers == 0 && ours->buffer_bytes == 0 && ours->inferences == 0 && ours->completions == 0 &&
         ours->queues == 0 && ours->functions == 0 && ours->batches == 0 && ours->traces == 0 &&
         ours->spares == 0 && theirs->requests == 0 && theirs->responses == 0 && theirs->errors == 0 &&
         theirs->messages == 0 &&
         theirs->allocators <= 1 && theirs->attributes == 0 && theirs->factories == 0 && theirs->statistics == 0 &&
         fake.traces_alive() == 0;
}

void driver_check_empty(void)
{
  tffi_counters ours;
  fake_alive theirs;
  for (int i = 0; !is_empty(&ours, &theirs) && i < 5000; i++) {
    usleep(1000); /* a thread of the library's may still be on its way out of a callback */
  }
  if (!is_empty(&ours, &theirs)) {
    fprintf(stderr,
            "left: %d buffers, %d inferences, %d completions, %d queues, %d functions, %d batches, %d traces; of the "
            "library: %d requests, %d responses, %d errors, %d messages, %d allocators, %d attributes, %d factories, "
            "%d statistics, %d traces\n",
            (int)ours.buffers, (int)ours.inferences, (int)ours.completions, (int)ours.queues, (int)ours.functions,
            (int)ours.batches, (int)ours.traces, (int)theirs.requests, (int)theirs.responses, (int)theirs.errors,
            (int)theirs.messages, (int)theirs.allocators, (int)theirs.attributes, (int)theirs.factories,
            (int)theirs.statistics, (int)fake.traces_alive());
    _exit(1);
  }
}

tffi_function *driver_function(uint32_t workers, bool decoupled, uint64_t *token)
{
  const tffi_tensor input = {.name = "x", .dim_count = 2};
  const tffi_function_spec spec = {.model_name = "f", .inputs = &input, .input_count = 1, .worker_count = workers,
                                   .max_batch_size = 64, .batching = true, .stacking = !decoupled,
                                   .decoupled = decoupled};
  tffi_function *function = NULL;
  tffi_function_new(&spec, token, &function);
  return function;
}

struct TRITONSERVER_Error *driver_submit(const char *how, tffi_queue *queue, uint64_t key, uint64_t *token)
{
  return driver_submit_spare(how, NULL, queue, key, token);
}

struct TRITONSERVER_Error *driver_submit_spare(const char *how, tffi_spares *spares, tffi_queue *queue, uint64_t key,
                                               uint64_t *token)
{
  static float data[TFFI_WORTH_LENDING / sizeof(float)];
  static const int64_t shape[] = {TFFI_WORTH_LENDING / sizeof(float)};
  static const char *const outputs[] = {"y"};
  static const tffi_parameter parameter = {"number", NULL, 7, 0, TRITONSERVER_PARAMETER_INT};
  const tffi_tensor input = {.name = "x", .shape = shape, .byte_size = sizeof(data), .dim_count = 1,
                             .datatype = TRITONSERVER_TYPE_FP32};
  const tffi_request request = {.model_name = how, .model_version = -1, .request_id = "an id", .correlation_id = 1,
                                .priority = 1, .timeout_us = 1, .inputs = &input, .outputs = outputs,
                                .parameters = &parameter, .input_count = 1, .output_count = 1, .parameter_count = 1,
                                .flags = 1, .lending = true, .spares = spares};
  const void *const place = data;
  struct TRITONSERVER_Error *error = NULL;
  tffi_ticket ticket = {0, 0};
  *token = tffi_inference_submit(NULL, &request, &place, key, queue, &ticket, &error);
  CHECK(ticket.token == *token && ticket.key == key);
  CHECK((error == NULL) == (*token != 0));
  return error;
}

void driver_take(tffi_completion *list, driver_seen *seen)
{
  tffi_completion *first = list;
  for (; list != NULL; list = list->next) {
    if (list->has_response && list->error_message != NULL) {
      seen->errors++;
    } else if (list->has_response) {
      CHECK(list->output_count == 1 && strcmp(list->outputs[0].name, "y") == 0);
      const unsigned char *bytes = list->outputs[0].data;
      CHECK(list->outputs[0].byte_size == FAKE_FLOATS * sizeof(float));
      CHECK(bytes[0] == 7 && bytes[FAKE_FLOATS * sizeof(float) - 1] == 7);
      CHECK(strcmp(list->request_id, "an id") == 0 && list->parameter_count == FAKE_PARAMETERS);
      const tffi_parameter *parameters = list->parameters;
      CHECK(strcmp(parameters[0].text, "some") == 0 && parameters[1].integer == 42);
      CHECK(parameters[2].integer == 1 && parameters[3].real == 0.5 && parameters[4].text == NULL);
      seen->responses++;
    }
    seen->done += list->done ? 1 : 0;
  }
  tffi_completion_free(first);
}
