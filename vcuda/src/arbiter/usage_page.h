/* SPDX-License-Identifier: Apache-2.0 */
/* The page that a seat's processes write, read with care: it is the tenant's word. */
#ifndef AR_USAGE_PAGE_H
#define AR_USAGE_PAGE_H

#include "seat.h"

/* A sum from the page, or 0 if it is garbage: it must not make a total run backwards or overflow. */
uint64_t ar_usage_believable(uint64_t value);
/* Nanoseconds with work of any of the seat's processes in flight, up to now; never less than before. */
uint64_t ar_usage_busy(struct ar_seat *seat);
/* What the GPU's thread needs to know of a seat. */
struct ar_seen ar_usage_look(const struct ar_place *place, uint64_t now);
/* A process that died with work in flight does not count among its seat's active ones any more. */
void ar_usage_leave(struct vc_usage *usage, const struct vc_slot *slot, uint64_t now);

struct ar_totals {
  uint64_t busy, waited; /* nanoseconds */
  uint64_t launches;
  uint64_t memory, peak; /* bytes */
  int processes;
};
/* Sum up the processes; time and launches include those of processes that have left. */
struct ar_totals ar_usage_totals(struct ar_seat *seat);

#endif
