/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"
#include "flight.h"
#include "connection.h"

#include <pthread.h>
#include <stdlib.h>

#define LANES 512u
#define FENCE_NS (500 * VC_US) /* one fence covers about this much work when nobody else waits */

static struct vc_lane no_lane = {.left = 0};
__thread struct vc_lane *vc_lane __attribute__((tls_model("initial-exec"))) = &no_lane;

static struct vc_lane *_Atomic lanes[LANES];
static _Atomic uint32_t lane_count;
static struct vc_lock guard;
static _Atomic uint64_t unit_ns;
static pthread_key_t exit_key;
static bool have_key;

static void thread_exits(void *lane) {
  atomic_store(&((struct vc_lane *)lane)->owned, 0);
}

uint64_t vc_unit(void) {
  return atomic_load_explicit(&unit_ns, memory_order_relaxed);
}

/* A longer sample counts at once, a shorter one by and by: the bound on what is in flight must hold
 * for the long kernels of a mixture. */
void vc_unit_sample(uint64_t ns, uint32_t launches) {
  uint64_t sample = ns / (launches ? launches : 1), unit = vc_unit();
  unit = sample > unit ? sample : unit - (unit - sample) / 4;
  atomic_store_explicit(&unit_ns, unit, memory_order_relaxed);
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (slot) atomic_store_explicit(&slot->unit_ns, unit, memory_order_relaxed);
}

uint32_t vc_step(void) {
  uint64_t unit = vc_unit(), depth = vc_flight_depth();
  uint64_t target = depth && depth / 4 < FENCE_NS ? depth / 4 : FENCE_NS;
  if (!unit) return 1;
  uint64_t step = target / unit;
  return step < 1 ? 1 : step > VC_STEP_MAX ? VC_STEP_MAX : (uint32_t)step;
}

static struct vc_lane *new_lane(CUcontext context) {
  uint32_t count = atomic_load(&lane_count);
  for (uint32_t i = 0; i < count; i++) {
    struct vc_lane *lane = atomic_load(&lanes[i]);
    uint32_t nobody = 0;
    if (lane->context == context && !atomic_load(&lane->active) &&
        atomic_compare_exchange_strong(&lane->owned, &nobody, 1))
      return lane;
  }
  /* More threads than lanes: share one, its lock keeps it whole. */
  if (count == LANES) return atomic_load(&lanes[(uintptr_t)&vc_lane / 64 % LANES]);
  struct vc_lane *lane = calloc(1, sizeof *lane);
  if (!lane) return count ? atomic_load(&lanes[0]) : &no_lane;
  lane->context = context;
  atomic_store(&lane->left, 1);
  atomic_store(&lane->owned, 1);
  atomic_store(&lanes[count], lane);
  atomic_store(&lane_count, count + 1);
  return lane;
}

struct vc_lane *vc_lane_get(void) {
  CUcontext context = NULL;
  VC_CALL(cuCtxGetCurrent)(&context);
  if (VC_LIKELY(vc_lane != &no_lane && vc_lane->context == context)) return vc_lane;
  if (vc_lane != &no_lane) atomic_store(&vc_lane->owned, 0);
  vc_lock(&guard);
  if (!have_key) have_key = pthread_key_create(&exit_key, thread_exits) == 0;
  vc_lane = new_lane(context);
  vc_unlock(&guard);
  if (have_key) pthread_setspecific(exit_key, vc_lane);
  return vc_lane;
}

uint32_t vc_lane_unfenced(const struct vc_lane *lane) {
  uint32_t left = atomic_load_explicit(&lane->left, memory_order_relaxed);
  uint32_t step = atomic_load_explicit(&lane->step, memory_order_relaxed);
  return step > left ? step - left : 0;
}

void vc_lane_rearm(struct vc_lane *lane) {
  uint32_t step = vc_step();
  atomic_store_explicit(&lane->step, step, memory_order_relaxed);
  atomic_store_explicit(&lane->left, step, memory_order_relaxed);
}

uint32_t vc_lane_outstanding(struct vc_lane *lane) {
  uint32_t launches = 0;
  vc_lock(&lane->lock);
  for (uint32_t i = lane->head; i != lane->tail; i++)
    launches += lane->fence[i % VC_FENCES].launches;
  vc_unlock(&lane->lock);
  return launches;
}

bool vc_lane_fence(struct vc_lane *lane, CUstream stream, uint32_t extra, uint64_t now) {
  if (lane == &no_lane) return false;
  if (lane->tail - lane->head == VC_FENCES) vc_lane_wait(lane);
  vc_lock(&lane->lock);
  struct vc_fence *f = &lane->fence[lane->tail % VC_FENCES];
  uint32_t launches = vc_lane_unfenced(lane) + extra;
  CUresult r = CUDA_SUCCESS;
  if (!f->event)
    r = VC_CALL(cuEventCreate)(&f->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  if (r == CUDA_SUCCESS) r = VC_CALL(cuEventRecord)(f->event, stream);
  if (r == CUDA_SUCCESS && lane->tail - lane->head < VC_FENCES) {
    f->launches = launches;
    f->begin = lane->mark;
    lane->tail++;
  }
  lane->mark = now;
  lane->stream = stream;
  vc_unlock(&lane->lock);
  vc_flight_launched(launches);
  vc_lane_rearm(lane);
  return r == CUDA_SUCCESS;
}

void vc_lane_poll(struct vc_lane *lane, uint64_t now) {
  vc_lock(&lane->lock);
  while (lane->head != lane->tail) {
    struct vc_fence *f = &lane->fence[lane->head % VC_FENCES];
    if (VC_CALL(cuEventQuery)(f->event) == CUDA_ERROR_NOT_READY) break;
    uint64_t begin = f->begin > lane->last_done ? f->begin : lane->last_done;
    if (now > begin) vc_unit_sample(now - begin, f->launches);
    lane->last_done = now;
    lane->head++;
  }
  vc_unlock(&lane->lock);
}

/* The event cannot be recorded anew meanwhile: only this thread records in this lane. */
void vc_lane_wait(struct vc_lane *lane) {
  vc_lock(&lane->lock);
  CUevent event = lane->head != lane->tail ? lane->fence[lane->head % VC_FENCES].event : NULL;
  vc_unlock(&lane->lock);
  if (event) VC_CALL(cuEventSynchronize)(event);
  vc_lane_poll(lane, vc_now());
}

void vc_lane_each(void (*visit)(struct vc_lane *, uint64_t), uint64_t argument) {
  uint32_t count = atomic_load(&lane_count);
  for (uint32_t i = 0; i < count; i++) visit(atomic_load(&lanes[i]), argument);
}

static void forget(struct vc_lane *lane, uint64_t context) {
  if ((uint64_t)(uintptr_t)lane->context != context && context) return;
  vc_lock(&lane->lock);
  lane->head = lane->tail = 0;
  for (uint32_t i = 0; i < VC_FENCES; i++) lane->fence[i].event = NULL;
  atomic_store(&lane->step, 0);
  atomic_store(&lane->left, 1);
  vc_unlock(&lane->lock);
  vc_flight_land(lane, vc_now());
}

/* Called before the context goes, while its events can still be given back. */
void vc_lane_forget(CUcontext context) {
  vc_lane_each(forget, (uint64_t)(uintptr_t)context);
}

static void reset(struct vc_lane *lane, uint64_t unused) {
  (void)unused;
  atomic_store(&lane->lock.word, 0);
  forget(lane, 0);
}

void vc_lane_reset(void) {
  atomic_store(&guard.word, 0);
  vc_lane_each(reset, 0);
}
