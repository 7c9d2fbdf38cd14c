/* SPDX-License-Identifier: Apache-2.0 */

#ifndef TFFITEST_RESPONSES_H
#define TFFITEST_RESPONSES_H

#include "tritonbackend.h"

/*
 * Reports one response: computed in `ns` nanoseconds, its outputs copied in 2 more; an empty one
 * took both together. The error is that of the response, or NULL, and stays the caller's.
 */
struct TRITONSERVER_Error *report_response(struct TRITONBACKEND_ModelInstance *instance,
                                           struct TRITONBACKEND_ResponseFactory *factory,
                                           uint64_t ns, bool is_empty,
                                           struct TRITONSERVER_Error *error);

#endif
