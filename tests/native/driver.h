/* SPDX-License-Identifier: Apache-2.0 */

/* What the drivers share: our C code over the fake library, without Python. */

#ifndef DRIVER_H
#define DRIVER_H

#include <stdio.h>
#include <unistd.h>

#include "fake_traces.h"
#include "fake_triton.h"
#include "internal.h"

#define CHECK(what)                                                          \
  do {                                                                       \
    if (!(what)) {                                                           \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);     \
      _exit(1);                                                              \
    }                                                                        \
  } while (0)

/* The functions of fake_triton.h and fake_traces.h, found in the loaded library. */
typedef struct {
  void (*read_alive)(fake_alive *alive);
  void (*fail_at)(int64_t number);
  int64_t (*calls)(void);
  void (*backend_requests)(struct TRITONBACKEND_Request **requests, uint32_t count);
  struct TRITONBACKEND_Model *(*model_new)(uint64_t token);
  struct TRITONBACKEND_ModelInstance *(*instance_new)(struct TRITONBACKEND_Model *model);
  void (*stop_threads)(void);
  void (*trace_run)(struct TRITONSERVER_InferenceTrace *trace);
  void (*trace_settle)(void);
  int64_t (*traces_alive)(void);
  void (*trace_fail_every)(uint32_t number);
} fake_library;

extern fake_library fake;

/* Deletes an error; whether there was none. */
bool driver_ok(struct TRITONSERVER_Error *error);

/* Loads the fake library; the rest comes after it. */
void driver_load(const char *path);
/* Its functions, without loading it as our code does. */
void driver_find(const char *path);
/* A function model "f" of an input x, with so many workers. */
tffi_function *driver_function(uint32_t workers, bool decoupled, uint64_t *token);
/* Waits, for a while, until nothing of ours and of the library's is alive, and stops if that does not come. */
void driver_check_empty(void);

/* Submits to the model `how`, whose letters say what happens. */
struct TRITONSERVER_Error *driver_submit(const char *how, tffi_queue *queue, uint64_t key, uint64_t *token);
/* The same, by a request that serves again; NULL: by one of its own. */
struct TRITONSERVER_Error *driver_submit_spare(const char *how, tffi_spares *spares, tffi_queue *queue, uint64_t key,
                                               uint64_t *token);
/* Checks the completions of a list, frees them, and counts them. */
typedef struct {
  uint32_t responses, errors, done;
} driver_seen;
void driver_take(tffi_completion *list, driver_seen *seen);

#endif
