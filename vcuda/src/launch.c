/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"
#include "context_limit.h"
#include "in_flight.h"
#include "launch_room.h"
#include "process_turn.h"
#include "ready.h"

#define GATE_LOOK_NS (20 * VC_MS)
#define POLL_NS (2 * VC_US)
#define POLL_OTHERS_NS (50 * VC_US) /* other threads' work: they ask the driver */
#define POLL_MAX_NS (200 * VC_US)
/* A launch waits no longer than this for those before it. The driver promises that launches return,
 * and a program may count on that to let go of what the GPU waits for. */
#define PATIENCE_NS (2 * VC_S)
#define BLOCKED_PATIENCE_NS (10 * VC_MS)

static _Atomic uint32_t waiting, blocked;
static _Atomic uint64_t waited;
static struct vc_lock showing;

uint32_t vc_launch_waiting(void) {
  return atomic_load(&waiting);
}

bool vc_launch_blocked(void) {
  return atomic_load(&blocked);
}

/* Publish how long a launch takes, for the arbiter. */
static void show_unit(uint64_t ns) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (!slot) return;
  uint64_t unit = atomic_load_explicit(&slot->unit_ns, memory_order_relaxed);
  unit = ns > unit ? ns : unit - (unit - ns) / 16;
  atomic_store_explicit(&slot->unit_ns, unit, memory_order_relaxed);
}

static void count_ready(struct vc_stream *s, uint64_t to) {
  if (s->wanted && vc_ready(vc_lane_waits(&s->lane))) ++*(uint32_t *)(uintptr_t)to;
}

/* Only launches that the GPU could do count as waiting. Returns whether there are more of them than before. */
static bool show_waiting(void) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  uint32_t ready = 0, before;
  if (!slot) return false;
  vc_lock(&showing);
  if (atomic_load(&waiting)) vc_stream_each(count_ready, (uint64_t)(uintptr_t)&ready);
  before = atomic_exchange(&slot->waiting, ready);
  vc_unlock(&showing);
  atomic_store_explicit(&slot->waited_ns, atomic_load(&waited), memory_order_relaxed);
  return ready > before;
}

/* How long to sleep before the next look: the longer it has taken, the longer. */
static uint64_t nap(uint64_t begin, uint64_t now, uint64_t least) {
  uint64_t step = now > begin ? (now - begin) / 32 : 0;
  return step < least ? least : step > POLL_MAX_NS ? POLL_MAX_NS : step;
}

/* When to ask again: when the oldest work is expected to end, and sometimes before, because that may be wrong. */
static uint64_t ask_at(const struct vc_stream *s, uint64_t since, uint64_t now) {
  if (s->lane.head == s->lane.tail) return now + nap(since, now, POLL_NS);
  const struct vc_note *n = &s->note[s->lane.head % VC_FENCES];
  uint64_t begin = vc_stream_began(s, n);
  uint64_t whole = n->key ? vc_duration_of(n->key)->mean * n->launches : n->ns;
  uint64_t end = begin + whole - whole / 16; /* asked just before, it is measured exactly */
  uint64_t at = now + nap(begin, now, POLL_NS);
  return end > now && end < at ? end + 1 : at;
}

struct watch {
  uint64_t since, now, until;
  bool landed;
};

static void watch_one(struct vc_stream *s, uint64_t of) {
  struct watch *w = (struct watch *)(uintptr_t)of;
  if (!s->shown) return;
  vc_lock(&s->lock);
  bool was = s->shown;
  if (vc_lane_covers(&s->lane) != s->lane.fenced) vc_stream_fence(s, false, w->now);
  vc_stream_poll(s, w->now);
  w->landed |= was && !s->shown;
  uint64_t at = s->lane.head != s->lane.tail || s->refused ? ask_at(s, w->since, w->now) : w->until;
  if (at < w->until) w->until = at;
  vc_unlock(&s->lock);
}

/* Watch what this thread has in flight, in all streams. Return when to look again. */
static uint64_t watch(uint64_t since, uint64_t now, uint64_t until) {
  struct watch w = {since, now, until, false};
  vc_stream_own(watch_one, (uint64_t)(uintptr_t)&w);
  if (w.landed && !vc_gate_open()) vc_seat_ring();
  return w.until;
}

