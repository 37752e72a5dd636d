/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "stream.h"
#include "in_flight.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct vc_stream nothing = {.key = &nothing};
#define N &nothing
__thread struct vc_stream *vc_cached[VC_CACHED] __attribute__((tls_model("initial-exec"))) = {
    N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N};
#undef N
static __thread struct vc_stream *mine;
static char gone; /* the handle of a stream that was destroyed */
#define GONE ((CUstream)(void *)&gone)

static struct vc_stream *_Atomic all;
static struct vc_lock guard;
static pthread_key_t exit_key;
static bool have_key;
_Atomic int vc_captures;

/* ---- around the driver's calls ---- */

struct vc_around vc_stream_enter(CUcontext context) {
  struct vc_around a = {CU_STREAM_CAPTURE_MODE_RELAXED, false};
  CUcontext current = NULL;
  if (atomic_load_explicit(&vc_captures, memory_order_relaxed) > 0)
    VC_CALL(cuThreadExchangeStreamCaptureMode)(&a.mode);
  VC_CALL(cuCtxGetCurrent)(&current);
  if (current != context) a.pushed = VC_CALL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
  return a;
}

void vc_stream_leave(struct vc_around a) {
  CUcontext popped;
  if (a.pushed) VC_CALL(cuCtxPopCurrent_v2)(&popped);
  if (a.mode != CU_STREAM_CAPTURE_MODE_RELAXED) VC_CALL(cuThreadExchangeStreamCaptureMode)(&a.mode);
}

bool vc_stream_capturing(CUstream handle) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (VC_LIKELY(atomic_load_explicit(&vc_captures, memory_order_relaxed) <= 0)) return false;
  CUresult r = VC_CALL(cuStreamIsCapturing)(handle, &status);
  /* The legacy stream may not even be asked while another one is captured globally. */
  return r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- finding a thread's streams ---- */

static void thread_exits(void *first) {
  for (struct vc_stream *s = first; s; s = s->mine) atomic_store(&s->owned, 0);
}

static void own(struct vc_stream *s) {
  s->mine = mine;
  mine = s;
  if (have_key) pthread_setspecific(exit_key, mine);
}

static bool usable(const struct vc_stream *s, CUcontext context) {
  if (s->context && s->context != context) return false;
  return vc_lane_state(&s->lane) == VC_IDLE && !s->shown;
}

/* An unused lane, with its events: of the same context, or of none. */
static struct vc_stream *adopt(CUcontext context) {
  for (struct vc_stream *s = mine; s; s = s->mine)
    if (s->handle == GONE && usable(s, context)) return s;
  for (struct vc_stream *s = atomic_load(&all); s; s = s->next) {
    uint32_t nobody = 0;
    if (atomic_load(&s->owned) || !vc_lock_try(&s->lock)) continue;
    bool taken = usable(s, context) && atomic_compare_exchange_strong(&s->owned, &nobody, 1);
    vc_unlock(&s->lock);
    if (!taken) continue;
    own(s);
    return s;
  }
  return NULL;
}

static struct vc_stream *create(CUcontext context) {
  struct vc_stream *s = NULL;
  if (posix_memalign((void **)&s, 64, sizeof *s)) return NULL;
  memset(s, 0, sizeof *s);
  s->context = context;
  s->handle = GONE;
  s->owned = 1;
  own(s);
  s->next = atomic_load(&all);
  while (!atomic_compare_exchange_weak(&all, &s->next, s)) continue;
  return s;
}

struct vc_stream *vc_stream_of(CUstream handle) {
  bool by_context = !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  CUcontext context = NULL;
  struct vc_stream *s = vc_cached[vc_stream_slot(handle)];
  if (by_context) VC_CALL(cuCtxGetCurrent)(&context);
  if (s != &nothing && s->handle == handle && (!by_context || s->context == context)) return s;
  for (s = mine; s; s = s->mine)
    if (s->handle == handle && (!by_context || s->context == context)) break;
  if (!s) {
    if (!by_context && VC_CALL(cuStreamGetCtx)(handle, &context) != CUDA_SUCCESS)
      VC_CALL(cuCtxGetCurrent)(&context);
    if (!context) return NULL;
    vc_lock(&guard);
    if (!have_key) have_key = pthread_key_create(&exit_key, thread_exits) == 0;
    vc_unlock(&guard);
    s = adopt(context);
    if (!s) s = create(context);
    if (!s) return NULL;
    vc_lock(&s->lock);
    s->context = context;
    s->key = NULL;
    s->left = 0;
    s->refused = false;
    s->per_thread = handle == CU_STREAM_PER_THREAD;
    s->handle = handle;
    vc_unlock(&s->lock);
  }
  vc_cached[vc_stream_slot(handle)] = s;
  return s;
}

