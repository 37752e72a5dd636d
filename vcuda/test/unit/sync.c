/* SPDX-License-Identifier: Apache-2.0 */
/* What is learned of launches, from their fences and from the program's own waits, on a GPU that is a number. */
#include "in_flight.h"
#include "launch.h"
#include "sync.h"
#include "unit.h"

#define CALL_NS VC_US /* of a launch */

struct vc_real vc_real;
struct vc_seat vc_seat;
_Atomic uint32_t vc_own_gate;
_Atomic uint32_t *_Atomic vc_gate;
_Atomic uint32_t vc_deep_kernels;

bool vc_seat_ready(void) {
  return true;
}
void vc_seat_ring(void) {
}
bool vc_context_runs(const void *kernel, CUcontext context) {
  return kernel && context;
}

/* ---- the driver: one stream, whose work ends at a known time ---- */

static uint64_t now = VC_S, gpu_ends;
static CUcontext current;

struct CUevent_st {
  uint64_t at;
};

static CUresult get_current(CUcontext *out) {
  *out = current;
  return CUDA_SUCCESS;
}
static CUresult context_of(CUstream stream, CUcontext *out) {
  (void)stream;
  return get_current(out);
}
static CUresult make_event(CUevent *out, unsigned flags) {
  static struct CUevent_st events[64];
  static int made;
  CHECK(!(flags & CU_EVENT_INTERPROCESS) && made < 64);
  *out = &events[made++];
  return CUDA_SUCCESS;
}
static CUresult record(CUevent event, CUstream stream) {
  (void)stream;
  event->at = gpu_ends;
  return CUDA_SUCCESS;
}
static CUresult query(CUevent event) {
  return now >= event->at ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

void *vc_resolve_function(unsigned function) {
  switch (function) {
  case VC_FN_cuCtxGetCurrent: return (void *)get_current;
  case VC_FN_cuStreamGetCtx: return (void *)context_of;
  case VC_FN_cuEventCreate: return (void *)make_event;
  case VC_FN_cuEventRecord: return (void *)record;
  case VC_FN_cuEventQuery: return (void *)query;
  default: abort();
  }
}

static uint64_t time_now(void) {
  return now;
}
static void wait_on(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t deadline) {
  (void)word, (void)seen, (void)key;
  if (deadline > now) now = deadline;
}
static void wake(_Atomic uint32_t *word, uint64_t key) {
  (void)word, (void)key;
}

/* ---- the program ---- */

static const struct vc_clock clock_of_test = {time_now, wait_on, wake};
static const CUstream stream = (CUstream)0x100;

static void run(uint64_t ns) {
  gpu_ends = (gpu_ends > now ? gpu_ends : now) + ns;
  now += CALL_NS;
}

static void launch(const void *function, uint64_t ns) {
  struct vc_ticket ticket;
  struct vc_stream *fast = vc_launch_fast(stream, function);
  if (fast) {
    run(ns);
    vc_lane_end(&fast->lane);
    return;
  }
  CHECK(vc_launch_begin(&ticket, stream, function, VC_KERNEL) == CUDA_SUCCESS && ticket.stream);
  run(ns);
  vc_launch_end(&ticket, CUDA_SUCCESS);
}

static void synchronise(void) {
  uint64_t since = vc_sync_begin();
  if (gpu_ends > now) now = gpu_ends;
  vc_sync_end(&stream, NULL, since);
  CHECK(!vc_flight_any());
}

/* Launches between which the program does something else do not look longer than they are. */
static void pauses(void) {
  static const char function;
  for (int i = 0; i < 3; i++) {
    launch(&function, 10 * VC_US);
    synchronise();
  }
  uint64_t longest = vc_duration_of(&function)->longest;
  CHECK(longest >= 9 * VC_US && longest <= 11 * VC_US);
  for (int i = 0; i < 3; i++) {
    for (int k = 0; k < 5; k++, now += 100 * VC_US) launch(&function, 10 * VC_US);
    synchronise();
  }
  CHECK(vc_duration_of(&function)->longest == longest);
}

/* A function that lost its place while it was in flight is measured all the same, and the other one is not by it. */
static void given_away(void) {
  static const char function, others[1 << 16];
  const char *other = others;
  launch(&function, 50 * VC_MS);
  synchronise();
  const struct vc_duration *place = vc_duration_of(&function);
  launch(&function, 60 * VC_MS);
  for (;; other++, now++) {
    struct vc_duration *d = vc_duration_of(other);
    vc_duration_measured(d, VC_US, VC_US, 1, now);
    if (d == place) break;
  }
  while (vc_launch_poll(now)) now += VC_MS;
  CHECK(vc_duration_of(other)->longest == VC_US);
  CHECK(vc_duration_of(&function)->longest >= 50 * VC_MS);
}

/* A context goes while a thread launches in it: the lane counts no launch too few or too many afterwards. */
static void forgotten(void) {
  static const char function;
  struct vc_ticket ticket;
  uint64_t launches = vc_seat.usage->slot->launches;
  CHECK(vc_launch_begin(&ticket, stream, &function, VC_KERNEL) == CUDA_SUCCESS && vc_flight_any());
  vc_stream_forget(current);
  current = (CUcontext)0x3000;
  now += VC_MS;
  vc_launch_end(&ticket, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(!vc_launch_poll(now));

  CHECK(vc_launch_begin(&ticket, stream, &function, VC_KERNEL) == CUDA_SUCCESS);
  for (int i = 0; i < 5; i++) CHECK(vc_launch_poll(now += VC_MS)); /* it is still in the driver's call */
  run(VC_MS);
  vc_launch_end(&ticket, CUDA_SUCCESS);
  now = gpu_ends;
  for (int i = 0; i < 5; i++) vc_launch_poll(now += VC_MS);
  CHECK(!vc_flight_any());
  CHECK(vc_seat.usage->slot->launches == launches + 2);
}

int main(void) {
  static struct vc_policy policy = {.gate = 1, .depth_ns = 10 * VC_MS, .confirmed = 1};
  static struct vc_usage usage = {.high = 1};
  static struct vc_bell bell;
  vc_clock = &clock_of_test;
  vc_seat = (struct vc_seat){&policy, &usage, &bell, &usage.slot[0]};
  vc_gate = &policy.gate;
  current = (CUcontext)0x2000;
  pauses();
  given_away();
  forgotten();
  return 0;
}
