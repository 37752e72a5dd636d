/* SPDX-License-Identifier: Apache-2.0 */
/* What seats are owed and what they used: their credit, ceiling, window and demand. */
#ifndef AR_TIME_ACCOUNT_H
#define AR_TIME_ACCOUNT_H

#include "scheduler_state.h"
#include "clock_and_lock.h"

/* Charge every seat for its time on the GPU since it was last charged. */
void ar_account_charge(const struct ar_sched *sched, uint64_t now);
/* Add to a seat's accounts what a span of time brings it. */
void ar_account_accrue(struct ar_member *member, uint64_t span, uint64_t now);
/* Learn from a span how much of the time that others leave it a seat uses. */
void ar_account_weigh_demand(struct ar_member *member, uint64_t span);
/* A seat that was idle wants the GPU: it starts level with the others. */
void ar_account_join(struct ar_sched *sched, struct ar_member *member);

#endif
