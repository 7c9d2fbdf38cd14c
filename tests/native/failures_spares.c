/* SPDX-License-Identifier: Apache-2.0 */

/* What fails around requests that serve again. */

#include "failures.h"

bool infer_again(const char *how)
{
  enum { TIMES = 3 };
  bool went_well = true;
  tffi_queue *queue = NULL;
  tffi_spares *spares = NULL;
  tffi_queue_new(&queue);
  tffi_spares_new(&spares, *tffi_model_changes());
  for (uint32_t i = 0; queue != NULL && i < TIMES; i++) {
    uint64_t token = 0;
    driver_seen seen = {0};
    const bool is_started = driver_ok(driver_submit_spare(how, spares, queue, i, &token));
    while (is_started && seen.done == 0) {
      tffi_completion *list = NULL;
      CHECK(tffi_inference_wait(token, *tffi_queue_wakes(queue), -1, &list) == TFFI_WAIT_READY);
      driver_take(list, &seen);
    }
    went_well = went_well && is_started && seen.errors == 0;
  }
  went_well = went_well && queue != NULL && spares != NULL;
  tffi_spares_release(&spares);
  tffi_queue_release(&queue);
  tffi_pool_set_limit(0);
  return went_well;
}
