/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The gate at which the test backend stops until a test says "go on": what makes the tests exact
 * without sleeping. It is one for the process. It starts closed; a test waits until the work that
 * it expects stands there, looks around, and releases it.
 */

#ifndef TFFITEST_GATE_H
#define TFFITEST_GATE_H

#include <stdbool.h>

#define TFFITEST_EXPORT __attribute__((visibility("default")))

/*
 * A place in the line. It belongs to the one who waits, who keeps it alive from gate_enter to the
 * end of gate_pass.
 */
struct gate_place {
  struct gate_place *next;
  bool released;
};

/* Takes the next place: the line is in the order of these calls, whichever thread waits later. */
void gate_enter(struct gate_place *place);

/*
 * Waits until the place is released. `is_cancelled` may be NULL; else it is asked every few
 * milliseconds, because Triton tells nobody about a cancellation. Returns false when it said so.
 */
bool gate_pass(struct gate_place *place, bool (*is_cancelled)(void *), void *userp);

/*
 * For the tests, through ctypes. `hold` closes the gate, or opens it and lets everybody go.
 * `release` lets the first `count` go, all for a negative one, and returns how many went.
 * `waiting` says how many stand there; `wait` first waits until there are `count`, or its time is
 * up.
 */
TFFITEST_EXPORT void tffitest_hold(int closed);
TFFITEST_EXPORT int tffitest_release(int count);
TFFITEST_EXPORT int tffitest_waiting(void);
TFFITEST_EXPORT int tffitest_wait(int count, int timeout_ms);

#endif
