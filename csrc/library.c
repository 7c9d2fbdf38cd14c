/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The library that Triton lives in: opened at run time, once for the process, and never closed.
 * Triton starts threads and registers exit handlers as soon as it is loaded, so even a library
 * that is refused stays mapped.
 */

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "imports.h"
#include "internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Written once, under the lock, and for ever: a reader that sees `loaded_path` may read the rest. */
static void *loaded_handle;
static tffi_import *loaded_functions;
static char *loaded_path;

/* A text of bounded size that is put together piece by piece; what does not fit is dropped. */
typedef struct {
  char *text;
  size_t size;
  size_t used;
} writer;

__attribute__((format(printf, 2, 3))) static void add(writer *out, const char *format, ...)
{
  if (out->used >= out->size) {
    return;
  }
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(out->text + out->used, out->size - out->used, format, arguments);
  va_end(arguments);
  if (length > 0) {
    out->used += (size_t)length;
  }
}

/* The loader's own words about its last failure. */
static const char *loader_error(void)
{
  const char *text = dlerror();
  return text != NULL ? text : "no reason given";
}

/*
 * Opens the neighbours by full path, so that Triton's own dependencies are found among the
 * libraries already loaded. They need one another in an order that nobody tells us: those that
 * fail are tried again until a round brings nothing new. Returns how many are still closed.
 */
static uint32_t open_neighbours(const char *const *paths, uint32_t count, bool *open)
{
  uint32_t closed = count;
  for (uint32_t before = count + 1; closed > 0 && closed < before;) {
    before = closed;
    for (uint32_t i = 0; i < count; ++i) {
      if (!open[i] && dlopen(paths[i], RTLD_NOW | RTLD_LOCAL) != NULL) {
        open[i] = true;
        --closed;
      }
    }
  }
  return closed;
}

/* What the loader calls the file behind `handle`, in full; the caller frees it. */
static char *path_of(void *handle, const char *given)
{
  struct link_map *map = NULL;
  const char *name = given;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name != NULL && map->l_name[0] != '\0') {
    name = map->l_name;
  }
  char *path = realpath(name, NULL);
  return path != NULL ? path : strdup(name);
}

static tffi_import function_of(void *handle, const char *name)
{
  void *symbol = dlsym(handle, name);
  tffi_import function = NULL;
  memcpy(&function, &symbol, sizeof function); /* POSIX gives both one size, C no conversion */
  return function;
}

static tffi_import found_function(const tffi_import *found, const char *name)
{
  for (uint32_t i = 0; i < tffi_import_count; ++i) {
    if (strcmp(tffi_import_names[i], name) == 0) {
      return found[i];
    }
  }
  return NULL;
}

/* Looks every function up, and says which of those that must be there are not. */
static bool resolve(void *handle, const char *path, tffi_import *found, writer *out)
{
  uint32_t missing = 0;
  for (uint32_t i = 0; i < tffi_import_count; ++i) {
    found[i] = function_of(handle, tffi_import_names[i]);
    if (found[i] == NULL && tffi_import_required[i]) {
      if (missing++ == 0) {
        add(out, "%s is no Triton library, or too old: it lacks ", path);
      } else {
        add(out, ", ");
      }
      add(out, "%s", tffi_import_names[i]);
    }
  }
  return missing == 0;
}

/* Asks the library itself, past the table: the table changes only for a library that is accepted. */
static bool version_fits(const char *path, const tffi_import *found, writer *out)
{
  typedef struct TRITONSERVER_Error *(*api_version)(uint32_t *, uint32_t *);
  typedef const char *(*error_message)(struct TRITONSERVER_Error *);
  typedef void (*error_delete)(struct TRITONSERVER_Error *);

  api_version version = (api_version)found_function(found, "TRITONSERVER_ApiVersion");
  if (version == NULL) {
    add(out, "%s does not tell its API version: it lacks TRITONSERVER_ApiVersion", path);
    return false;
  }
  uint32_t major = 0;
  uint32_t minor = 0;
  struct TRITONSERVER_Error *error = version(&major, &minor);
  if (error != NULL) {
    error_message message = (error_message)found_function(found, "TRITONSERVER_ErrorMessage");
    error_delete delete = (error_delete)found_function(found, "TRITONSERVER_ErrorDelete");
    add(out, "%s does not tell its API version: %s", path, message(error));
    delete(error);
    return false;
  }
  if (major != TRITONSERVER_API_VERSION_MAJOR) {
    add(out, "%s speaks version %u.%u of Triton's C API, and tritonffi version %d.x", path, major,
        minor, TRITONSERVER_API_VERSION_MAJOR);
    return false;
  }
  return true;
}

