/* SPDX-License-Identifier: Apache-2.0 */

/* What the files of the fake library share: its counters, and the calls that fail. */

#ifndef FAKE_INSIDE_H
#define FAKE_INSIDE_H

#include "fake_triton.h"
#include "tritonserver.h"

typedef struct TRITONSERVER_Error Error;

extern fake_alive alive;

static inline void count(int64_t *what, int64_t change)
{
  __atomic_add_fetch(what, change, __ATOMIC_RELAXED);
}

/* The parameters that requests of backends and responses have: one of each kind. */
void fake_parameter(uint32_t index, const char **name, TRITONSERVER_ParameterType *type, const void **value);

/* One more call that can fail: an error if it is the one that shall, or NULL. */
Error *failure(void);

#define MAY_FAIL()            \
  do {                        \
    Error *made = failure();  \
    if (made != NULL) {       \
      return made;            \
    }                         \
  } while (0)

#endif
