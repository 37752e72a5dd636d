/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ready, blocked and running: what a stream, a process and a seat want of the GPU. Turns, rooms and accounts follow
 * from these words and from nothing else.
 *
 *              running                   ready                              blocked
 *   a stream   it holds work that the    a thread waits at the gate with    it holds work, and all of it comes
 *              GPU can do                a launch that the GPU could do,    after a wait that is not over
 *                                        because no wait comes before it
 *   a process  one of its streams is     one of its streams is              one of its streams is, and it is
 *                                                                           neither running nor ready
 *   a seat     one of its processes is   one of its processes is            one of its processes is, and it is
 *                                                                           neither running nor ready
 *
 * A wait is one for the host (a function, a value), for an event, or for another seat. An event of a stream of the same
 * process is like any other: as long as that stream is running so is the process, and if it is blocked both are.
 *
 * - A seat needs a turn, and keeps it, while it is ready; or running in its turn. A blocked seat cannot use the GPU: it
 *   is given no turn, and its turn ends as in a pause. A seat that runs without a turn, because a wait is over, needs none unless it
 *   takes longer than one.
 * - A launch behind a wait waits for no gate if its process is not running: it would wait for what is not to come while
 *   the gate is closed. It runs when the wait is over, gate or no gate. So what a seat has behind waits is limited for
 *   all of its processes together: to what it is owed at that moment, or to what may be in flight in its turn or that
 *   the GPU can spare, and to VC_BEHIND_MOST launches.
 * - What a seat did not use of a turn is not charged, and what it ran without a turn is.
 */
#ifndef VC_READY_H
#define VC_READY_H

#include <stdbool.h>

#define VC_BEHIND_MOST 32u    /* launches of a seat behind waits */
#define VC_TURN_NS 5000000ull /* how long a seat has the GPU while others want it */

/* Whether a launch would be something for the GPU to do. */
static inline bool vc_ready(bool behind_wait) {
  return !behind_wait;
}

/* Whether a launch joins what is behind waits, in place of waiting for the gate. */
static inline bool vc_joins_behind(bool behind_wait, bool process_running, bool gate_open) {
  return behind_wait && (gate_open || !process_running);
}

/* Whether a seat can use the GPU. */
static inline bool vc_can_use(bool running, bool ready) {
  return running || ready;
}

/* Whether it needs a turn for that, if it has run for so many nanoseconds without one. */
static inline bool vc_needs_turn(bool ready, unsigned long long without) {
  return ready || without >= VC_TURN_NS;
}

#endif
