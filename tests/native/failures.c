/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every call of Triton's and every allocation of ours fails once, and all allocations from each one on, in every kind
 * of inference, function model and trace. Each time everything is given back, the caller is told, and the next
 * inference is as good as ever.
 */

#include "failures.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t allocations;
static int64_t failing_allocation;
static bool failing_on;
static int64_t blocks;

void fail_allocation(int64_t number, bool on)
{
  allocations = 0;
  failing_on = on;
  failing_allocation = number;
}

static bool fails(void)
{
  const int64_t number = __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
  return failing_allocation > 0 && (number == failing_allocation || (failing_on && number > failing_allocation));
}

static void *counted(void *memory)
{
  __atomic_add_fetch(&blocks, memory != NULL ? 1 : 0, __ATOMIC_RELAXED);
  return memory;
}

void *counted_malloc(size_t size)
{
  return fails() ? NULL : counted(malloc(size));
}

void *counted_calloc(size_t count, size_t size)
{
  return fails() ? NULL : counted(calloc(count, size));
}

void *counted_realloc(void *memory, size_t size)
{
  if (fails()) {
    return NULL;
  }
  return memory == NULL ? counted(malloc(size)) : realloc(memory, size);
}

void *counted_aligned_alloc(size_t alignment, size_t size)
{
  return fails() ? NULL : counted(aligned_alloc(alignment, size));
}

char *counted_strdup(const char *text)
{
  return fails() ? NULL : counted(strdup(text));
}

char *counted_realpath(const char *path)
{
  return fails() ? NULL : counted(realpath(path, NULL));
}

void counted_free(void *memory)
{
  __atomic_sub_fetch(&blocks, memory != NULL ? 1 : 0, __ATOMIC_RELAXED);
  free(memory);
}

typedef enum { CALLS, ALLOCATIONS, ALL_ALLOCATIONS_FROM } failing;

/* Runs `what` with the first, the second... call or allocation failing, until none is left to fail. */
static void each_failure(const char *name, scenario *what, const char *how, failing kind)
{
  static const char *const kinds[] = {"calls", "allocations", "allocations from"};
  const bool may_succeed = strpbrk(how, "xewua1") == NULL && what != refuse;
  CHECK(what(how) == may_succeed); /* it makes what stays: a chunk of slots, a queue */
  driver_check_empty();
  const int64_t before = blocks;
  for (int64_t number = 1;; number++) {
    fake.fail_at(kind == CALLS ? number : 0);
    fail_allocation(kind == CALLS ? 0 : number, kind == ALL_ALLOCATIONS_FROM);
    const bool went_well = what(how);
    const int64_t made = kind == CALLS ? fake.calls() : allocations;
    fail_allocation(0, false);
    fake.fail_at(0);
    driver_check_empty();
    if (blocks > before + 2) { /* one more queue, where the last was not yet idle */
      fprintf(stderr, "%s '%s': %s %d: %d blocks stay\n", name, how, kinds[kind], (int)number, (int)(blocks - before));
      _exit(1);
    }
    CHECK(infer(""));
    if (made < number) {
      CHECK(went_well == may_succeed);
      printf("%s '%s' %s: %d\n", name, how, kinds[kind], (int)(number - 1));
      return;
    }
  }
}

int main(int count, char **arguments)
{
  static const struct {
    const char *name;
    scenario *what;
    const char *hows[10];
  } all[] = {
      {"infer", infer, {"", "r", "i", "ir", "d", "ids", "n", "e", "x", "s"}},
      {"infer_all", infer_all, {"", "x", "e"}},
      {"infer_each", infer_each, {"", "r", "x"}},
      {"infer_again", infer_again, {"", "r", "i", "d", "x", "e"}},
      {"infer_bounded", infer_bounded, {"di1"}},
      {"infer_traced", infer_traced, {"", "i", "x"}},
      {"hand_over", hand_over, {"", "id", "n", "r"}},
      {"serve", serve, {"", "c", "o", "s", "cs", "w", "ws", "u", "a", "as"}},
      {"refuse", refuse, {""}},
      {"trace", trace, {"", "t"}},
  };
  CHECK(count == 2);
  fail_to_load(arguments[1]);
  fail_to_watch(arguments[1]);
  fail_to_count();
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    for (size_t j = 0; j < 10 && all[i].hows[j] != NULL; j++) {
      each_failure(all[i].name, all[i].what, all[i].hows[j], CALLS);
      each_failure(all[i].name, all[i].what, all[i].hows[j], ALLOCATIONS);
      each_failure(all[i].name, all[i].what, all[i].hows[j], ALL_ALLOCATIONS_FROM);
    }
  }
  fake.stop_threads();
  return 0;
}
