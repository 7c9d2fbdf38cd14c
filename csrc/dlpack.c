/* SPDX-License-Identifier: Apache-2.0 */

/* Giving back what came through DLPack. The producer's deleter may be called on any thread and takes the GIL itself. */

#include "internal.h"

void tffi_dlpack_release(tffi_dlpack *managed)
{
  if (managed->deleter != NULL) {
    managed->deleter(managed);
  }
}

void tffi_dlpack_versioned_release(tffi_dlpack_versioned *managed)
{
  if (managed->deleter != NULL) {
    managed->deleter(managed);
  }
}
