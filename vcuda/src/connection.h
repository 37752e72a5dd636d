/* SPDX-License-Identifier: Apache-2.0 */
/* This process's place in its seat: the connection to the arbiter and the pages it gave. */
#ifndef VC_CONNECTION_H
#define VC_CONNECTION_H

#include "clock_and_lock.h"

/* The pages keep their addresses for the life of the process: a new arbiter's pages are mapped over the old ones, so
 * that a thread that reads them needs no lock. NULL until the first connection. */
struct vc_seat {
  struct vc_policy *_Atomic policy;
  struct vc_usage *usage;
  struct vc_bell *bell;
  struct vc_slot *_Atomic slot;
};

extern struct vc_seat vc_seat;
/* What the launch path looks at: the arbiter's gate, our own while it is gone, or a closed one. */
extern _Atomic uint32_t *_Atomic vc_gate;
/* Whether launches may pass now. */
static inline bool vc_gate_open(void) {
  return atomic_load(atomic_load(&vc_gate)) & 1;
}
/* Odd while the process may launch although the arbiter is gone. */
extern _Atomic uint32_t vc_own_gate;

/* What a connection makes the other modules do, see process_life.c. */
struct vc_life {
  bool (*start)(void);              /* at the first connection of a process */
  void (*moves)(void);              /* at each connection: its pages are about to be replaced */
  void (*seated)(struct vc_slot *); /* at each connection: the process has this slot now */
  void (*forget)(void);             /* what the parent had, in a forked child */
};
extern const struct vc_life vc_life;

/* Whether this process is, or was, connected: then the policy and the counters can be used. The first call waits up
 * to 2 s for a connection. */
bool vc_seat_ready(void);
/* In a forked child: forget everything of the parent's, and free all locks. */
void vc_seat_forked(void);
/* The arbiter is gone or does not answer. */
bool vc_seat_stale(uint64_t now);
/* Keep the connection: notice its loss, connect again with growing pauses. */
void vc_seat_tend(void);
/* Wake the arbiter's thread for this GPU. */
void vc_seat_ring(void);

#endif
