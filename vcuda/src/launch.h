/* SPDX-License-Identifier: Apache-2.0 */
/* The gate that every launch passes. */
#ifndef VC_LAUNCH_H
#define VC_LAUNCH_H

#include "connection.h"
#include "stream.h"

enum vc_launch_kind { VC_KERNEL, VC_GRAPH };

struct vc_ticket {
  struct vc_stream *stream; /* NULL: not a launch on the GPU (a captured one) */
  const void *key;
  bool fence; /* record one right behind it */
  bool quick; /* only count it */
  bool turn;  /* it took its seat's turn */
  bool behind; /* it joined what is behind waits */
};

/* With an open gate and no fence due, a launch of the same function as before costs a few loads and
 * stores. The launch counts as begun before the gate is read: a thread that closes the gate and then
 * looks for work in flight misses none. */
static inline struct vc_stream *vc_launch_fast(CUstream handle, const void *key) {
  struct vc_stream *s = vc_cached[vc_stream_slot(handle)];
  if (!VC_LIKELY(s->handle == handle && s->key == key)) return NULL;
  vc_lane_begin(&s->lane);
  atomic_signal_fence(memory_order_seq_cst);
  _Atomic uint32_t *gate = atomic_load_explicit(&vc_gate, memory_order_relaxed);
  if (VC_LIKELY(s->left > 1 && atomic_load_explicit(&s->lane.armed, memory_order_relaxed) &&
                (atomic_load_explicit(gate, memory_order_acquire) & 1))) {
    s->left--;
    return s;
  }
  vc_lane_abandon(&s->lane);
  return NULL;
}

/* Before the driver's call: wait for the gate and for room. `key` is the function or the executable graph, whose
 * launches take equally long. Returns an error for the program if it may not launch. */
CUresult vc_launch_begin(struct vc_ticket *ticket, CUstream handle, const void *key,
                         enum vc_launch_kind kind);
/* After it. */
void vc_launch_end(struct vc_ticket *ticket, CUresult result);

/* The keeper's look at all streams; returns how many are active. */
uint32_t vc_launch_poll(uint64_t now);
/* Whether some stream waits, with work queued behind it. */
bool vc_launch_blocked(void);
/* How many threads wait at the gate. */
uint32_t vc_launch_waiting(void);
/* So many more streams are under capture: while any is, every launch takes the slow path and asks its stream. */
void vc_launch_capture(int change);
/* In a forked child. */
void vc_launch_reset(void);

#endif
