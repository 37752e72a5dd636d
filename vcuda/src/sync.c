/* SPDX-License-Identifier: Apache-2.0 */
#include "sync.h"
#include "connection.h"
#include "in_flight.h"
#include "stream.h"

#define SYNC_NS (5 * VC_US) /* a synchronising call that took longer has waited for the GPU */
#define LATE_NS (4 * VC_MS) /* the keeper looks more often than this */

uint64_t vc_sync_begin(void) {
  return vc_flight_any() ? vc_now() : 0;
}

/* Idle now, and others want the GPU: a pause begins, as far as is known. */
static bool leaves(void) {
  return !vc_flight_any() && vc_flight_linger() < VC_LINGER_NS && atomic_load(&vc_seat.policy->contended);
}

static void synced(struct vc_stream *s, uint64_t since) {
  if (!s->shown && s->lane.head == s->lane.tail) return;
  uint64_t now = vc_now();
  vc_lock(&s->lock);
  /* The wait ended with the last launch, unless this whole process has not run for a while. */
  uint64_t looked = s->open_at > since ? s->open_at : since;
  bool waited = since && now - since > SYNC_NS && now < looked + LATE_NS;
  if (waited) s->last_open_at = now;
  vc_stream_fold(s);
  s->pending.made = since;
  if (s->lane.head == s->lane.tail) vc_stream_measure(s, &s->pending, waited ? now : 0, now);
  vc_stream_poll(s, now);
  vc_stream_drained(s, vc_lane_covers(&s->lane), now);
  atomic_store(&s->lane.armed, 0);
  vc_stream_show(s, now, now);
  bool ring = !s->shown && (!vc_gate_open() || leaves());
  vc_unlock(&s->lock);
  if (ring) vc_seat_ring();
}

void vc_sync_end(const CUstream *handle, CUcontext context, uint64_t since) {
  if (handle) {
    struct vc_stream *s = vc_cached[vc_stream_slot(*handle)];
    if (VC_LIKELY(s->handle == *handle && s->context && !s->shown && s->lane.head == s->lane.tail))
      return;
    if (s->context && s->handle == *handle) {
      synced(s, since);
      return;
    }
  } else if (!context) {
    VC_CALL(cuCtxGetCurrent)(&context);
  }
  vc_stream_mine(synced, since, handle, context);
}

void vc_sync_wait_begin(CUstream handle) {
  if (!atomic_load(&vc_seat.policy) || vc_stream_capturing(handle)) return;
  struct vc_stream *s = vc_stream_of(handle);
  if (!s) return;
  vc_lock(&s->lock);
  if (vc_lane_dirty(&s->lane)) vc_stream_fence(s, false, vc_now());
  vc_unlock(&s->lock);
}

void vc_sync_wait_end(CUstream handle, CUresult result) {
  if (result != CUDA_SUCCESS || !atomic_load(&vc_seat.policy) || vc_stream_capturing(handle))
    return;
  struct vc_stream *s = vc_stream_of(handle);
  if (!s) return;
  vc_lock(&s->lock);
  uint64_t now = vc_now();
  vc_stream_fence(s, true, now);
  atomic_store(&s->lane.armed, 0);
  vc_stream_poll(s, now);
  vc_unlock(&s->lock);
  vc_flight_nudge();
}

static bool waits_with(const struct vc_stream *s, uint64_t context) {
  return (uint64_t)(uintptr_t)s->context == context && !s->per_thread;
}

static void before_wait(struct vc_stream *s, uint64_t context) {
  vc_lock(&s->lock);
  if (waits_with(s, context) && vc_lane_dirty(&s->lane)) vc_stream_fence(s, false, vc_now());
  vc_unlock(&s->lock);
}

static void after_wait(struct vc_stream *s, uint64_t context) {
  vc_lock(&s->lock);
  if (waits_with(s, context)) {
    uint64_t now = vc_now();
    vc_stream_fence(s, true, now);
    atomic_store(&s->lane.armed, 0);
    vc_stream_poll(s, now);
  }
  vc_unlock(&s->lock);
}

void vc_sync_context_wait_begin(CUcontext context) {
  if (atomic_load(&vc_seat.policy)) vc_stream_each(before_wait, (uint64_t)(uintptr_t)context);
}

void vc_sync_context_wait_end(CUcontext context) {
  if (!atomic_load(&vc_seat.policy)) return;
  vc_stream_each(after_wait, (uint64_t)(uintptr_t)context);
  vc_flight_nudge();
}
