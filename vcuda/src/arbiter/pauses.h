/* SPDX-License-Identifier: Apache-2.0 */
/* How long a seat pauses, or the in-budget work of a GPU, learned from the last pauses. */
#ifndef AR_PAUSES_H
#define AR_PAUSES_H

#include <stdbool.h>
#include <stdint.h>

#define AR_PAUSES 16

struct ar_pauses {
  uint64_t length[AR_PAUSES];
  unsigned next;
  uint64_t since; /* when there was work last; 0: never */
  bool paused;
};

/* Note whether there is work now. */
void ar_pauses_see(struct ar_pauses *pauses, bool busy, uint64_t now);
/* Whether the last pauses were no longer than this. */
bool ar_pauses_short(const struct ar_pauses *pauses, uint64_t length);
/* When the present pause will end, if it is like the shortest of those that lasted longer than it has so far; 0 if
 * there were too few of them. */
uint64_t ar_pauses_end(const struct ar_pauses *pauses, uint64_t now);

#endif
