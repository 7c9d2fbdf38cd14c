/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Scenarios, in each of which every call of Triton's and every allocation of ours fails. They return whether all went
 * well, as far as a caller of ours can see; what they then have is checked to be complete. `how` says more.
 */

#ifndef FAILURES_H
#define FAILURES_H

#include "driver.h"

typedef bool scenario(const char *how);

/* One inference of the kind `how`, as fake_triton.h has them, of a request that says nothing special. */
scenario infer;
/* The same, with everything that a request can say. */
scenario infer_all;
/* Several in one call. */
scenario infer_each;
/* A decoupled one, of whose responses only one may wait to be read. */
scenario infer_bounded;
/* Several one after the other, by requests that serve again. */
scenario infer_again;
/* One with a trace. */
scenario infer_traced;
/* Through the callbacks of handover.c. */
scenario hand_over;
/*
 * A function model from its making to its end, with two executions. Letters: c it asks what requests say, s it is
 * decoupled, o it answers and takes the next in one call, w it fails in its warm-up, u it does not answer, a it was
 * given up.
 */
scenario serve;
/* Models of ours that have no function. */
scenario refuse;
/* A trace with children, from its making to its end. */
scenario trace;

/* Descriptors and the like, which the loop over failures does not know; each of these checks all of it. */
void fail_to_load(const char *path);
void fail_to_watch(const char *path);
/* Shapes that no memory could hold. */
void fail_to_count(void);

/* Makes our allocation of this number from now on fail, and with `on` all after it; 0: none. */
void fail_allocation(int64_t number, bool on);

#endif
