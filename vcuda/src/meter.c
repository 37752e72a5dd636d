/* SPDX-License-Identifier: Apache-2.0 */
#include "meter.h"
#include "bytes.h"
#include "memory_account.h"

#include <sched.h>

#define TRIES 8
#define YIELDS 100
#define ROUNDS 200

/* How much the driver can have reserved when all requests under way have been granted, and one more.
 * One that has just been granted may be in the reading too: this is too much rather than too little. */
static uint64_t most(const struct vc_meter *m, struct vc_reading r, uint64_t bytes) {
  uint64_t needed = vc_granules(vc_plus(vc_plus(r.used, m->pending), bytes));
  return needed > r.reserved ? needed : r.reserved;
}

/* With the lock held. The charge rises here only if the driver took more than it was asked for. A
 * reading that is older than this one no longer counts. */
static void apply(struct vc_meter *m, struct vc_reading r) {
  uint64_t limit = most(m, r, 0);
  if (m->charged > limit && !m->held) {
    if (atomic_load(&m->exported))
      vc_let_go(m->charged - limit, NULL);
    else
      vc_unreserve(m->charged - limit);
    m->charged = limit;
  } else if (r.reserved > m->charged) {
    vc_book(r.reserved - m->charged);
    m->charged = r.reserved;
  }
  atomic_fetch_add(&m->turn, 1);
}

/* One try: 1 granted, 0 refused for good, -1 refused while other requests may be counted twice, or what they gave back
 * not at all. */
static int try_begin(struct vc_meter *m, uint64_t bytes, vc_read *read, void *of) {
  for (int i = 1;; i++) {
    uint32_t turn = atomic_load(&m->turn);
    struct vc_reading r = read(of);
    vc_lock(&m->lock);
    bool fresh = turn == atomic_load(&m->turn) && !r.failed;
    if (fresh) apply(m, r);
    /* Without a reading that counts, nothing is known to be free. */
    uint64_t wanted = fresh ? most(m, r, bytes) : vc_plus(m->charged, vc_granules(bytes));
    uint64_t growth = wanted > m->charged ? wanted - m->charged : 0;
    bool last = fresh || i == TRIES, ok = last && vc_reserve_now(growth);
    int verdict = ok ? 1 : !fresh || m->pending || m->held > 1 ? -1 : 0;
    if (ok) {
      m->charged += growth;
      m->pending += bytes;
      atomic_fetch_add(&m->turn, 1);
    }
    vc_unlock(&m->lock);
    if (last) return verdict;
  }
}

bool vc_meter_begin(struct vc_meter *m, uint64_t bytes, vc_read *read, void *of) {
  if (!bytes) return true;
  vc_await_others();
  for (int round = 0; round < ROUNDS; round++) {
    int verdict = try_begin(m, bytes, read, of);
    if (verdict >= 0) return verdict;
    if (round < YIELDS)
      sched_yield();
    else
      vc_machine_sleep(50 * VC_US);
  }
  return false;
}

/* A reading counts only if no request began or ended meanwhile, for an old one could be too small,
 * and if no later one was applied. After some tries the charge stays as it is: others have just set
 * it, or it is too much rather than too little. */
void vc_meter_settle(struct vc_meter *m, vc_read *read, void *of) {
  for (int i = 0; i < TRIES; i++) {
    uint32_t turn = atomic_load(&m->turn);
    struct vc_reading r = read(of);
    if (r.failed) return; /* it stays as it is */
    vc_lock(&m->lock);
    bool fresh = turn == atomic_load(&m->turn);
    if (fresh) apply(m, r);
    vc_unlock(&m->lock);
    if (fresh) return;
  }
}

void vc_meter_hold(struct vc_meter *m, int change) {
  vc_lock(&m->lock);
  m->held += (uint32_t)change;
  vc_unlock(&m->lock);
}

void vc_meter_end(struct vc_meter *m, uint64_t bytes, vc_read *read, void *of) {
  vc_lock(&m->lock);
  m->pending -= bytes;
  atomic_fetch_add(&m->turn, 1);
  vc_unlock(&m->lock);
  vc_meter_settle(m, read, of);
}
