/* SPDX-License-Identifier: Apache-2.0 */

#ifndef TFFITEST_STATE_H
#define TFFITEST_STATE_H

#include "tritonbackend.h"

/*
 * Adds the request's INPUT0 to the state that Triton keeps for its sequence, and says the sum as
 * parameter `state` of the response. The model's configuration has a state with input STATE and
 * output STATE; all three are INT32 with one element.
 */
struct TRITONSERVER_Error *keep_state(struct TRITONBACKEND_Request *request,
                                      struct TRITONBACKEND_Response *response);

#endif
