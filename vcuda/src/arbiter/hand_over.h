/* SPDX-License-Identifier: Apache-2.0 */
/* When the GPU passes from one seat to the next: at the end of a quantum, or earlier; and how long it may take. */
#ifndef AR_HAND_OVER_H
#define AR_HAND_OVER_H

#include "ready.h"
#include "scheduler_state.h"
#include "clock_and_lock.h"

#define AR_QUANTUM_NS VC_TURN_NS
#define AR_WAKE_NS (10 * VC_MS) /* a granted seat may take this long to wake up */

/* Take the GPU from its holder if it must leave, and give it to the next seat if it has left. */
void ar_hand_over(struct ar_sched *sched, uint64_t now);
/* How long the holder is idle before the GPU is given to others. The holder says so itself, but no more than
 * VC_LINGER_NS counts. */
uint64_t ar_hand_over_linger(const struct ar_member *holder);
/* Whether any seat but this one wants the GPU. */
bool ar_others_want(const struct ar_sched *sched, int me);

#endif
