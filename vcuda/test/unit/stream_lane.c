/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of a thread, the keeper, the arbiter and the GPU on one lane.
 *
 * The thread runs every program of up to OPERATIONS operations: launches by the fast and by the slow
 * path, launches that the gate turns back, waits for the host, synchronisations, the end of its
 * stream, and a fork, after which the child goes on. Between any two steps another thread may end the
 * context, after which the lane is another stream's once it is idle; the keeper may record a fence, ask
 * for one, and take the lane for idle; the arbiter may close and open the gate and look whether the seat
 * is active; the GPU may complete what is first in the stream; the host may let go of a wait. In each
 * state that can be reached it must hold that
 *
 *   - no launch is believed complete that the GPU has not completed;
 *   - work that the GPU can run is shown as in flight, or it is behind a wait;
 *   - once the arbiter closed the gate and saw nothing in flight, nothing is launched until it opens,
 *     but for what was begun behind a wait of its stream;
 *   - a launch that the gate turns back is one that the GPU could do, or the GPU is at work in this stream;
 *   - when everybody rests and the GPU is done, the lane is idle.
 *
 * States are compared whole, so each is looked at once, in whatever order it was reached.
 */
#include "ready.h"
#include "stream_lane.h"
#include "unit.h"

#include <string.h>

#define OPERATIONS 5 /* or as the first argument says; 6 take 0.7 GB */
#define ITEMS 14
#define STATES (1u << 21)

enum item { LAUNCH = 1, FENCE, WAIT };

/* The thread's place in its program. */
enum at {
  READY,
  BEGUN_FAST, /* counted, not yet looked whether it may */
  GO_FAST,    /* it may: the driver's call comes next */
  SENT_FAST,
  BEGUN_SLOW, /* counted and shown, not yet looked at the gate */
  GO_SLOW,
  SENT_SLOW,
  SYNC, /* waits for the GPU */
};

struct state {
  struct vc_lane lane;
  unsigned char queue[ITEMS]; /* of the stream, in order */
  unsigned char first, last;  /* not yet completed items lie between */
  unsigned char thread, operations, keeper;
  unsigned char completed, recorded; /* launches by the GPU; fences before this stream's first */
  unsigned char shown, gate, handed_over, gone;
  unsigned char held, behind; /* the first wait is not over; the launch was begun behind one */
  unsigned char lost;         /* its context is gone: no call of the driver succeeds there */
};

static struct state *states;
static unsigned *table, count, operations = OPERATIONS;

static unsigned hash(const struct state *s) {
  const unsigned char *p = (const unsigned char *)s;
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < sizeof *s; i++) h = (h ^ p[i]) * 1099511628211ull;
  return (unsigned)(h >> 32) & (2 * STATES - 1);
}

static void push(const struct state *s) {
  unsigned i = hash(s);
  while (table[i] && memcmp(&states[table[i] - 1], s, sizeof *s)) i = (i + 1) & (2 * STATES - 1);
  if (table[i]) return;
  CHECK(count < STATES);
  states[count] = *s;
  table[i] = ++count;
}

static bool room(const struct state *s) {
  return s->last < ITEMS;
}

static void send(struct state *s, enum item item) {
  s->queue[s->last++] = (unsigned char)item;
}

/* The driver records an event: it is complete when the GPU has come so far. */
static void fence(struct state *s, bool wait) {
  if (!room(s) || vc_lane_full(&s->lane) || s->gone || s->lost) return;
  uint64_t upto = vc_lane_covers(&s->lane);
  send(s, FENCE);
  vc_lane_fenced(&s->lane, upto, wait);
}

static void show(struct state *s) {
  s->shown = vc_lane_state(&s->lane) == VC_ACTIVE;
}

/* ---- what each of them may do next ---- */