/* A launch that waits. */
struct wait {
  uint64_t since;      /* the first time that there was no room, or that it was not its turn; 0: never */
  uint64_t full_since; /* with the gate open and its turn come, no room since then; 0: there is */
  uint64_t behind_since; /* no room behind waits since then; 0: there is */
  bool turn;           /* it has its turn */
};

/* Ask the driver whether the waits of a stream are over. */
static bool still_waits(struct vc_stream *s, uint64_t now) {
  vc_lock(&s->lock);
  if (vc_lane_waits(&s->lane)) vc_stream_poll(s, now);
  bool waits = vc_lane_waits(&s->lane);
  vc_unlock(&s->lock);
  return waits;
}

/* Wait for the gate, and watch what is in flight meanwhile. False if the seat was taken away. */
static bool wait_gate(struct vc_stream *s, struct wait *w) {
  uint64_t start = vc_now(), now = start;
  bool ok = true;
  atomic_fetch_add(&waiting, 1);
  s->wanted = true;
  for (;;) {
    _Atomic uint32_t *gate = atomic_load(&vc_gate);
    uint32_t seen = atomic_load(gate);
    if (seen & 1) break;
    ok = atomic_load(&vc_seat.policy->confirmed);
    if (!ok) break;
    bool waits = still_waits(s, now);
    if (vc_joins_behind(waits, vc_flight_any(), false)) break;
    if (show_waiting()) vc_seat_ring();
    vc_turn_keep(now);
    uint64_t until = watch(start, now, now + GATE_LOOK_NS);
    if (waits && until > now + nap(start, now, POLL_OTHERS_NS)) until = now + nap(start, now, POLL_OTHERS_NS);
    vc_wait(gate, seen, vc_seat.policy->gate_key, until);
    now = vc_now();
  }
  s->wanted = false;
  vc_flight_waited();
  now = vc_now();
  if (w->full_since) w->full_since += now - start;
  atomic_fetch_add(&waited, now - start);
  atomic_fetch_sub(&waiting, 1);
  show_waiting();
  return ok;
}

enum room { FULL, NOT_YET, ROOM };

static enum room has_room(struct vc_stream *s, const void *key, struct wait *w) {
  const struct vc_duration *d = vc_duration_of(key);
  uint64_t seen = vc_turn_seen();
  vc_lock(&s->lock);
  vc_stream_fold(s);
  struct vc_load load = vc_room_load();
  if (!load.launches) vc_turn_over(seen);
  uint64_t depth = vc_flight_depth();
  bool room = vc_room_fits(d, load, depth);
  vc_unlock(&s->lock);
  if (room && vc_room_is_long(d, depth)) {
    uint64_t now = vc_now();
    if (!w->since) w->since = now;
    w->turn = vc_turn_take(w->since, vc_room_turn(d, depth), load.ns, now);
    return w->turn ? ROOM : NOT_YET;
  }
  vc_turn_leave();
  return room ? ROOM : FULL;
}

/* Wait a little for room; true if there is some. The wait is bounded in all, because the program may be about to let go
 * of something that a stream waits for. Its turn comes by itself, since others lose theirs if they take longer than
 * expected. */
static bool wait_room(struct vc_stream *s, const void *key, struct wait *w) {
  if (has_room(s, key, w) == ROOM) return true;
  uint64_t now = vc_now();
  if (!w->since) w->since = now;
  uint64_t until = watch(w->since, now, now + nap(w->since, now, POLL_OTHERS_NS));
  enum room room = has_room(s, key, w);
  if (room == ROOM) return true;
  if (room == NOT_YET)
    w->full_since = 0;
  else if (!w->full_since)
    w->full_since = now;
  uint64_t patience = vc_launch_blocked() ? BLOCKED_PATIENCE_NS : PATIENCE_NS;
  if (w->full_since && now - w->full_since > patience) {
    const struct vc_duration *d = vc_duration_of(key);
    uint64_t depth = vc_flight_depth();
    w->turn = room == FULL && vc_room_is_long(d, depth);
    if (w->turn) vc_turn_force(vc_room_turn(d, depth), vc_room_load().ns, now);
    return true;
  }
  _Atomic uint32_t *gate = atomic_load(&vc_gate);
  vc_wait(gate, atomic_load(gate), vc_seat.policy->gate_key, until);
  return false;
}

