/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"
#include "flight.h"

#define GATE_LOOK_NS (20 * VC_MS)
#define QUIET_NS (4 * VC_MS)
#define SHORT_NS (2 * VC_MS)
#define TAIL_SLACK_NS (50 * VC_US)

static _Atomic uint32_t waiting;
static _Atomic uint64_t waited;
static _Atomic int captures;

uint32_t vc_launch_waiting(void) {
  return atomic_load(&waiting);
}

static void show_waiting(void) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (!slot) return;
  atomic_store(&slot->waiting, atomic_load(&waiting));
  atomic_store_explicit(&slot->waited_ns, atomic_load(&waited), memory_order_relaxed);
}

static bool gate_open(void) {
  return atomic_load(atomic_load(&vc_gate)) & 1;
}

/* False when the seat was taken away. */
static bool wait_gate(void) {
  uint64_t start = vc_now(), now = start;
  bool ok = true;
  atomic_fetch_add(&waiting, 1);
  show_waiting();
  vc_seat_ring();
  for (;;) {
    _Atomic uint32_t *gate = atomic_load(&vc_gate);
    uint32_t seen = atomic_load(gate);
    if (seen & 1) break;
    ok = atomic_load(&vc_seat.policy->confirmed);
    if (!ok) break;
    vc_wait(gate, seen, vc_seat.policy->gate_key, now + GATE_LOOK_NS);
    now = vc_now();
  }
  now = vc_now();
  atomic_fetch_add(&waited, now - start);
  atomic_fetch_sub(&waiting, 1);
  show_waiting();
  return ok;
}

static bool too_deep(struct vc_lane *lane) {
  uint64_t depth = vc_flight_depth(), unit = vc_unit();
  if (!depth) return false;
  uint32_t outstanding = vc_lane_outstanding(lane);
  /* With time to spare one launch always waits behind another, so that the GPU never idles; while
   * others want the GPU only a short one, for the next in turn waits for both. */
  bool pair = unit && (depth >= QUIET_NS || (depth >= SHORT_NS && unit < SHORT_NS));
  if (outstanding < (pair ? 2u : 1u)) return false;
  /* An unknown kernel, like a long one, runs alone. */
  return !unit || (outstanding + vc_lane_unfenced(lane) + 1) * unit > depth;
}

bool vc_launch_capturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (VC_LIKELY(atomic_load_explicit(&captures, memory_order_relaxed) <= 0)) return false;
  VC_CALL(cuStreamIsCapturing)(stream, &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void expose(struct vc_lane *lane, uint64_t unused) {
  (void)unused;
  atomic_store(&lane->left, 1);
  atomic_store(&lane->step, 1);
}

/* While a capture is under way every launch takes the slow path and asks its stream. */
void vc_launch_capture(int change) {
  atomic_fetch_add(&captures, change);
  if (change > 0) vc_lane_each(expose, 0);
}

/* Our own calls must not end a capture that the program has under way in this thread. */
static CUstreamCaptureMode relax(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (atomic_load_explicit(&captures, memory_order_relaxed) > 0)
    VC_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  return mode;
}

static void restore(CUstreamCaptureMode mode) {
  if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) VC_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* Let the next launch take the slow path, which starts a new interval. */
static void land(struct vc_lane *lane, uint64_t now) {
  vc_flight_launched(vc_lane_unfenced(lane));
  atomic_store(&lane->step, 1);
  atomic_store(&lane->left, 1);
  vc_flight_land(lane, now);
}

/* Behind a closed gate: whoever comes next waits for what is in flight, so tell its end exactly. */
static void drain(struct vc_lane *lane, CUstream stream) {
  if (vc_lane_unfenced(lane)) vc_lane_fence(lane, stream, 0, vc_now());
  while (vc_lane_outstanding(lane)) vc_lane_wait(lane);
  land(lane, vc_now());
}

CUresult vc_launch_begin(struct vc_ticket *t, CUstream stream, enum vc_launch_kind kind) {
  t->lane = NULL;
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (vc_launch_capturing(stream)) return CUDA_SUCCESS;
  struct vc_lane *lane = vc_lane_get();
  CUstreamCaptureMode mode = relax();
  CUresult r = CUDA_SUCCESS;
  t->fence = kind == VC_GRAPH || (atomic_load(&lane->left) <= 1 && atomic_load(&lane->active));
  t->resumed = false;
  atomic_store(&lane->entered, 1);
  for (;;) {
    /* First show that something is in flight, then look at the gate: an arbiter that closes the
     * gate looks afterwards whether something is. */
    if (!atomic_load(&lane->active)) {
      t->resumed = true;
      lane->mark = vc_now();
      vc_flight_start(lane, lane->mark);
    }
    if (!gate_open()) {
      drain(lane, stream);
      if (wait_gate()) continue;
      r = CUDA_ERROR_SYSTEM_NOT_READY;
      break;
    }
    vc_lane_poll(lane, vc_now());
    if (!too_deep(lane)) break;
    vc_lane_wait(lane);
  }
  restore(mode);
  if (r != CUDA_SUCCESS) {
    atomic_store(&lane->entered, 0);
    return r;
  }
  t->lane = lane;
  t->stream = stream;
  if (!vc_lane_unfenced(lane)) lane->mark = vc_now();
  return CUDA_SUCCESS;
}

static void note_launch(struct vc_ticket *t, struct vc_lane *lane) {
  if (t->resumed && !t->fence && vc_step() > 1) {
    /* The first launch after a pause only notes the time. */
    vc_lane_rearm(lane);
    atomic_fetch_sub(&lane->left, 1);
    return;
  }
  if (!t->fence && atomic_load(&lane->left) > 1) {
    atomic_fetch_sub(&lane->left, 1);
    return;
  }
  CUstreamCaptureMode mode = relax();
  vc_lane_fence(lane, t->stream, 1, vc_now());
  restore(mode);
}

void vc_launch_end(struct vc_ticket *t, CUresult result) {
  if (!t->lane) return;
  if (result == CUDA_SUCCESS) note_launch(t, t->lane);
  atomic_store(&t->lane->entered, 0);
}

void vc_launch_synced(void) {
  struct vc_lane *lane = vc_lane;
  if (!atomic_load_explicit(&lane->active, memory_order_relaxed)) return;
  uint64_t now = vc_now();
  uint32_t unfenced = vc_lane_unfenced(lane);
  vc_lane_poll(lane, now);
  if (lane->head != lane->tail) return;
  if (unfenced && now > lane->mark) vc_unit_sample(now - lane->mark, unfenced);
  land(lane, now);
  if (!gate_open()) vc_seat_ring();
}

/* Launches behind the last fence: they are done when no more came for as long as they may take. */
static void look(struct vc_lane *lane, uint64_t now) {
  if (!atomic_load(&lane->active) || atomic_load(&lane->entered)) return;
  vc_lane_poll(lane, now);
  uint32_t left = atomic_load(&lane->left), unfenced = vc_lane_unfenced(lane);
  if (lane->head != lane->tail || left != lane->seen_left) {
    lane->seen_left = left;
    lane->seen_at = now;
    return;
  }
  if (!unfenced)
    land(lane, now);
  else if (now - lane->seen_at > unfenced * vc_unit() + TAIL_SLACK_NS)
    land(lane, now);
}

uint32_t vc_launch_poll(uint64_t now) {
  vc_lane_each(look, now);
  show_waiting();
  return vc_flight_publish(now);
}

void vc_launch_reset(void) {
  atomic_store(&waiting, 0);
  atomic_store(&captures, 0);
  vc_lane_reset();
  vc_flight_reset();
}
