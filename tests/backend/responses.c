/* SPDX-License-Identifier: Apache-2.0 */

/* The statistics of single responses, which Triton knows of decoupled models. */

#include "responses.h"

#include "knobs.h"

/* Of the backend API, and of no use to the extension. */
struct TRITONBACKEND_ModelInstanceResponseStatistics;
Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(
    struct TRITONBACKEND_ModelInstanceResponseStatistics **statistics);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics,
    struct TRITONBACKEND_ModelInstance *instance);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics,
    struct TRITONBACKEND_ResponseFactory *factory);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics, uint64_t ns);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics, uint64_t ns);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics, uint64_t ns);
Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics, Error *error);
Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(
    struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics);

static Error *fill(struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics,
                   struct TRITONBACKEND_ModelInstance *instance,
                   struct TRITONBACKEND_ResponseFactory *factory, uint64_t ns, bool is_empty,
                   Error *error)
{
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, 1));
  if (!is_empty)
    TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, 1 + ns));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, 1 + ns + 2));
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error));
  return TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics);
}

Error *report_response(struct TRITONBACKEND_ModelInstance *instance,
                       struct TRITONBACKEND_ResponseFactory *factory, uint64_t ns, bool is_empty,
                       Error *error)
{
  struct TRITONBACKEND_ModelInstanceResponseStatistics *statistics = NULL;
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  Error *trouble = fill(statistics, instance, factory, ns, is_empty, error);
  Error *second = TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics);
  if (trouble == NULL)
    return second;
  if (second != NULL)
    TRITONSERVER_ErrorDelete(second);
  return trouble;
}
