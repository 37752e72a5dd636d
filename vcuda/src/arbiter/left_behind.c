/* SPDX-License-Identifier: Apache-2.0 */
#include "left_behind.h"

#include <string.h>

static uint64_t part(uint64_t bytes, uint64_t of, uint64_t all) {
  return all ? (uint64_t)((unsigned __int128)bytes * of / all) : 0;
}

static uint64_t at_most(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* The least of as many looks as it takes for the arbiter to hear of a process's end, so that none is taken for the
 * driver's own. */
static void learn(struct ar_baseline *b, uint64_t besides, bool new_look) {
  if (!b->known || besides < b->bytes) b->bytes = besides;
  b->known = true;
  if (!new_look) return;
  b->looks[b->count++ % AR_LOOKS] = besides;
  if (b->count < AR_LOOKS) return;
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < AR_LOOKS; i++) least = at_most(least, b->looks[i]);
  b->bytes = least;
}

static uint64_t above(struct ar_baseline *b, uint64_t besides, bool new_look) {
  if (!b->known || besides < b->bytes) {
    b->bytes = besides;
    b->known = true;
  }
  if (new_look) memmove(b->above + 1, b->above, sizeof b->above - sizeof *b->above);
  return b->above[0] = besides - b->bytes;
}

/* What is gone is believed if the last looks agree: memory may come and go while one reads the driver's figures. */
static uint64_t most_of(const uint64_t looks[AR_LOOKS]) {
  uint64_t most = 0;
  for (int i = 0; i < AR_LOOKS; i++)
    if (looks[i] > most) most = looks[i];
  return most;
}

struct sums {
  uint64_t proven, claimed, let_go;
  unsigned ended;
};

static struct sums add_up(const struct ar_left *seats) {
  struct sums all = {0};
  for (const struct ar_left *s = seats; s; s = s->next) {
    all.proven += s->proven;
    all.claimed += s->claimed;
    all.let_go += s->let_go;
    all.ended += s->ended;
  }
  return all;
}

void ar_left_look(struct ar_left *seats, struct ar_baseline *b, uint64_t besides, bool new_look) {
  struct sums all = add_up(seats);
  if (!all.proven && !all.claimed && !all.let_go && !all.ended) {
    learn(b, besides, new_look);
    memset(b->above, 0, sizeof b->above);
    return;
  }
  b->count = 0;
  uint64_t now = above(b, besides, new_look), then = most_of(b->above);
  uint64_t known = all.proven + all.let_go, there = at_most(known, then);
  uint64_t rest = now > known ? now - known : 0;
  uint64_t unclaimed = rest > all.claimed ? rest - all.claimed : 0;
  for (struct ar_left *s = seats; s; s = s->next) {
    s->proven = part(s->proven, there, known);
    s->explained = part(s->let_go, there, known);
    s->claimed = part(s->claimed, at_most(rest, all.claimed), all.claimed);
    /* More than it said that it held: it may have lied. If processes of several seats ended, it may be of any. */
    if (s->ended && all.ended == 1) s->claimed += unclaimed;
    s->ended = false;
    if (!s->settled) continue;
    s->proven += s->claimed;
    s->claimed = 0;
  }
}
