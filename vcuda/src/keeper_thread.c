/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "keeper_thread.h"
#include "connection.h"
#include "in_flight.h"
#include "launch.h"
#include "memory_account.h"
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#define NEAR_NS (50 * VC_US)
#define MIDDLE_NS (200 * VC_US) /* while others sit on this GPU */
#define ALONE_NS (10 * VC_MS)   /* the depth allowed if none does */
#define FAR_NS (1 * VC_MS)
#define LONG_NS (20 * VC_MS)
#define SETTLE_NS (100 * VC_MS)
#define OWN_CREDIT_NS (10 * VC_MS)

static struct {
  bool on;
  int64_t credit;
  uint64_t at, busy;
} ration;
static uint64_t rung_for, settle_at;
static _Atomic bool running;

static void set_own_gate(bool open) {
  uint32_t old = atomic_load(&vc_own_gate);
  if ((old & 1) == open) return;
  atomic_store(&vc_own_gate, old + 1);
  vc_wake(&vc_own_gate, vc_seat.policy->gate_key);
}

/* Without an arbiter: run no more than the request, by our own measure. */
static void stand_in(uint64_t now) {
  uint64_t busy = vc_flight_busy();
  if (!ration.on) {
    ration.on = true;
    ration.credit = 0;
    ration.at = now;
    ration.busy = busy;
    atomic_store(&vc_gate, &vc_own_gate);
  }
  uint32_t request = atomic_load(&vc_seat.policy->request);
  ration.credit += (int64_t)((now - ration.at) * request / VC_PERMILLE) - (int64_t)(busy - ration.busy);
  if (ration.credit > (int64_t)OWN_CREDIT_NS) ration.credit = OWN_CREDIT_NS;
  ration.at = now;
  ration.busy = busy;
  set_own_gate(ration.credit > 0);
}

static void stand_down(void) {
  ration.on = false;
  set_own_gate(false);
  atomic_store(&vc_gate, &vc_seat.policy->gate);
  vc_wake(&vc_own_gate, vc_seat.policy->gate_key);
}

/* Tell the arbiter, once per pause, that the gate can go to another seat. */
static void offer(uint64_t now, uint32_t active) {
  uint64_t since = vc_flight_idle_since();
  if (active || since == rung_for) return;
  bool open = atomic_load(&vc_seat.policy->gate) & 1;
  if (open && now - since < vc_flight_linger()) return;
  rung_for = since;
  vc_seat_ring();
}

static uint64_t nap(uint64_t now, uint32_t active) {
  bool contended = atomic_load(&vc_seat.policy->contended);
  if (active || vc_launch_blocked()) return contended ? NEAR_NS : vc_flight_depth() < ALONE_NS ? MIDDLE_NS : FAR_NS;
  uint64_t idle = now - vc_flight_idle_since(), linger = vc_flight_linger();
  if (contended && idle < linger) return linger - idle;
  if (ration.on || vc_launch_waiting() || idle < FAR_NS) return FAR_NS;
  return LONG_NS;
}

static void turn(void) {
  vc_seat_tend();
  uint64_t now = vc_now();
  uint32_t active = vc_launch_poll(now);
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (slot) atomic_fetch_add_explicit(&slot->beat, 1, memory_order_relaxed);
  if (vc_seat_stale(now))
    stand_in(now);
  else if (ration.on)
    stand_down();
  if (atomic_load(&vc_seat.policy->contended)) offer(now, active);
  if (now >= settle_at) {
    vc_pools_settle();
    vc_account_tend();
    settle_at = now + SETTLE_NS;
  }
  uint64_t pause = nap(now, active);
  /* If others wait, the end of each short burst of work must be seen. */
  vc_flight_rest(now + pause, !active && pause > VC_LINGER_NS);
}

static void *run(void *unused) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  VC_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  prctl(PR_SET_TIMERSLACK, 1000);
  for (;;) {
    turn();
    atomic_store(&running, true);
  }
  return unused;
}

/* The program's signals are not for this thread. */
bool vc_keeper_start(void) {
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  ration.on = false;
  atomic_store(&running, false);
  if (pthread_sigmask(SIG_SETMASK, &all, &before)) return false;
  bool ok = pthread_create(&thread, NULL, run, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (ok) pthread_detach(thread);
  /* A virtual clock must not go on before this thread counts among those that live by it. */
  for (int i = 0; ok && vc_clock && i < 10000 && !atomic_load(&running); i++)
    vc_machine_sleep(100 * VC_US);
  return ok;
}
