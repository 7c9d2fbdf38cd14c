/* SPDX-License-Identifier: Apache-2.0 */

/* Included before each file of csrc/ in a test build: allocations can be made to fail, and are counted. */

#ifndef COUNTED_H
#define COUNTED_H

#include <stdlib.h>
#include <string.h>

void *counted_malloc(size_t size);
void *counted_calloc(size_t count, size_t size);
void *counted_realloc(void *memory, size_t size);
void *counted_aligned_alloc(size_t alignment, size_t size);
char *counted_strdup(const char *text);
char *counted_realpath(const char *path);
void counted_free(void *memory);

#define malloc counted_malloc
#define calloc counted_calloc
#define realloc counted_realloc
#define aligned_alloc counted_aligned_alloc
#undef strdup
#define strdup counted_strdup
#define realpath(path, resolved) counted_realpath(path)
#define free counted_free

#endif