void vc_stream_uncache(void) {
  for (unsigned i = 0; i < VC_CACHED; i++) vc_cached[i] = &nothing;
}

/* ---- what is in flight ---- */

/* With the lock held; others read the sums without it. */
static void see_waits(struct vc_stream *s) {
  if (VC_LIKELY(!vc_lane_waits(&s->lane))) return;
  uint32_t first = vc_lane_wait(&s->lane);
  uint64_t behind = s->pending.ns;
  for (uint32_t i = first; i != s->lane.tail; i++) behind += s->note[i % VC_FENCES].ns;
  s->before_wait = s->lane.fence[first % VC_FENCES].upto;
  s->behind = behind;
}

void vc_stream_fold(struct vc_stream *s) {
  uint64_t ended = vc_lane_covers(&s->lane), fresh = ended - s->folded;
  if (ended <= s->folded) return;
  s->folded = ended;
  s->pending.launches += (uint32_t)fresh;
  s->pending.ns += fresh * s->each;
  s->queued += fresh * s->each;
  see_waits(s);
}

/* Make every thread of this process pass a memory barrier, if the kernel can. */
static void barrier(void) {
  static _Atomic int registered;
  if (!atomic_exchange(&registered, 1))
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void vc_stream_show(struct vc_stream *s, uint64_t then, uint64_t now) {
  bool active = vc_lane_state(&s->lane) == VC_ACTIVE;
  if (active == s->shown) return;
  if (!active && s->lane.armed) {
    /* Its thread could launch just now without the lock. It cannot from here on; did it? */
    s->lane.armed = 0;
    barrier();
    if (vc_lane_state(&s->lane) == VC_ACTIVE) return;
  }
  s->shown = active;
  if (!now) now = vc_now();
  if (active)
    vc_flight_start(now);
  else
    vc_flight_land(then ? then : now, now);
}

static void clear_pending(struct vc_stream *s) {
  vc_flight_launched(s->pending.launches);
  s->pending = (struct vc_note){0};
}

bool vc_stream_fence(struct vc_stream *s, bool wait, uint64_t now) {
  if (s->frozen || s->handle == GONE) return false;
  if (vc_lane_full(&s->lane)) vc_stream_poll(s, now);
  if (vc_lane_full(&s->lane)) return false;
  struct vc_note *n = &s->note[s->lane.tail % VC_FENCES];
  struct vc_around a = vc_stream_enter(s->context);
  CUresult r = CUDA_SUCCESS;
  uint64_t upto = vc_lane_covers(&s->lane);
  if (vc_stream_capturing(s->handle)) r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (r == CUDA_SUCCESS && !n->event)
    r = VC_CALL(cuEventCreate)(&n->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  if (r == CUDA_SUCCESS) r = VC_CALL(cuEventRecord)(n->event, s->handle);
  /* Only its own thread could try again later; a refusal is so rare that waiting for the stream is fine. */
  if (r != CUDA_SUCCESS && s->per_thread && !vc_stream_capturing(s->handle) &&
      VC_CALL(cuStreamSynchronize)(s->handle) == CUDA_SUCCESS)
    vc_lane_drained(&s->lane, upto);
  vc_stream_leave(a);
  s->refused = r != CUDA_SUCCESS;
  if (r != CUDA_SUCCESS) return false;
  vc_stream_fold(s);
  vc_flight_launched(s->pending.launches);
  CUevent event = n->event;
  *n = s->pending;
  n->event = event;
  n->made = now;
  if (n->key && n->since) vc_duration_asked(vc_duration_of(n->key));
  if (wait) n->key = NULL;
  s->pending = (struct vc_note){0};
  vc_lane_fenced(&s->lane, upto, wait);
  see_waits(s);
  return true;
}

/* Until when the oldest fence is known not to be complete. */
static uint64_t open_until(const struct vc_stream *s) {
  if (vc_lane_covers(&s->lane) != s->lane.fenced) return s->open_at; /* the last launch has no fence */
  for (uint32_t i = s->lane.head + 1; i != s->lane.tail; i++)
    if (s->note[i % VC_FENCES].launches) return s->open_at;
  return s->last_open_at > s->open_at ? s->last_open_at : s->open_at;
}

void vc_stream_measure(const struct vc_stream *s, const struct vc_note *n, uint64_t open_at, uint64_t now) {
  uint64_t begin = vc_stream_began(s, n);
  /* While the launches were still being made the GPU may have waited for the program. */
  uint64_t made = n->made > begin ? n->made : begin, surely = open_at > made ? open_at - made : 0;
  /* Of launches of the fast path it is unknown when the first began. */
  if (!n->since || !n->launches || now <= begin) return;
  if (now - begin > n->ns && vc_flight_beside(begin) && (!n->key || vc_duration_known(vc_duration_of(n->key)))) return;
  if (n->key)
    vc_duration_measured(vc_duration_of(n->key), surely, now - begin, n->launches, now);
  else
    vc_duration_compared(n->ns, surely, now - begin, n->launches, now);
}

/* The driver says now that the oldest fence is complete. Return when it was probably reached. */
static uint64_t reached(struct vc_stream *s, uint64_t now) {
  struct vc_note *n = &s->note[s->lane.head % VC_FENCES];
  uint64_t begin = vc_stream_began(s, n), open_at = open_until(s);
  uint64_t least = open_at > begin ? open_at : begin;
  /* It ended between the two looks, when it was expected to. Expected later, it ended as late as it can have;
   * expected before, it can have ended at any time. */
  uint64_t then = begin + n->ns;
  if (then < least) then = least + (now - least) / 2;
  if (then > now) then = now;
  vc_stream_measure(s, n, open_at, now);
  uint64_t queued = s->queued;
  s->queued = queued > n->ns ? queued - n->ns : 0;
  vc_lane_reached(&s->lane);
  see_waits(s);
  s->last_done = then;
  return then;
}

/* Errors after which a context runs nothing any more. */
static bool fatal(CUresult r) {
  switch ((int)r) {
  case CUDA_ERROR_DEINITIALIZED:
  case CUDA_ERROR_CONTEXT_IS_DESTROYED:
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
    return true;
  default:
    return false;
  }
}

/* If an event cannot tell, ask the stream itself; a single error does not mean completion. */
static bool ask_stream(struct vc_stream *s, CUresult said) {
  if (s->per_thread || s->handle == GONE) return fatal(said);
  if (vc_stream_capturing(s->handle)) return false;
  CUresult r = VC_CALL(cuStreamQuery)(s->handle);
  return r == CUDA_SUCCESS || fatal(r);
}

void vc_stream_drained(struct vc_stream *s, uint64_t upto, uint64_t now) {
  vc_stream_fold(s);
  vc_lane_drained(&s->lane, upto);
  if (!vc_lane_dirty(&s->lane)) clear_pending(s);
  uint64_t queued = s->pending.ns;
  for (uint32_t i = s->lane.head; i != s->lane.tail; i++) queued += s->note[i % VC_FENCES].ns;
  s->queued = queued;
  s->last_done = now;
  see_waits(s);
}

void vc_stream_poll(struct vc_stream *s, uint64_t now) {
  uint64_t then = now;
  bool any = false;
  if (!s->context) vc_stream_drained(s, vc_lane_covers(&s->lane), now);
  if (s->frozen || (s->lane.head == s->lane.tail && !s->refused)) {
    vc_stream_show(s, now, now);
    return;
  }
  struct vc_around a = vc_stream_enter(s->context);
  while (s->lane.head != s->lane.tail) {
    uint64_t upto = vc_lane_covers(&s->lane);
    CUresult r = VC_CALL(cuEventQuery)(s->note[s->lane.head % VC_FENCES].event);
    if (r == CUDA_ERROR_NOT_READY) break;
    if (r != CUDA_SUCCESS) {
      if (!ask_stream(s, r)) break;
      vc_stream_drained(s, upto, now);
      break;
    }
    any = true;
    then = reached(s, now);
  }
  if (s->refused && s->lane.head == s->lane.tail) {
    uint64_t upto = vc_lane_covers(&s->lane);
    if (ask_stream(s, CUDA_SUCCESS)) {
      vc_stream_drained(s, upto, now);
      s->refused = false;
    }
  }
  vc_stream_leave(a);
  vc_stream_show(s, any ? then : now, now);
  s->open_at = now;
}

/* ---- all streams ---- */

void vc_stream_mine(void (*visit)(struct vc_stream *, uint64_t), uint64_t argument, const CUstream *handle,
                    CUcontext context) {
  for (struct vc_stream *s = mine; s; s = s->mine)
    if (handle ? s->handle == *handle : s->context == context) visit(s, argument);
}

void vc_stream_own(void (*visit)(struct vc_stream *, uint64_t), uint64_t argument) {
  for (struct vc_stream *s = mine; s; s = s->mine) visit(s, argument);
}

void vc_stream_each(void (*visit)(struct vc_stream *, uint64_t), uint64_t argument) {
  for (struct vc_stream *s = atomic_load(&all); s; s = s->next) visit(s, argument);
}

void vc_stream_destroyed(CUstream handle) {
  for (struct vc_stream *s = atomic_load(&all); s; s = s->next) {
    if (s->handle != handle) continue;
    vc_lock(&s->lock);
    uint64_t now = vc_now();
    if (vc_lane_dirty(&s->lane) && !vc_stream_fence(s, false, now)) {
      /* Without an event the end of this work would be unknown once the handle is gone. */
      struct vc_around a = vc_stream_enter(s->context);
      uint64_t upto = vc_lane_covers(&s->lane);
      if (VC_CALL(cuStreamSynchronize)(handle) == CUDA_SUCCESS) vc_stream_drained(s, upto, now);
      vc_stream_leave(a);
    }
    s->handle = GONE;
    s->key = NULL;
    atomic_store(&s->lane.armed, 0);
    vc_stream_show(s, now, now);
    vc_unlock(&s->lock);
  }
}

void vc_stream_freeze(CUcontext context, bool frozen) {
  for (struct vc_stream *s = atomic_load(&all); s; s = s->next) {
    if (s->context != context) continue;
    vc_lock(&s->lock);
    s->frozen = frozen;
    vc_unlock(&s->lock);
  }
}

void vc_stream_rename(CUcontext from, CUcontext to) {
  for (struct vc_stream *s = atomic_load(&all); s; s = s->next) {
    if (s->context != from) continue;
    vc_lock(&s->lock);
    s->context = to;
    vc_unlock(&s->lock);
  }
}

/* Its context is gone, with its events. Its thread may be in the middle of a launch: once that has ended, the next poll
 * takes it for complete. */
static void lose(struct vc_stream *s, uint64_t now) {
  atomic_store(&s->lane.armed, 0);
  s->handle = GONE;
  s->key = NULL;
  s->context = NULL;
  s->frozen = s->refused = false;
  vc_stream_drained(s, vc_lane_covers(&s->lane), now);
  for (uint32_t i = 0; i < VC_FENCES; i++) s->note[i] = (struct vc_note){0};
  vc_stream_show(s, now, now);
}

void vc_stream_forget(CUcontext context) {
  for (struct vc_stream *s = atomic_load(&all); s; s = s->next) {
    if (s->context != context) continue;
    vc_lock(&s->lock);
    lose(s, vc_now());
    vc_unlock(&s->lock);
  }
}

/* The child's one thread keeps its lanes, those of the others are free. */
void vc_stream_reset(void) {
  atomic_store(&guard.word, 0);
  atomic_store(&vc_captures, 0);
  for (struct vc_stream *s = atomic_load(&all); s; s = s->next) {
    atomic_store(&s->lock.word, 0);
    s->shown = s->wanted = false;
    vc_lane_lost(&s->lane);
    s->folded = vc_lane_covers(&s->lane);
    s->pending = (struct vc_note){0};
    lose(s, 0);
    atomic_store(&s->owned, 0);
  }
  for (struct vc_stream *s = mine; s; s = s->mine) atomic_store(&s->owned, 1);
}
