/* SPDX-License-Identifier: Apache-2.0 */

/* Traces under many threads: those that fill and release them, those that report, wait, read and let go. */

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "fake_traces.h"

enum { WORKERS = 4, ROUNDS = 100, BOTH = TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS };

static void give(tffi_trace *trace)
{
  struct TRITONSERVER_InferenceTrace *native = NULL;
  CHECK(driver_ok(tffi_trace_give(trace, &native)) && native != NULL);
  fake.trace_run(native);
  CHECK(!driver_ok(tffi_trace_give(trace, &native)) && native == NULL);
}

/* Counts what the trace and all below it have told, and takes every other tensor over. */
static uint32_t read_all(tffi_trace *trace, uint32_t *members)
{
  uint32_t told = 0;
  const tffi_trace_info *info = NULL;
  for (*members = 0; (info = tffi_trace_member(trace, *members)) != NULL; (*members)++) {
    CHECK(strcmp(info->model_name, "fake") == 0 && info->model_version == 7);
    for (tffi_activity *activity = info->activities; activity != NULL; activity = activity->next) {
      tffi_tensor *tensor = &activity->tensor;
      told += 1;
      CHECK((tensor->buffer == NULL) == (tensor->data == NULL));
      if (tensor->buffer != NULL) {
        const char *data = tensor->data;
        CHECK(tensor->byte_size == 0 || tensor->byte_size == FAKE_TENSOR);
        CHECK(tensor->byte_size == 0 || (data[0] == 7 && data[FAKE_TENSOR - 1] == 7));
        CHECK(tensor->dim_count == 2 && tensor->shape[0] == 2 && strcmp(tensor->name, "x") == 0);
        if (told % 2 == 0) {
          tffi_buffer *buffer = tensor->buffer;
          tensor->buffer = NULL;
          tffi_buffer_release(buffer);
        }
      }
    }
  }
  return told;
}

static void one_round(uint32_t number)
{
  tffi_trace *trace = NULL;
  bool reported = false;
  const uint64_t most = number % 5 == 0 ? 6 : 1000;
  if (!driver_ok(tffi_trace_new(number % 3 == 0 ? TRITONSERVER_TRACE_LEVEL_TIMESTAMPS : BOTH, 0, most,
                         number % 4 == 0 ? FAKE_TENSOR : 1000000, &trace))) {
    CHECK(trace == NULL);
    return;
  }
  CHECK(tffi_trace_wait(trace, 0) == TFFI_TRACE_UNUSED);
  CHECK(driver_ok(tffi_trace_set_context(trace, "{}")));
  CHECK(driver_ok(tffi_trace_report(trace, number, "before", &reported)) && reported);
  if (number % 7 == 0) { /* refused before Triton looked at it */
    struct TRITONSERVER_InferenceTrace *native = NULL;
    CHECK(driver_ok(tffi_trace_give(trace, &native)));
    tffi_trace_refused(trace);
    CHECK(tffi_trace_wait(trace, 0) == TFFI_TRACE_UNUSED);
  }
  tffi_trace *child = NULL;
  if (number % 2 == 0 && driver_ok(tffi_trace_spawn(trace, &child))) {
    give(child);
    if (number % 4 == 0) {
      tffi_trace_release(&child);
      child = NULL;
    }
  }
  if (number % 11 == 0) {
    tffi_trace_close(trace);
  } else {
    give(trace);
    CHECK(!driver_ok(tffi_trace_set_context(trace, "{}")));
    CHECK(driver_ok(tffi_trace_report(trace, number, "beside", &reported)));
  }
  if (number % 3 != 1) {
    while (tffi_trace_wait(trace, number % 2 == 0 ? 50000 : 1000000000) != TFFI_TRACE_OVER) {
    }
    CHECK(driver_ok(tffi_trace_report(trace, number, "after", &reported)) && !reported);
    tffi_trace *late = NULL;
    CHECK(!driver_ok(tffi_trace_spawn(trace, &late)) && late == NULL);
    uint32_t members = 0;
    if (number % 11 != 0) {
      const uint32_t told = read_all(trace, &members);
      CHECK(told <= most && (tffi_trace_dropped(trace) > 0 || told >= 8) && members >= 1);
    }
  }
  if (child != NULL) {
    tffi_trace_release(&child);
  }
  tffi_trace_release(&trace);
}

static void *work(void *userp)
{
  const uint32_t first = *(const uint32_t *)userp;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    one_round(first + i * WORKERS);
  }
  return NULL;
}

static void many(uint32_t failures)
{
  pthread_t threads[WORKERS];
  uint32_t numbers[WORKERS];
  fake.trace_fail_every(failures);
  for (uint32_t i = 0; i < WORKERS; i++) {
    numbers[i] = i + 1;
    CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
  }
  for (uint32_t i = 0; i < WORKERS; i++) {
    pthread_join(threads[i], NULL);
  }
  fake.trace_settle();
  driver_check_empty();
}

int main(int count, char **arguments)
{
  CHECK(count == 2);
  driver_load(arguments[1]);
  many(0);
  many(5);
  return 0;
}
