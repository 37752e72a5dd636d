/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GPU's time, step by step: what is seen of each seat is charged, and decides whose gate is open.
 *
 * Pure state and arithmetic: what is seen goes in, gates come out, and time is an argument.
 */
#ifndef AR_SCHEDULER_H
#define AR_SCHEDULER_H

#include "scheduler_state.h"

void ar_sched_init(struct ar_sched *sched, ar_rule *rule, uint64_t now);
/* Add a seat, which stays where it is until it is removed; false without memory. The holder may be removed too. */
bool ar_sched_add(struct ar_sched *sched, struct ar_member *member, uint64_t now);
void ar_sched_remove(struct ar_sched *sched, struct ar_member *gone);
/* A class, a request or a limit changed: the next step decides again. */
void ar_sched_changed(struct ar_sched *sched);
/* Decide, by what is in each member's `seen`. Return when to call it again at the latest. */
uint64_t ar_sched_step(struct ar_sched *sched, uint64_t now);
void ar_sched_free(struct ar_sched *sched);

#endif