/* Opens `path`; on failure says why, and which neighbours are part of the reason. */
static void *open_library(const char *path, const char *const *neighbours, uint32_t count,
    writer *out)
{
  bool *open = calloc((size_t)count + 1, sizeof *open);
  if (open == NULL) {
    add(out, "out of memory");
    return NULL;
  }
  uint32_t closed = open_neighbours(neighbours, count, open);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    add(out, "%s does not load: %s", path, loader_error());
    if (closed > 0) {
      add(out, "; nor do %u of its %u neighbours:", closed, count);
    }
    for (uint32_t i = 0; i < count; ++i) {
      /* The reason of the last round is gone by now: ask again. */
      if (!open[i] && dlopen(neighbours[i], RTLD_NOW | RTLD_LOCAL) == NULL) {
        add(out, " %s (%s)", neighbours[i], loader_error());
      }
    }
  }
  free(open);
  return handle;
}

/* A second load: fine for the very same library, under whatever name; refused for another. */
static bool load_again(const char *path, writer *out)
{
  bool same = false;
  char *real = realpath(path, NULL);
  if (real != NULL) {
    same = strcmp(real, loaded_path) == 0;
    free(real);
  }
  if (!same) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    same = handle == loaded_handle;
    if (handle != NULL) {
      dlclose(handle);
    }
  }
  if (!same) {
    add(out, "this process has loaded %s already and cannot load %s as well", loaded_path, path);
  }
  return same;
}

/* A first load. Everything that can go wrong is asked before anything is changed. */
static bool load_first(const char *path, const char *const *neighbours, uint32_t count, writer *out)
{
  void *handle = open_library(path, neighbours, count, out);
  if (handle == NULL) {
    return false;
  }
  tffi_import *found = calloc(tffi_import_count, sizeof *found);
  char *real = path_of(handle, path);
  if (found == NULL || real == NULL) {
    add(out, "out of memory");
  } else if (resolve(handle, real, found, out) && version_fits(real, found, out)) {
    tffi_imports_publish(found);
    loaded_handle = handle;
    loaded_functions = found;
    tffi_terminate_handle(handle);
    __atomic_store_n(&loaded_path, real, __ATOMIC_RELEASE);
    return true;
  }
  free(found);
  free(real);
  return false;
}

bool tffi_library_load(const char *path, const char *const *neighbours, uint32_t neighbour_count,
    char *message, size_t message_size)
{
  writer out = {message, message_size, 0};
  add(&out, "%s", "");
  pthread_mutex_lock(&lock);
  bool loaded = loaded_path != NULL ? load_again(path, &out)
                                    : load_first(path, neighbours, neighbour_count, &out);
  pthread_mutex_unlock(&lock);
  return loaded;
}

const char *tffi_library_path(void)
{
  return __atomic_load_n(&loaded_path, __ATOMIC_ACQUIRE);
}

bool tffi_library_has(const char *function)
{
  return tffi_library_path() != NULL && found_function(loaded_functions, function) != NULL;
}

uint32_t tffi_library_functions(const char *const **names)
{
  *names = tffi_import_names;
  return tffi_import_count;
}

bool tffi_library_is_self(const char *path, char *message, size_t message_size)
{
  writer out = {message, message_size, 0};
  add(&out, "%s", "");
  static const char here = 0;
  Dl_info self;
  void *own = NULL;
  if (dladdr(&here, &self) != 0) {
    /* By name, among what is loaded: the file of that name may have been replaced since. */
    own = dlopen(self.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  }
  if (own == NULL) {
    add(&out, "the loader does not know the extension: %s", loader_error());
    return false;
  }
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  bool same = handle == own;
  if (handle == NULL) {
    add(&out, "%s does not load: %s", path, loader_error());
  } else if (!same) {
    add(&out, "%s is not the extension that this process runs, %s (was it replaced since?)", path,
        self.dli_fname);
    dlclose(handle);
  }
  /* A matching handle stays open: the loader then knows `path` as a name of the extension, and
     does not look at the file again when Triton asks for it. */
  dlclose(own);
  return same;
}

static void leave(int status, void *unused)
{
  (void)unused;
  fflush(NULL);
  _exit(status);
}

void tffi_library_forked(void)
{
  on_exit(leave, NULL);
}
