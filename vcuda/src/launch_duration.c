/* SPDX-License-Identifier: Apache-2.0 */
#include "launch_duration.h"

#define SIZE 1024u /* a cache: a function that lost its place is measured again */
#define DOUBT_NS (20 * VC_MS)
#define HALF_LIFE_NS (4 * VC_S)
#define SURPRISE_NS (100 * VC_US) /* what is shorter does no harm to others */

static struct vc_duration table[SIZE];
static _Atomic uint32_t round_now = 1;

struct vc_duration *vc_duration_of(const void *key) {
  uint64_t mixed = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15ull;
  struct vc_duration *d = &table[mixed >> 54];
  if (VC_LIKELY(atomic_load_explicit(&d->key, memory_order_relaxed) == (uintptr_t)key)) return d;
  d->mean = d->longest = d->at = d->steady = 0;
  d->round = 0;
  d->key = (uintptr_t)key;
  return d;
}

static uint64_t faded(struct vc_duration *d, uint64_t now) {
  uint64_t longest = d->longest, at = d->at ? d->at : now;
  if (now > at + 16 * HALF_LIFE_NS) longest = 0, at = now;
  for (; now > at + HALF_LIFE_NS / 8; at += HALF_LIFE_NS / 8) longest -= longest / 12;
  d->at = at;
  return longest;
}

void vc_duration_measured(struct vc_duration *d, uint64_t least, uint64_t most, uint32_t launches,
                          uint64_t now) {
  bool known = vc_duration_known(d), exact = (most - least) * 4 < most;
  uint64_t count = launches ? launches : 1, each = most / count ? most / count : 1;
  uint64_t longest = faded(d, now), mean = d->mean;
  uint64_t surely = least / count;
  d->round = atomic_load(&round_now);
  d->steady = surely > 2 * longest && surely > SURPRISE_NS ? 1 : d->steady + count;
  if (!known || !mean || (d->rough && (exact || each < longest))) {
    d->mean = each;
    d->longest = !known && longest > each && !d->rough ? longest : each;
    d->rough = !exact;
    return;
  }
  if (!exact && each < mean) d->mean = mean = each;
  if (!exact) each = surely;
  d->longest = each > longest ? each : longest;
  if (exact || each > mean) d->mean = mean + each / 4 - mean / 4 + 1;
}

void vc_duration_doubt(uint64_t now) {
  static _Atomic uint64_t last;
  uint64_t before = last;
  if (now - before < DOUBT_NS || !atomic_compare_exchange_strong(&last, &before, now)) return;
  atomic_fetch_add(&round_now, 1);
}

bool vc_duration_known(const struct vc_duration *d) {
  return d->mean && d->round == atomic_load(&round_now);
}

uint64_t vc_duration_trust(const struct vc_duration *d) {
  return d->steady + 1;
}
