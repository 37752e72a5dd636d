/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread has in flight. A fence (an event recorded behind launches) tells when they are
 * complete; it covers up to `step` launches, so that an open gate costs a count and no driver call.
 */
#ifndef VC_LANE_H
#define VC_LANE_H

#include "hook.h"
#include "os.h"

#define VC_FENCES 32u
#define VC_STEP_MAX 64u

struct vc_fence {
  CUevent event;
  uint32_t launches;
  uint64_t begin; /* when the first of its launches was made, or the fence before it */
};

struct vc_lane {
  _Atomic uint32_t left; /* launches that may pass before the slow path is due; 1: now */
  _Atomic uint32_t step; /* what it counted down from */
  _Atomic uint32_t active;
  _Atomic uint32_t owned;
  _Atomic uint32_t entered; /* its thread is between the gate and the fence */
  struct vc_lock lock;
  CUcontext context;
  CUstream stream;       /* of the last slow launch */
  _Atomic uint64_t mark; /* begin of what no fence covers yet */
  _Atomic uint64_t last_done;
  uint32_t seen_left; /* the keeper's memory of `left`, and since when */
  uint64_t seen_at;
  _Atomic uint32_t head, tail;
  struct vc_fence fence[VC_FENCES];
};

extern __thread struct vc_lane *vc_lane __attribute__((tls_model("initial-exec")));

/* This thread's lane in its current context; never NULL. */
struct vc_lane *vc_lane_get(void);
uint32_t vc_lane_unfenced(const struct vc_lane *lane);
uint32_t vc_lane_outstanding(struct vc_lane *lane);
/* Record a fence behind everything launched so far, `extra` launches included that `left` does not
 * know of. False where the driver refuses. */
bool vc_lane_fence(struct vc_lane *lane, CUstream stream, uint32_t extra, uint64_t now);
/* Drop the fences that have completed. */
void vc_lane_poll(struct vc_lane *lane, uint64_t now);
/* Wait for the oldest fence. */
void vc_lane_wait(struct vc_lane *lane);
void vc_lane_rearm(struct vc_lane *lane);
void vc_lane_each(void (*visit)(struct vc_lane *, uint64_t), uint64_t argument);
/* Estimated time of one launch on the GPU, and how many a fence should cover. */
uint64_t vc_unit(void);
void vc_unit_sample(uint64_t ns, uint32_t launches);
uint32_t vc_step(void);
/* A context's end takes its events along. */
void vc_lane_forget(CUcontext context);
void vc_lane_reset(void);

#endif
