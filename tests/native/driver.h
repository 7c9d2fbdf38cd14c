/* SPDX-License-Identifier: Apache-2.0 */

/* What the drivers share: our C code over the fake library, without Python. */

#ifndef DRIVER_H
#define DRIVER_H

#include <stdio.h>

#include "fake_triton.h"
#include "internal.h"

#define CHECK(what)                                                          \
  do {                                                                       \
    if (!(what)) {                                                           \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);     \
      _exit(1);                                                              \
    }                                                                        \
  } while (0)

/* The functions of fake_triton.h, found in the loaded library. */
typedef struct {
  void (*read_alive)(fake_alive *alive);
  void (*fail_at)(int64_t number);
  int64_t (*calls)(void);
  void (*backend_requests)(struct TRITONBACKEND_Request **requests, uint32_t count);
  struct TRITONBACKEND_Model *(*model_new)(uint64_t token);
  struct TRITONBACKEND_ModelInstance *(*instance_new)(struct TRITONBACKEND_Model *model);
  void (*stop_threads)(void);
} fake_library;

extern fake_library fake;

/* Loads the fake library; the rest comes after it. */
void driver_load(const char *path);
/* A function model "f" of an input x, with so many workers. */
tffi_function *driver_function(uint32_t workers, uint64_t *token);
/* Waits, for a while, until nothing of ours and of the library's is alive, and stops if that does not come. */
void driver_check_empty(void);

/* Submits to the model `how`, whose letters say what happens. */
struct TRITONSERVER_Error *driver_submit(const char *how, tffi_queue *queue, uint64_t key, uint64_t *token);
/* Checks the completions of a list, frees them, and counts them. */
typedef struct {
  uint32_t responses, errors, done;
} driver_seen;
void driver_take(tffi_completion *list, driver_seen *seen);

#endif