/* Join what is behind waits, or wait a little for room there or for the end of the wait; true if there is room. */
static bool wait_behind(struct vc_stream *s, const void *key, struct wait *w) {
  const struct vc_duration *d = vc_duration_of(key);
  uint64_t now = vc_now();
  vc_turn_leave();
  w->turn = false;
  vc_lock(&s->lock);
  vc_stream_fold(s);
  vc_unlock(&s->lock);
  struct vc_load behind = vc_room_behind();
  if (vc_room_fits_behind(d, behind, vc_flight_depth())) return true;
  if (!w->behind_since) w->behind_since = now;
  if (vc_room_force_behind(d, behind, vc_flight_depth(), w->behind_since, now)) return true;
  if (!still_waits(s, now)) return false;
  _Atomic uint32_t *gate = atomic_load(&vc_gate);
  uint64_t until = watch(w->behind_since, now, now + nap(w->behind_since, now, POLL_OTHERS_NS));
  vc_wait(gate, atomic_load(gate), vc_seat.policy->gate_key, until);
  return false;
}

/* With the lock held and the launch counted as begun: record a fence before it if one is due, and decide whether one
 * follows. */
static void prepare(struct vc_ticket *t, struct vc_stream *s, enum vc_launch_kind kind, bool behind) {
  const struct vc_duration *d = vc_duration_of(t->key);
  uint64_t depth = vc_flight_depth();
  bool alone = kind == VC_GRAPH || vc_duration_doubted(d) || s->per_thread;
  uint64_t target = vc_room_fence(depth);
  vc_stream_fold(s);
  if (s->pending.launches && (alone || s->pending.ns + d->longest > 2 * target))
    vc_stream_fence(s, false, vc_now());
  if (!s->pending.launches) {
    s->pending.since = vc_now();
    s->pending.key = t->key;
  } else if (s->pending.key != t->key) {
    s->pending.key = NULL;
  }
  t->fence = alone || s->pending.ns + d->longest >= target || s->pending.launches >= VC_STEP_MAX - 1;
  s->key = t->key;
  s->each = behind ? vc_room_expected_behind(d) : vc_room_expected(d, depth ? depth : VC_ROOM_ALONE_NS);
}

/* Another function than before, but a known one that the next fence still has room for. */
static bool begin_known(struct vc_ticket *t, struct vc_stream *s) {
  const struct vc_duration *d = vc_duration_of(t->key);
  uint64_t depth = vc_flight_depth();
  uint64_t target = vc_room_fence(depth);
  if (s->left <= 1 || vc_duration_doubted(d) || !vc_room_trusts() || atomic_load(&vc_deep_kernels)) return false;
  vc_lane_begin(&s->lane);
  vc_lock(&s->lock);
  vc_stream_fold(s);
  bool ok = s->lane.armed && vc_gate_open() && s->pending.launches &&
            s->pending.ns + 2 * d->longest < target;
  if (ok) {
    s->left--;
    if (s->pending.key != t->key) s->pending.key = NULL;
    s->key = t->key;
    s->each = d->longest;
  } else {
    vc_lane_abandon(&s->lane);
  }
  vc_unlock(&s->lock);
  t->quick = ok;
  return ok;
}

