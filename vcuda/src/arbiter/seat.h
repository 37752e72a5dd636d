/* SPDX-License-Identifier: Apache-2.0 */
/* A seat: one container's (or one program's) slice of one GPU, and the processes that sit in it. */
#ifndef AR_SEAT_H
#define AR_SEAT_H

#include "bell.h"
#include "state.h"

#define AR_ROOTS 64
#define AR_LOOKS 3 /* of the audit, compared with one another */

/* One process in a seat. */
struct ar_client {
  struct ar_seat *seat;
  int slot, fd, pidfd;
  pid_t pid;
  uint64_t start;     /* as /proc tells it; 0: unknown */
  uint64_t orphan_at; /* its socket is gone: looked at then, unless it comes back */
  bool restored;      /* sat here before a restart, and has not come back yet */
  bool shown;         /* it has mapped this slot's pages, so it may hold something there */
};

/* A program that the seat was taken for: the seat stays as long as one of them lives. */
struct ar_root {
  pid_t pid;
  uint64_t start;
};

struct ar_seat {
  struct ar_config config;
  struct ar_place place;
  struct ar_gpu *gpu;
  struct vc_usage *usage;
  struct ar_bell *bell;
  int policy_fd, usage_fd, door;
  struct ar_client *client[VC_SLOTS];
  struct ar_root root[AR_ROOTS];
  int roots;
  uint64_t since, settle_until;
  uint64_t overhead[AR_LOOKS], unheld[AR_LOOKS]; /* by the last looks, see audit.c */
  uint64_t timed[AR_LOOKS]; /* what it was charged at the last looks */
  unsigned used[AR_LOOKS];  /* per cent of the GPU by the driver's word, then */
  bool beyond_time;
  uint64_t done_waited, done_launches; /* of processes that have left */
  uint64_t busy_told; /* the most that was ever said of its busy time */
  /* A digest of what was last written down of its processes, its busy time then, and when. */
  uint64_t kept, kept_busy, kept_at;
  void (*closed)(struct ar_seat *); /* called before it goes */
  struct ar_seat *next;
};

struct ar_seat *ar_seat_find(const char *name);
struct ar_seat *ar_seat_first(void);
int ar_seat_count(void);
/* The seat that a seated process belongs to. */
struct ar_seat *ar_seat_of(pid_t pid);
/* Make it or change it; `made` says which. */
struct ar_seat *ar_seat_set(const struct ar_config *config, bool *made, const char **why);
void ar_seat_drop(struct ar_seat *seat);
/* The seats kept from before a restart, with `open` called for each; false drops it. */
void ar_seat_restore(bool (*open)(struct ar_seat *, const char **why));
/* What is due by time: processes that are gone, seats that are over. */
void ar_seat_tick(uint64_t now);
/* Write down all that the next arbiter is to know. */
void ar_seat_keep_all(void);

#endif
