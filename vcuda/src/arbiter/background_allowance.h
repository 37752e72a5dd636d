/* SPDX-License-Identifier: Apache-2.0 */
/* Background: how long its work may hold up in-budget seats, and when it must stop for them. */
#ifndef AR_BACKGROUND_ALLOWANCE_H
#define AR_BACKGROUND_ALLOWANCE_H

#include "scheduler_state.h"

void ar_background_init(struct ar_sched *sched);
/* Add to background's allowances what a span of time brings, and take from them what it cost. */
void ar_background_charge(struct ar_sched *sched, uint64_t span);
/* Whether it has the GPU while an in-budget seat waits. */
bool ar_background_holds_up(const struct ar_sched *sched);
/* When a seat must stop to be gone before in-budget work comes back; 0: unknown. */
uint64_t ar_background_latest(const struct ar_sched *sched, const struct ar_member *member, uint64_t now);

#endif
