/* SPDX-License-Identifier: Apache-2.0 */

/* Implicit state: Triton hands the model a tensor that an earlier request of the sequence left. */

#include "state.h"
#include "knobs.h"

#include <string.h>

struct TRITONBACKEND_State;

Error *TRITONBACKEND_StateNew(struct TRITONBACKEND_State **state,
                              struct TRITONBACKEND_Request *request, const char *name,
                              TRITONSERVER_DataType datatype, const int64_t *shape,
                              uint32_t dims_count);
Error *TRITONBACKEND_StateBuffer(struct TRITONBACKEND_State *state, void **buffer,
                                 uint64_t buffer_byte_size, TRITONSERVER_MemoryType *memory_type,
                                 int64_t *memory_type_id);
Error *TRITONBACKEND_StateUpdate(struct TRITONBACKEND_State *state);

/* The one element of an input; shape and dim_count are Triton's. */
static Error *read_number(struct TRITONBACKEND_Request *request, const char *name, int32_t *number,
                          const int64_t **shape, uint32_t *dim_count)
{
  struct TRITONBACKEND_Input *input = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  uint64_t byte_size = 0;
  uint32_t buffer_count = 0;
  const void *data = NULL;
  TRY(TRITONBACKEND_RequestInput(request, name, &input));
  TRY(TRITONBACKEND_InputPropertiesForHostPolicy(input, "", &name, &datatype, shape, dim_count,
                                                 &byte_size, &buffer_count));
  TRY(TRITONBACKEND_InputBufferForHostPolicy(input, "", 0, &data, &byte_size, &memory, &memory_id));
  if (datatype != TRITONSERVER_TYPE_INT32 || byte_size != sizeof *number)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG,
                                 "tffitest: a state is one INT32 and so is INPUT0");
  memcpy(number, data, sizeof *number);
  return NULL;
}

Error *keep_state(struct TRITONBACKEND_Request *request, struct TRITONBACKEND_Response *response)
{
  struct TRITONBACKEND_State *state = NULL;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  const int64_t *shape = NULL;
  uint32_t dim_count = 0;
  int32_t before = 0;
  int32_t step = 0;
  void *buffer = NULL;
  TRY(read_number(request, "INPUT0", &step, &shape, &dim_count));
  TRY(read_number(request, "STATE", &before, &shape, &dim_count));
  const int32_t now = before + step;
  TRY(TRITONBACKEND_StateNew(&state, request, "STATE", TRITONSERVER_TYPE_INT32, shape, dim_count));
  TRY(TRITONBACKEND_StateBuffer(state, &buffer, sizeof now, &memory, &memory_id));
  if (memory == TRITONSERVER_MEMORY_GPU)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "tffitest: a state in GPU memory");
  memcpy(buffer, &now, sizeof now);
  TRY(TRITONBACKEND_StateUpdate(state));
  return TRITONBACKEND_ResponseSetIntParameter(response, "state", now);
}
