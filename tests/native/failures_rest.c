/* SPDX-License-Identifier: Apache-2.0 */

/* What fails around traces, and where the library, the log and descriptors are asked for. */

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "failures.h"

/* Reads all that a trace has told. Of one that nothing failed in, that is complete. */
static bool read_members(tffi_trace *of)
{
  uint32_t members = 0;
  uint32_t told = 0;
  bool named = true;
  const tffi_trace_info *info = NULL;
  for (; (info = tffi_trace_member(of, members)) != NULL; members++) {
    CHECK(info->id != 0);
    named = named && info->model_name != NULL && strcmp(info->model_name, "fake") == 0 && info->model_version == 7 &&
            info->request_id != NULL && info->context != NULL;
    for (tffi_activity *activity = info->activities; activity != NULL; activity = activity->next) {
      told++;
    }
  }
  return named && tffi_trace_dropped(of) == 0 && members == 2 * (FAKE_CHILDREN + 1) && told > 20;
}

static bool use(tffi_trace *of, const char *how)
{
  bool reported = false;
  tffi_trace *child = NULL;
  struct TRITONSERVER_InferenceTrace *native = NULL;
  bool went_well = driver_ok(tffi_trace_set_context(of, "{}"));
  went_well = driver_ok(tffi_trace_report(of, 1, "before", &reported)) && reported && went_well;
  if (driver_ok(tffi_trace_spawn(of, &child))) {
    CHECK(driver_ok(tffi_trace_give(child, &native)));
    fake.trace_run(native);
  } else {
    CHECK(child == NULL);
    went_well = false;
  }
  if (strchr(how, 't') != NULL) { /* refused before Triton looked at it */
    CHECK(driver_ok(tffi_trace_give(of, &native)));
    tffi_trace_refused(of);
  }
  CHECK(driver_ok(tffi_trace_give(of, &native)));
  fake.trace_run(native);
  went_well = driver_ok(tffi_trace_report(of, 2, "beside", &reported)) && went_well;
  while (tffi_trace_wait(of, 1000000000) != TFFI_TRACE_OVER) {
  }
  fake.trace_settle();
  went_well = read_members(of) && went_well;
  if (child != NULL) {
    tffi_trace_release(&child);
  }
  return went_well;
}

bool trace(const char *how)
{
  tffi_trace *made = NULL;
  if (!driver_ok(tffi_trace_new(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS, 0, 1000,
                                100000, &made))) {
    CHECK(made == NULL);
    return false;
  }
  const bool went_well = use(made, how);
  tffi_trace_release(&made);
  tffi_pool_set_limit(0);
  return went_well;
}

static uint32_t descriptors(void)
{
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  CHECK(folder != NULL);
  while (readdir(folder) != NULL) {
    count++;
  }
  closedir(folder);
  return count;
}

/* Has the process open no more descriptors than it has; or, with false, as many as before. */
static void exhaust(bool now)
{
  static struct rlimit before;
  if (!now) {
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    return;
  }
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = dup(0); /* the lowest that is free */
  CHECK(next >= 0);
  close(next);
  const struct rlimit none = {.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
}

void fail_to_load(const char *path)
{
  char message[200];
  char small[8];
  const char *const neighbours[] = {"/nowhere/libnone.so", "libm.so.6"};
  CHECK(tffi_library_path() == NULL && !tffi_library_has("TRITONSERVER_ApiVersion"));
  /* No library, one of somebody else's, one that cannot tell its version. */
  CHECK(!tffi_library_load("/nowhere/libtritonserver.so", neighbours, 2, message, sizeof(message)));
  CHECK(strstr(message, "nor do 1 of its 2 neighbours: /nowhere/libnone.so") != NULL);
  CHECK(!tffi_library_load("libm.so.6", NULL, 0, small, sizeof(small)) && strlen(small) == sizeof(small) - 1);
  driver_find(path);
  fake.fail_at(1);
  CHECK(!tffi_library_load(path, NULL, 0, message, sizeof(message)) && strstr(message, "made to fail") != NULL);
  fake.fail_at(0);
  CHECK(tffi_library_path() == NULL);
  bool loaded = false;
  for (int64_t number = 1; !loaded; number++) {
    fail_allocation(number, true);
    loaded = tffi_library_load(path, neighbours, 2, message, sizeof(message));
    CHECK(loaded == (tffi_library_path() != NULL));
    CHECK(loaded || strstr(message, "out of memory") != NULL);
    CHECK(!loaded || number > 3);
  }
  /* The same once more, without memory; and another, which is refused. */
  fail_allocation(1, true);
  CHECK(tffi_library_load(path, NULL, 0, message, sizeof(message)));
  CHECK(!tffi_library_load("libm.so.6", NULL, 0, message, sizeof(message)));
  fail_allocation(0, false);
  CHECK(strstr(message, "has loaded") != NULL);
  driver_check_empty();
}

void fail_to_watch(const char *path)
{
  const uint32_t before = descriptors();
  CHECK(tffi_log_watch(-1, "/nowhere/log") == -1 && descriptors() == before);
  exhaust(true);
  CHECK(tffi_log_watch(-1, path) == -1);
  tffi_queue *queue = NULL;
  tffi_queue_new(&queue);
  CHECK(queue != NULL && tffi_queue_fd(queue) == -1);
  exhaust(false);
  CHECK(tffi_queue_fd(queue) >= 0); /* the next time there is one */
  tffi_queue_release(&queue);
  const int watch = tffi_log_watch(-1, path);
  CHECK(watch >= 0 && tffi_log_watch(watch, "/nowhere/log") == -1 && tffi_log_watch(watch, path) == watch);
  close(watch);
  CHECK(descriptors() == before);
}

void fail_to_count(void)
{
  const tffi_wanted rows = {.batching = true};
  const tffi_wanted whole = {.batching = false};
  const int64_t good[] = {5, 3, 2};
  const int64_t huge[] = {INT64_C(1) << 62, INT64_C(1) << 62, 4};
  const int64_t wraps[] = {1, INT64_C(1) << 33, INT64_C(1) << 31, 7}; /* to 0, and then to what would do */
  const int64_t negative[] = {5, -1};
  CHECK(tffi_wanted_classes(&rows, good, 3, 120) == 6 && tffi_wanted_classes(&whole, good, 3, 120) == 30);
  CHECK(tffi_wanted_classes(&whole, good, 3, 29) == 0);
  CHECK(tffi_wanted_classes(&rows, huge, 3, SIZE_MAX) == 0 && tffi_wanted_classes(&whole, huge, 3, SIZE_MAX) == 0);
  CHECK(tffi_wanted_classes(&rows, wraps, 4, SIZE_MAX) == 0);
  CHECK(tffi_wanted_classes(&rows, negative, 2, SIZE_MAX) == 0);
}
