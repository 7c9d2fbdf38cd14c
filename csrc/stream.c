/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Batches with any number of responses: those of decoupled models, which are one request each. Between two responses
 * the batch runs on, so that it can be abandoned or found cancelled; during one it is being answered. It runs on the
 * worker's thread, which does not hold the GIL meanwhile.
 */

#include <stdlib.h>

#include "batch.h"

static void keep(struct TRITONSERVER_Error **first, struct TRITONSERVER_Error *error)
{
  if (*first == NULL) {
    *first = error;
  } else {
    tffi_discard(error);
  }
}

static struct TRITONSERVER_Error *need_factory(function_batch *batch)
{
  return batch->factory != NULL ? NULL : TRITONBACKEND_ResponseFactoryNew(&batch->factory, batch->requests[0]);
}

void tffi_response_report(function_batch *batch, uint64_t output_start_ns, struct TRITONSERVER_Error *failure)
{
  struct TRITONBACKEND_ModelInstanceResponseStatistics *made = NULL;
  const uint64_t now = tffi_now_ns();
  const uint64_t start = batch->response_start_ns != 0 ? batch->response_start_ns : batch->compute_start_ns;
  /* What is refused is not counted: by a server that has no such statistics, above all. */
  struct TRITONSERVER_Error *error = need_factory(batch);
  keep(&error, TRITONBACKEND_ModelInstanceResponseStatisticsNew(&made));
  if (error == NULL) {
    keep(&error, TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(made, batch->instance->native));
    keep(&error, TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(made, batch->factory));
    keep(&error, TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(made, start != 0 ? start : now));
    keep(&error, TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(made, output_start_ns));
    keep(&error, TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(made, now));
    keep(&error, TRITONBACKEND_ModelInstanceResponseStatisticsSetError(made, failure));
  }
  if (error == NULL) {
    error = TRITONBACKEND_ModelInstanceReportResponseStatistics(made);
  }
  tffi_discard(error);
  if (made != NULL) {
    tffi_discard(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(made));
  }
  batch->response_start_ns = now;
}

void tffi_factory_drop(function_batch *batch)
{
  if (batch->factory != NULL) {
    tffi_discard(TRITONBACKEND_ResponseFactoryDelete(batch->factory));
    batch->factory = NULL;
  }
}

struct TRITONSERVER_Error *tffi_batch_send(tffi_batch *shown, const tffi_result *result)
{
  function_batch *batch = (function_batch *)shown;
  tffi_cut *cuts = NULL;
  struct TRITONSERVER_Error *error = tffi_outputs_cut(batch, result, &cuts);
  if (error == NULL && tffi_batch_claim(batch)) {
    const uint64_t output_start = tffi_now_ns();
    batch->responses[0] = NULL;
    error = TRITONBACKEND_ResponseNew(&batch->responses[0], batch->requests[0]);
    if (error == NULL) {
      error = tffi_response_fill(batch, 0, result, cuts);
    }
    if (error == NULL) {
      tffi_response_report(batch, output_start, NULL);
      error = TRITONBACKEND_ResponseSend(batch->responses[0], 0, NULL);
    } else if (batch->responses[0] != NULL) {
      tffi_discard(TRITONBACKEND_ResponseDelete(batch->responses[0]));
    }
    tffi_batch_resume(batch);
  }
  free(cuts);
  return error;
}

void tffi_batch_end(tffi_batch *shown)
{
  function_batch *batch = (function_batch *)shown;
  if (!tffi_batch_claim(batch)) {
    return;
  }
  struct TRITONSERVER_Error *error = need_factory(batch);
  if (error == NULL) {
    const uint64_t now = tffi_now_ns();
    const tffi_timing at = {batch->exec_start_ns, batch->compute_start_ns, now, now};
    tffi_response_report(batch, 0, NULL);
    tffi_batch_report(batch, &at);
    error = TRITONBACKEND_ResponseFactorySendFlags(batch->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  }
  if (error != NULL) { /* the end must be told all the same, or somebody waits for it for ever */
    tffi_batch_answer_error(batch, error);
  } else {
    tffi_discard(TRITONBACKEND_RequestRelease(batch->requests[0], TRITONSERVER_REQUEST_RELEASE_ALL));
    tffi_factory_drop(batch);
  }
  tffi_batch_settle(batch);
}
