/* SPDX-License-Identifier: Apache-2.0 */

/* Word that Triton's log has grown. Python reads the log and has no inotify; all of the rest is there: _log.py. */

#include <sys/inotify.h>
#include <unistd.h>

#include "internal.h"

int tffi_log_watch(int watch, const char *path)
{
  int descriptor = watch >= 0 ? watch : inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (descriptor < 0) {
    return -1;
  }
  if (inotify_add_watch(descriptor, path, IN_MODIFY) < 0) {
    if (descriptor != watch) {
      close(descriptor);
    }
    return -1;
  }
  return descriptor;
}
