/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long launches of each function take on the GPU. An estimate, for one purpose: to bound what is
 * put in flight. Nothing is charged or believed complete by it.
 */
#ifndef VC_LAUNCH_DURATION_H
#define VC_LAUNCH_DURATION_H

#include "clock_and_lock.h"

struct vc_duration {
  _Atomic uintptr_t key;
  _Atomic uint64_t mean, longest, at; /* 0: never measured; the longest fades within seconds */
  _Atomic uint32_t round;
  _Atomic bool rough; /* all measurements so far were upper bounds */
};

/* Return what is known of a function or an executable graph, never NULL. The entry may be given to another one if it is
 * not asked for often enough. */
struct vc_duration *vc_duration_of(const void *key);
/* Note a measurement: so many launches, right after each other, took from `least` to `most` nanoseconds. */
void vc_duration_measured(struct vc_duration *d, uint64_t least, uint64_t most, uint32_t launches,
                          uint64_t now);
/* So many launches of several functions together took as long as expected, or at least `least` nanoseconds and at most
 * `most`, which is far from it: then each function is measured again. */
void vc_duration_compared(uint64_t expected, uint64_t least, uint64_t most, uint32_t launches, uint64_t now);
bool vc_duration_known(const struct vc_duration *d);
/* Whether the function is to be measured again. What is known of it counts until then. */
bool vc_duration_doubted(const struct vc_duration *d);
/* A fence is behind launches of this function alone: it is being measured, once is enough. */
void vc_duration_asked(struct vc_duration *d);
/* How many of the process's launches ended since one took much longer than expected: the more, the less likely is it
 * that the next one will. */
uint64_t vc_duration_trust(void);

#endif
