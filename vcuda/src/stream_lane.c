/* SPDX-License-Identifier: Apache-2.0 */
#include "stream_lane.h"

bool vc_lane_dirty(const struct vc_lane *l) {
  return atomic_load(&l->begun) != l->fenced;
}

bool vc_lane_full(const struct vc_lane *l) {
  return l->tail - l->head == VC_FENCES;
}

uint64_t vc_lane_covers(const struct vc_lane *l) {
  return atomic_load(&l->ended);
}

void vc_lane_fenced(struct vc_lane *l, uint64_t upto, bool wait) {
  /* A fence that covers launches beside the wait cannot tell which of them it waits for. */
  bool only_wait = wait && upto == l->fenced;
  l->fence[l->tail % VC_FENCES].upto = upto;
  l->fence[l->tail % VC_FENCES].wait = only_wait;
  l->waits += only_wait;
  l->tail++;
  l->fenced = upto;
}

static void pass(struct vc_lane *l) {
  l->waits -= l->fence[l->head % VC_FENCES].wait;
  l->head++;
}

void vc_lane_reached(struct vc_lane *l) {
  l->done = l->fence[l->head % VC_FENCES].upto;
  pass(l);
}

void vc_lane_drained(struct vc_lane *l, uint64_t upto) {
  while (l->head != l->tail && l->fence[l->head % VC_FENCES].upto <= upto) pass(l);
  if (upto > l->done) l->done = upto;
  if (upto > l->fenced) l->fenced = upto;
}

void vc_lane_lost(struct vc_lane *l) {
  l->head = l->tail;
  l->waits = 0;
  uint64_t begun = atomic_load(&l->begun);
  l->done = l->fenced = begun;
  atomic_store(&l->ended, begun);
}

enum vc_lane_state vc_lane_state(const struct vc_lane *l) {
  if (l->head != l->tail) return l->fence[l->head % VC_FENCES].wait ? VC_BLOCKED : VC_ACTIVE;
  return atomic_load(&l->begun) == l->done ? VC_IDLE : VC_ACTIVE;
}

uint32_t vc_lane_wait(const struct vc_lane *l) {
  uint32_t i = l->head;
  while (i != l->tail && !l->fence[i % VC_FENCES].wait) i++;
  return i;
}