static void launch_steps(const struct state *before) {
  struct state s = *before;
  switch (s.thread) {
  case READY:
    if (s.lost && vc_lane_state(&s.lane) == VC_IDLE && !s.shown) s.lost = 0; /* for a stream of another context */
    if (s.operations == operations || s.gone || s.lost) break;
    s.operations++;
    if (!room(&s)) break;
    vc_lane_begin(&s.lane); /* the fast path */
    s.thread = BEGUN_FAST;
    push(&s);
    break;
  case BEGUN_FAST:
    if (atomic_load(&s.lane.armed) && s.gate) {
      s.thread = GO_FAST;
    } else { /* the slow path */
      atomic_store(&s.lane.armed, 0);
      show(&s);
      s.behind = !s.shown;
      s.thread = BEGUN_SLOW;
    }
    push(&s);
    break;
  case BEGUN_SLOW:
    if (s.gate || vc_joins_behind(vc_lane_waits(&s.lane), s.shown, false)) {
      s.thread = GO_SLOW;
    } else { /* turned back; it sees to what is in flight, and tries again or does something else */
      vc_lane_abandon(&s.lane);
      CHECK(vc_ready(vc_lane_waits(&s.lane)) || s.shown);
      if (vc_lane_dirty(&s.lane)) fence(&s, false);
      show(&s);
      s.thread = READY;
      s.behind = 0;
    }
    push(&s);
    break;
  case GO_FAST:
  case GO_SLOW:
    if (!room(&s)) break;
    CHECK(!s.handed_over || s.behind);
    if (s.lost)
      s.completed++; /* refused */
    else
      send(&s, LAUNCH);
    s.thread = s.thread == GO_FAST ? SENT_FAST : SENT_SLOW;
    push(&s);
    break;
  case SENT_FAST:
    vc_lane_end(&s.lane);
    s.thread = READY;
    push(&s);
    break;
  case SENT_SLOW:
    vc_lane_end(&s.lane);
    s.behind = 0;
    s.thread = READY;
    for (int with_fence = 0; with_fence < 2; with_fence++) {
      struct state t = s;
      if (with_fence) fence(&t, false);
      atomic_store(&t.lane.armed, t.shown);
      push(&t);
    }
    break;
  case SYNC:
    if (s.first != s.last) break;
    vc_lane_drained(&s.lane, vc_lane_covers(&s.lane));
    atomic_store(&s.lane.armed, 0);
    show(&s);
    s.thread = READY;
    push(&s);
    break;
  }
}

/* Nothing of it runs any more. */
static void empty(struct state *s, uint64_t completed) {
  atomic_store(&s->lane.armed, 0);
  s->completed = (unsigned char)completed;
  s->first = s->last = 0;
  s->held = s->keeper = 0;
  memset(s->queue, 0, sizeof s->queue);
  s->recorded = (unsigned char)s->lane.head;
  show(s);
}

static void other_operations(const struct state *before) {
  if (before->thread != READY || before->operations == operations || before->gone || before->lost) return;
  struct state s = *before;
  s.operations++;
  s.thread = SYNC;
  push(&s);

  s = *before; /* something that the stream waits for: a fence before it and one behind */
  s.operations++;
  if (s.last + 3 <= ITEMS) {
    if (vc_lane_dirty(&s.lane)) fence(&s, false);
    send(&s, WAIT);
    s.held = 1;
    fence(&s, true);
    atomic_store(&s.lane.armed, 0);
    show(&s);
    push(&s);
  }

  s = *before; /* the stream is destroyed: what it holds is still done */
  s.operations++;
  if (vc_lane_dirty(&s.lane)) fence(&s, false);
  if (!vc_lane_dirty(&s.lane)) {
    s.gone = 1;
    atomic_store(&s.lane.armed, 0);
    show(&s);
    push(&s);
  }

  s = *before; /* a child is forked */
  s.operations++;
  vc_lane_lost(&s.lane);
  empty(&s, atomic_load(&s.lane.begun));
  push(&s);
}

/* Another thread destroys the context, wherever this one is. */
static void end_of_context(const struct state *before) {
  struct state s = *before;
  bool sent = s.thread == READY || s.thread == SYNC || s.thread == SENT_FAST || s.thread == SENT_SLOW;
  if (s.operations == operations || s.lost || s.keeper) return;
  s.operations++;
  s.lost = 1;
  vc_lane_drained(&s.lane, vc_lane_covers(&s.lane));
  empty(&s, atomic_load(&s.lane.begun) - !sent);
  push(&s);
}

/* Fences in the stream that lie before what is not yet completed. */
static unsigned fences_done(const struct state *s) {
  unsigned done = 0;
  for (int i = 0; i < s->first; i++) done += s->queue[i] == FENCE;
  return done;
}

