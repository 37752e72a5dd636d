/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The little of an operating system that the limiter needs: a clock, a futex and a lock.
 *
 * The lock is a futex of our own and not a pthread mutex, because a forked child must be able to
 * free it, and because a libc symbol that is not needed cannot be missing.
 */
#ifndef VC_CLOCK_AND_LOCK_H
#define VC_CLOCK_AND_LOCK_H

#include "abi.h"
#include "compat.h"

#include <stdbool.h>

#define VC_LIKELY(x) __builtin_expect(!!(x), 1)

#define VC_US 1000ull
#define VC_MS 1000000ull
#define VC_S 1000000000ull

/* The clock of a fake GPU in virtual time, or NULL for the machine's. */
extern const struct vc_clock *vc_clock;

/* Find the machine's clock in the time namespace that this process is in now. */
void vc_machine_clock_find(void);
/* Nanoseconds by the machine's clock, the same in all time namespaces, and by the one in use. */
uint64_t vc_machine_now(void);
uint64_t vc_now(void);
/* Wait until the word is no longer what was seen, or the deadline; may return early. A virtual clock pairs waits and
 * wake-ups by (word, key). */
void vc_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t deadline);
void vc_wake(_Atomic uint32_t *word, uint64_t key);
void vc_machine_sleep(uint64_t ns);

/* A thread that holds it cannot be cancelled: it may call the driver, where threads can be. */
struct vc_lock {
  _Atomic uint32_t word; /* 0 free, 1 taken, 2 taken and waited for */
  int cancel;            /* whether its holder could be cancelled before */
};

void vc_lock(struct vc_lock *lock);
bool vc_lock_try(struct vc_lock *lock);
void vc_unlock(struct vc_lock *lock);

#endif