CUresult vc_launch_begin(struct vc_ticket *t, CUstream handle, const void *key,
                         enum vc_launch_kind kind) {
  struct vc_stream *s = vc_cached[vc_stream_slot(handle)];
  t->stream = NULL;
  t->quick = t->turn = t->behind = false;
  t->key = key;
  if (kind == VC_KERNEL && s->handle == handle && s->key && s->context && begin_known(t, s)) {
    t->stream = s;
    return CUDA_SUCCESS;
  }
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (vc_stream_capturing(handle)) return CUDA_SUCCESS;
  s = vc_stream_of(handle);
  if (!s) return CUDA_SUCCESS; /* no context: the driver will say so */
  if (!vc_context_runs(key, s->context)) return CUDA_ERROR_OUT_OF_MEMORY;
  struct wait w = {0};
  bool behind;
  for (;;) {
    /* First show that something is in flight, then look at the gate: an arbiter that closes the gate
     * looks afterwards whether something is. */
    vc_lock(&s->lock);
    vc_lane_begin(&s->lane);
    s->lane.armed = 0;
    vc_stream_show(s, 0, 0);
    bool waits = vc_lane_waits(&s->lane);
    vc_unlock(&s->lock);
    atomic_thread_fence(memory_order_seq_cst);
    bool open = vc_gate_open();
    behind = vc_joins_behind(waits, vc_flight_any(), open);
    if (behind ? wait_behind(s, key, &w) : open && wait_room(s, key, &w)) break;
    vc_lane_abandon(&s->lane);
    if (open || behind) continue;
    if (!wait_gate(s, &w)) {
      vc_turn_leave();
      return CUDA_ERROR_SYSTEM_NOT_READY;
    }
  }
  vc_lock(&s->lock);
  prepare(t, s, kind, behind);
  vc_unlock(&s->lock);
  t->stream = s;
  t->turn = w.turn;
  t->behind = behind;
  return CUDA_SUCCESS;
}

void vc_launch_end(struct vc_ticket *t, CUresult result) {
  struct vc_stream *s = t->stream;
  if (!s) return;
  vc_lane_end(&s->lane);
  if (t->turn) vc_turn_made();
  if (t->quick) return;
  vc_lock(&s->lock);
  vc_stream_fold(s);
  uint64_t now = t->fence ? vc_now() : 0;
  if (result == CUDA_SUCCESS && t->fence) vc_stream_fence(s, false, now);
  const struct vc_duration *d = vc_duration_of(t->key);
  if (t->fence && vc_duration_known(d)) show_unit(d->longest);
  /* The next launch after a fence is the first of what the next fence covers, and notes the time. Behind a wait each
   * looks for room. */
  s->left = t->fence || t->behind ? 1 : vc_room_step(d, vc_room_load(), vc_flight_depth());
  atomic_store(&s->lane.armed, s->shown && s->left > 1);
  vc_unlock(&s->lock);
}

/* ---- the keeper's look ---- */

static void look(struct vc_stream *s, uint64_t now) {
  if (!s->shown && s->lane.head == s->lane.tail && !vc_lane_dirty(&s->lane)) return;
  if (!vc_lock_try(&s->lock)) return;
  uint64_t ended = vc_lane_covers(&s->lane);
  bool tail = ended != s->lane.fenced, quiet = ended == s->seen;
  s->seen = ended;
  vc_stream_poll(s, now);
  if (tail && !s->per_thread && (!vc_gate_open() || (quiet && s->lane.head == s->lane.tail))) {
    /* Nothing else would notice the end of what the last fence does not cover. */
    vc_stream_fence(s, false, now);
    vc_stream_poll(s, now);
  }
  if (vc_lane_state(&s->lane) == VC_BLOCKED) atomic_fetch_add(&blocked, 1);
  vc_unlock(&s->lock);
}

uint32_t vc_launch_poll(uint64_t now) {
  bool was_active = vc_flight_any();
  atomic_store(&blocked, 0);
  uint64_t seen = vc_turn_seen();
  vc_stream_each(look, now);
  if (!vc_room_load().launches) vc_turn_over(seen);
  if (atomic_load(&waiting)) vc_turn_keep(now);
  vc_room_behind();
  bool ring = show_waiting();
  uint32_t active = vc_flight_publish(now);
  /* A wait is over, and what was behind it runs. */
  if (ring || (active && !was_active && !vc_gate_open())) vc_seat_ring();
  return active;
}

/* ---- capture, and a forked child ---- */

static void expose(struct vc_stream *s, uint64_t unused) {
  (void)unused;
  atomic_store(&s->lane.armed, 0);
}

void vc_launch_capture(int change) {
  atomic_fetch_add(&vc_captures, change);
  if (change > 0) vc_stream_each(expose, 0);
}

void vc_launch_reset(void) {
  atomic_store(&waiting, 0);
  atomic_store(&blocked, 0);
  atomic_store(&showing.word, 0);
  vc_turn_reset();
  vc_flight_reset(); /* before the streams, which count themselves out there */
  vc_stream_reset();
}
