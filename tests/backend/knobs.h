/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a test can ask of the test backend. The knobs are parameters of the model's configuration;
 * a parameter of a request with the same name goes first.
 *
 *   mode           echo (default) | error | no_output
 *                  no_memory: outputs are named, but no memory is asked for them
 *   count          responses per request, 1 by default; anything else is for decoupled models. An
 *                  INT32 input named COUNT says the same. An output named INDEX (INT32, [1]) is the
 *                  number of the response
 *   final          last (default): the last response is the final one
 *                  bare: a flag without a response follows it
 *   error_at       the number of the response that is an error instead; the others come as usual
 *   error_code     of these errors: UNKNOWN, INTERNAL (default), ..., as in TRITONSERVER_ERROR_*
 *   error_text     of these errors
 *   order          final_first (default): the final response, then the release of the request
 *                  release_first: the other way round
 *                  release_early: the release comes before all responses, of which there are 8 at most
 *   thread         true: a thread of its own serves the request, so the instance takes others
 *   hold           start: the request stops at the gate (gate.h) before anything else
 *                  response: it stops before response number hold_at, 0 by default
 *                  between: it stops between final response and release, in either order
 *   ignore_cancel  true: a cancelled request is served; by default it ends with CANCELLED
 *   quiet          true: a cancelled request ends with the final flag alone
 *   report         true: what the request says of itself comes back as parameters of the response:
 *                  id, correlation_id, flags, timeout_us; and in how many buffers each input lies,
 *                  under its name; and where each output is to be: ten times the memory type, and
 *                  the device
 *   host_policy    the data of inputs are those for this host policy
 *   state          true: state.h
 *   response_ns    the nanoseconds that each response is reported to have taken, and 2 for its outputs
 *   activity       the name of an activity that is added to the request's trace, if it has one; then
 *                  the trace's context comes back as the parameter trace_context
 *
 * Of the model only: init_error is the text with which it fails to load; init_hold and
 * finalize_hold (true) stop at the gate while it loads and unloads.
 */

#ifndef TFFITEST_KNOBS_H
#define TFFITEST_KNOBS_H

#include "tritonbackend.h"

typedef struct TRITONSERVER_Error Error;

enum { TEXT_SIZE = 256 };
enum mode { MODE_ECHO, MODE_ERROR, MODE_NO_OUTPUT, MODE_NO_MEMORY };
enum hold { HOLD_NONE, HOLD_START, HOLD_RESPONSE, HOLD_BETWEEN };

struct knobs {
  enum mode mode;
  enum hold hold;
  TRITONSERVER_Error_Code error_code;
  int count;
  int error_at;
  int hold_at;
  uint64_t response_ns;
  bool final_is_bare;
  bool release_first;
  bool release_early;
  bool in_thread;
  bool ignore_cancel;
  bool quiet;
  bool report;
  bool state;
  bool init_hold;
  bool finalize_hold;
  char host_policy[TEXT_SIZE];
  char init_error[TEXT_SIZE];
  char error_text[TEXT_SIZE];
  char activity[TEXT_SIZE];
};

#define TRY(call)                                                                                  \
  do {                                                                                             \
    Error *try_error = (call);                                                                     \
    if (try_error != NULL)                                                                         \
      return try_error;                                                                            \
  } while (0)

/* Sets the knobs to their defaults, then to what the serialised configuration of the model says. */
Error *knobs_of_model(struct knobs *knobs, const char *config);

/* Sets those knobs that the request has a parameter for, and `count` by its input COUNT. */
Error *knobs_of_request(struct knobs *knobs, struct TRITONBACKEND_Request *request);

#endif