static void keeper_steps(const struct state *before) {
  struct state s = *before;
  bool locked = s.thread == SENT_SLOW; /* the thread's slow path is under the lock there */
  if (locked) return;
  if (s.keeper == 1) { /* disarmed; the barrier is passed; did a launch begin before it? */
    s.keeper = 0;
    if (vc_lane_state(&s.lane) != VC_ACTIVE) {
      s.shown = 0;
      s.behind |= s.thread != READY;
    }
    push(&s);
    return;
  }
  if (s.lost) {
    vc_lane_drained(&s.lane, vc_lane_covers(&s.lane));
    atomic_store(&s.lane.armed, 0);
    show(&s);
    push(&s);
    return;
  }
  if (vc_lane_covers(&s.lane) != s.lane.fenced && !s.gone) {
    struct state t = s;
    fence(&t, false);
    push(&t);
  }
  struct state t = s;
  if (s.lane.head != s.lane.tail && fences_done(&s) > s.lane.head - s.recorded) {
    vc_lane_reached(&t.lane);
    if (vc_lane_state(&t.lane) == VC_ACTIVE) t.shown = 1;
    push(&t);
  }
  t = s;
  bool active = vc_lane_state(&t.lane) == VC_ACTIVE;
  if (active == t.shown) return;
  if (active || !atomic_load(&t.lane.armed)) {
    t.shown = active;
    t.behind |= t.thread != READY && !active;
  } else {
    atomic_store(&t.lane.armed, 0);
    t.keeper = 1;
  }
  push(&t);
}

static void world_steps(const struct state *before) {
  struct state s = *before;
  if (s.first != s.last && !(s.queue[s.first] == WAIT && s.held)) { /* the GPU */
    s.completed += s.queue[s.first++] == LAUNCH;
    push(&s);
  }
  if (before->held) { /* the host */
    s = *before;
    s.held = 0;
    push(&s);
  }
  s = *before; /* the arbiter */
  s.gate = !s.gate;
  s.handed_over = 0;
  push(&s);
  if (!before->gate && !before->shown && !before->handed_over) {
    s = *before;
    s.handed_over = 1;
    push(&s);
  }
}

static void holds(const struct state *s) {
  CHECK(s->lane.done <= s->completed);
  bool behind_wait = false, work = false;
  for (int i = s->first; i < s->last; i++) {
    behind_wait |= s->queue[i] == WAIT && s->held;
    work |= s->queue[i] == LAUNCH && !behind_wait;
  }
  /* What was let go of a moment ago is seen at the keeper's next look. */
  CHECK(!work || s->shown || vc_lane_state(&s->lane) == VC_BLOCKED);
}

/* If nothing new happens, the keeper alone brings the lane to rest. */
static void comes_to_rest(struct state s) {
  if (s.thread != READY || s.held) return;
  if (s.lost) vc_lane_drained(&s.lane, vc_lane_covers(&s.lane));
  for (int i = 0; i < 4 * ITEMS; i++) {
    while (s.first != s.last) s.completed += s.queue[s.first++] == LAUNCH;
    if (s.last == ITEMS) return; /* the model's stream is full, not the driver's */
    if (vc_lane_covers(&s.lane) != s.lane.fenced && !s.gone) fence(&s, false);
    if (s.lane.head != s.lane.tail && fences_done(&s) > s.lane.head - s.recorded)
      vc_lane_reached(&s.lane);
  }
  CHECK(vc_lane_state(&s.lane) == VC_IDLE);
}

int main(int argc, char **argv) {
  if (argc > 1) operations = (unsigned)atoi(argv[1]);
  states = calloc(STATES, sizeof *states);
  table = calloc(2 * STATES, sizeof *table);
  CHECK(states && table);
  struct state start;
  memset(&start, 0, sizeof start);
  start.gate = 1;
  push(&start);
  for (unsigned i = 0; i < count; i++) {
    struct state s = states[i];
    holds(&s);
    comes_to_rest(s);
    launch_steps(&s);
    other_operations(&s);
    end_of_context(&s);
    keeper_steps(&s);
    world_steps(&s);
  }
  printf("%u states of programs of %u operations\n", count, operations);
  free(states);
  free(table);
  return 0;
}
