/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GPU holds and no living process explains: memory that a process exported before it ended, as long as somebody
 * holds the descriptor; and all that a process held, as long as a child that it forked has the driver's files open. It
 * is charged to the seat whose process left it behind. Pure.
 */
#ifndef AR_LEFT_BEHIND_H
#define AR_LEFT_BEHIND_H

#include <stdbool.h>
#include <stdint.h>

#define AR_LOOKS 3 /* of the audit, compared with one another */

/* A seat's part in it, in bytes. */
struct ar_left {
  uint64_t proven;    /* seen on the GPU after a process had ended */
  uint64_t claimed;   /* what processes held that ended since: so much may be there */
  uint64_t let_go;    /* living processes are charged for it, and no process holds it */
  uint64_t explained; /* of let_go: what the GPU holds */
  bool ended;         /* a process ended since the last look */
  bool settled;       /* the driver has had its time: what is there now stays there */
  struct ar_left *next; /* of the same GPU */
};

/* What a GPU holds besides what its processes hold, when nobody can have left anything behind. */
struct ar_baseline {
  bool known;
  uint64_t bytes, looks[AR_LOOKS]; /* looks: of the last ones, as long as nobody could */
  unsigned count;
  uint64_t above[AR_LOOKS]; /* at the last looks */
};

/* Judge what a GPU holds besides what its processes hold. A look counts as a new one, or takes the last one's place. */
void ar_left_look(struct ar_left *seats, struct ar_baseline *baseline, uint64_t besides, bool new_look);

#endif
