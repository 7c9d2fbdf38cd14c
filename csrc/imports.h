/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What build_ffi.py generates for library.c: the import table, one entry per function of
 * tritonserver.h and per function of tritonbackend.h that a backend calls. Every entry is born
 * pointing at an answer ("no library is loaded", "this library lacks it"), and the functions of
 * those names in the extension jump through the table. C only, not part of the cdef.
 */

#ifndef TRITONFFI_IMPORTS_H
#define TRITONFFI_IMPORTS_H

#include <stdbool.h>
#include <stdint.h>

/* Any function: the table casts to the real type and back, which C allows. */
typedef void (*tffi_import)(void);

extern const uint32_t tffi_import_count;
extern const char *const tffi_import_names[];

/* True where the return type leaves no room for an error: such a function must be there. */
extern const bool tffi_import_required[];

/*
 * Stores what was found, by index; a NULL leaves the answer "this library lacks it". Called once,
 * with every pointer known, so that no caller ever sees half of a library that is then refused.
 */
void tffi_imports_publish(const tffi_import *found);

#endif
