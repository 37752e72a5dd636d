/* SPDX-License-Identifier: Apache-2.0 */
/* The gate that every launch passes. */
#ifndef VC_LAUNCH_H
#define VC_LAUNCH_H

#include "lane.h"
#include "connection.h"

enum vc_launch_kind { VC_KERNEL, VC_GRAPH };

struct vc_ticket {
  struct vc_lane *lane; /* NULL: not a launch on the GPU (a captured one) */
  CUstream stream;
  bool resumed, fence;
};

/* With an open gate and a fence not yet due, a launch costs two loads and a store. */
static inline bool vc_launch_fast(void) {
  _Atomic uint32_t *gate = atomic_load_explicit(&vc_gate, memory_order_relaxed);
  struct vc_lane *lane = vc_lane;
  uint32_t left = atomic_load_explicit(&lane->left, memory_order_relaxed);
  if (!VC_LIKELY(left > 1 && (atomic_load_explicit(gate, memory_order_acquire) & 1))) return false;
  atomic_store_explicit(&lane->left, left - 1, memory_order_relaxed);
  return true;
}

CUresult vc_launch_begin(struct vc_ticket *ticket, CUstream stream, enum vc_launch_kind kind);
void vc_launch_end(struct vc_ticket *ticket, CUresult result);
/* A synchronising call of the program returned: what its thread had in flight is complete. */
void vc_launch_synced(void);
/* The keeper's look at all lanes; returns how many are active. */
uint32_t vc_launch_poll(uint64_t now);
/* Threads at the gate, shown to the arbiter. */
uint32_t vc_launch_waiting(void);
void vc_launch_capture(int change);
bool vc_launch_capturing(CUstream stream);
void vc_launch_reset(void);

#endif
