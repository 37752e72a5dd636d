/* SPDX-License-Identifier: Apache-2.0 */
#include "pauses.h"

/* One longer pause is chance, two are a habit. */
#define HABIT 2

void ar_pauses_see(struct ar_pauses *p, bool busy, uint64_t now) {
  if (busy && p->paused) p->length[p->next++ % AR_PAUSES] = now - p->since;
  if (busy) p->since = now;
  p->paused = !busy && p->since;
}

bool ar_pauses_short(const struct ar_pauses *p, uint64_t length) {
  int known = 0, longer = 0;
  for (int i = 0; i < AR_PAUSES; i++) {
    known += p->length[i] != 0;
    longer += p->length[i] > length;
  }
  return known >= HABIT && longer < HABIT;
}

uint64_t ar_pauses_end(const struct ar_pauses *p, uint64_t now) {
  uint64_t lasted = now - p->since, shortest = UINT64_MAX;
  int longer = 0;
  if (!p->paused) return 0;
  for (int i = 0; i < AR_PAUSES; i++) {
    if (p->length[i] <= lasted) continue;
    longer++;
    if (p->length[i] < shortest) shortest = p->length[i];
  }
  return longer < HABIT ? 0 : p->since + shortest;
}
