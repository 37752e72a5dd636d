/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread has in flight in one stream, the model by which it is decided what is complete.
 *
 * Pure state, no driver: the thread counts a launch before and after the driver's call, a fence (an
 * event recorded in the stream) covers all launches that had ended when it was recorded, and launches are complete only
 * if the driver says so, of a fence or of the whole stream. Age never makes them so.
 * test/unit/stream_lane.c walks every interleaving of these steps.
 *
 * The two counters belong to the launching thread; all else is written under the owner's lock.
 */
#ifndef VC_STREAM_LANE_H
#define VC_STREAM_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define VC_FENCES 64u

enum vc_lane_state {
  VC_IDLE,
  VC_ACTIVE,
  VC_BLOCKED, /* all that could run has run; the rest waits for the host, an event or another seat */
};

struct vc_lane {
  _Atomic uint64_t begun, ended; /* launches before and after the driver's call */
  /* Set under the lock, read by the thread after it has counted a launch as begun: with it the thread
   * may launch without the lock. A thread that considers a lane idle disarms it first and looks again. */
  _Atomic uint32_t armed;
  _Atomic uint64_t fenced, done; /* launches with a fence behind them, and complete */
  _Atomic uint32_t head, tail;
  _Atomic uint32_t waits; /* of the fences in between, those behind a wait */
  struct {
    uint64_t upto;
    bool wait; /* between the fence before and this one the stream may wait for others */
  } fence[VC_FENCES];
};

/* The launching thread: before the driver's call, after it, or instead of it. */
static inline void vc_lane_begin(struct vc_lane *l) {
  uint64_t begun = atomic_load_explicit(&l->begun, memory_order_relaxed);
  atomic_store_explicit(&l->begun, begun + 1, memory_order_relaxed);
}
static inline void vc_lane_end(struct vc_lane *l) {
  uint64_t ended = atomic_load_explicit(&l->ended, memory_order_relaxed);
  atomic_store_explicit(&l->ended, ended + 1, memory_order_release);
}
static inline void vc_lane_abandon(struct vc_lane *l) {
  uint64_t begun = atomic_load_explicit(&l->begun, memory_order_relaxed);
  atomic_store_explicit(&l->begun, begun - 1, memory_order_relaxed);
}

/* Whether there are launches that no fence covers. */
bool vc_lane_dirty(const struct vc_lane *l);
/* Whether there is no place for another fence. */
bool vc_lane_full(const struct vc_lane *l);
/* How many launches a fence covers that is recorded from now on; read it before recording. */
uint64_t vc_lane_covers(const struct vc_lane *l);
/* A fence was recorded that covers so many launches. */
void vc_lane_fenced(struct vc_lane *l, uint64_t upto, bool wait);
/* The driver says that the oldest fence is complete. */
void vc_lane_reached(struct vc_lane *l);
/* The driver says that everything in the stream is complete that was there when `upto` was read. */
void vc_lane_drained(struct vc_lane *l, uint64_t upto);
/* In a forked child: nothing of it is in flight, and its thread does not end what it began. */
void vc_lane_lost(struct vc_lane *l);
enum vc_lane_state vc_lane_state(const struct vc_lane *l);
/* The place among the fences of the first wait that is not over; only if there is one. */
uint32_t vc_lane_wait(const struct vc_lane *l);
/* Whether a launch made now would come after a wait. */
static inline bool vc_lane_waits(const struct vc_lane *l) {
  return atomic_load_explicit(&l->waits, memory_order_relaxed);
}

#endif
