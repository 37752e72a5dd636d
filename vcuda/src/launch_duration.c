/* SPDX-License-Identifier: Apache-2.0 */
#include "launch_duration.h"

#define SETS 1024u /* a cache: a function that lost its place is measured again */
#define WAYS 4u
#define DOUBT_NS (20 * VC_MS) /* between two doubts */
#define CALM_NS VC_S /* and if launches took less than expected, which does no harm */
#define SLACK_NS (50 * VC_US)
#define HALF_LIFE_NS (4 * VC_S)
#define SURPRISE_NS (100 * VC_US) /* what is shorter does no harm to others */

static struct vc_duration table[SETS][WAYS];
static _Atomic uint32_t round_now = 1;
static _Atomic uint64_t trust;

/* When it was last measured: never if it has no function yet, just now if its function is new. */
static uint64_t last_use(const struct vc_duration *d) {
  return !d->key ? 0 : d->at ? d->at : UINT64_MAX;
}

struct vc_duration *vc_duration_of(const void *key) {
  uint64_t mixed = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15ull;
  struct vc_duration *set = table[mixed >> 54], *oldest = set;
  for (unsigned i = 0; i < WAYS; i++) {
    if (VC_LIKELY(atomic_load_explicit(&set[i].key, memory_order_relaxed) == (uintptr_t)key)) return &set[i];
    if (last_use(&set[i]) < last_use(oldest)) oldest = &set[i];
  }
  oldest->mean = oldest->longest = oldest->at = 0;
  oldest->round = 0;
  oldest->key = (uintptr_t)key;
  return oldest;
}

static uint64_t faded(struct vc_duration *d, uint64_t now) {
  uint64_t longest = d->longest, at = d->at ? d->at : now;
  if (now > at + 16 * HALF_LIFE_NS) longest = 0, at = now;
  for (; now > at + HALF_LIFE_NS / 8; at += HALF_LIFE_NS / 8) longest -= longest / 12;
  d->at = at;
  return longest;
}

/* Trust grows with each launch that ended about when it was expected to, and starts again with one that did not. */
static void weigh(bool surprise, uint64_t launches) {
  if (surprise)
    atomic_store(&trust, 0);
  else
    atomic_fetch_add(&trust, launches);
}

void vc_duration_measured(struct vc_duration *d, uint64_t least, uint64_t most, uint32_t launches,
                          uint64_t now) {
  uint64_t count = launches ? launches : 1, each = most / count ? most / count : 1;
  uint64_t longest = faded(d, now), mean = d->mean;
  bool exact = (most - least) * 4 < most;
  /* After a minute without it nothing is known of a function any more. */
  bool fresh = vc_duration_known(d) && !vc_duration_doubted(d) && longest;
  uint64_t surely = least / count;
  weigh(longest && surely > 2 * longest && surely > SURPRISE_NS, count);
  d->round = atomic_load(&round_now);
  if (!fresh || (d->rough && (exact || each < longest))) {
    d->mean = each;
    d->longest = !fresh && longest > each && !d->rough ? longest : each;
    d->rough = !exact;
    return;
  }
  if (!exact && each < mean) d->mean = mean = each;
  if (!exact) each = surely;
  d->longest = each > longest ? each : longest;
  if (exact || each > mean) d->mean = mean + each / 4 - mean / 4 + 1;
}

void vc_duration_compared(uint64_t expected, uint64_t least, uint64_t most, uint32_t launches, uint64_t now) {
  static _Atomic uint64_t last;
  uint64_t before = last;
  bool longer = least > 2 * expected + SLACK_NS;
  weigh(longer, launches);
  if (!longer && most * 4 >= expected) return;
  if (now - before < (longer ? DOUBT_NS : CALM_NS) || !atomic_compare_exchange_strong(&last, &before, now)) return;
  atomic_fetch_add(&round_now, 1);
}

bool vc_duration_known(const struct vc_duration *d) {
  return d->mean;
}

bool vc_duration_doubted(const struct vc_duration *d) {
  return d->round != atomic_load(&round_now);
}

void vc_duration_asked(struct vc_duration *d) {
  if (vc_duration_known(d)) d->round = atomic_load(&round_now);
}

uint64_t vc_duration_trust(void) {
  return atomic_load(&trust);
}
