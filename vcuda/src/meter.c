/* SPDX-License-Identifier: Apache-2.0 */
#include "meter.h"
#include "account.h"

#define TRIES 8

bool vc_meter_begin(struct vc_meter *m, uint64_t bytes) {
  if (!vc_reserve(bytes)) return false;
  vc_lock(&m->lock);
  m->charged += bytes;
  m->pending += bytes;
  atomic_fetch_add(&m->turn, 1);
  vc_unlock(&m->lock);
  return true;
}

/* With the lock held. */
static void apply(struct vc_meter *m, uint64_t reading) {
  uint64_t target = reading + m->pending;
  if (target > m->charged)
    vc_book(target - m->charged);
  else
    vc_unreserve(m->charged - target);
  m->charged = target;
}

/* A reading counts only if no call began or ended meanwhile: an old one could be too small. After
 * some tries the charge stays as it is, which is too much rather than too little. */
void vc_meter_settle(struct vc_meter *m, vc_reading *read, void *of) {
  for (int i = 0; i < TRIES; i++) {
    uint32_t turn = atomic_load(&m->turn);
    uint64_t reading = read(of);
    vc_lock(&m->lock);
    bool fresh = turn == atomic_load(&m->turn);
    if (fresh) apply(m, reading);
    vc_unlock(&m->lock);
    if (fresh) return;
  }
}

void vc_meter_end(struct vc_meter *m, uint64_t bytes, vc_reading *read, void *of) {
  vc_lock(&m->lock);
  m->pending -= bytes;
  atomic_fetch_add(&m->turn, 1);
  vc_unlock(&m->lock);
  vc_meter_settle(m, read, of);
}
