/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is among a seat's processes: long launches follow one another, in the order in which
 * the processes began to wait, so that a seat of many keeps the GPU past its gate no longer than one
 * process would. What the others publish is a hint: if it is wrong, a launch runs early or late, and no more.
 */
#ifndef VC_PROCESS_TURN_H
#define VC_PROCESS_TURN_H

#include "clock_and_lock.h"

/* Take the turn for a launch that is expected to take `takes` nanoseconds, behind `own` nanoseconds of this process in
 * flight, and that has waited since `since`. False if others come first: ask again. */
bool vc_turn_take(uint64_t since, uint64_t takes, uint64_t own, uint64_t now);
/* Take the turn, whatever process is ahead. */
void vc_turn_force(uint64_t takes, uint64_t own, uint64_t now);
/* The launch that took the turn is in flight now. */
void vc_turn_made(void);
/* This process does not want its turn for the time being. */
void vc_turn_leave(void);
/* Give the turn back, if nothing of this process was in flight after `seen` was read. */
uint64_t vc_turn_seen(void);
void vc_turn_over(uint64_t seen);
/* This process waits at the gate, and still wants its turn. */
void vc_turn_keep(uint64_t now);
/* In a forked child. */
void vc_turn_reset(void);

#endif
