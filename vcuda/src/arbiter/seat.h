/* SPDX-License-Identifier: Apache-2.0 */
/* A seat: one container's (or one program's) slice of one GPU, and the processes that sit in it. */
#ifndef AR_SEAT_H
#define AR_SEAT_H

#include "left_behind.h"
#include "saved_seats.h"
#include "seat_bell.h"

#define AR_ROOTS 64

/* One process in a seat. */
struct ar_client {
  struct ar_seat *seat;
  int slot, fd, pidfd;
  pid_t pid;
  uint64_t start;     /* of the process, in clock ticks since boot; 0: unknown */
  uint64_t orphan_at; /* its socket is closed: when to check whether it is gone; 0: it is connected */
  bool restored;      /* it sat here before a restart, and has not come back yet */
  uint64_t physical;  /* bytes that the driver held for it at the audit's last look */
  bool shown;         /* it has mapped this slot's pages, so it may hold something there */
};

/* A program for which the seat was made: the seat stays as long as one of them lives. */
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
  struct ar_left left;
  uint64_t over, under; /* at the last look: what the driver holds beyond the charge, and what it does not hold of it */
  uint64_t told;        /* of what is left, what was named */
  uint64_t left_until; /* until then the driver may still free what a process held that has ended; 0: no process has */
  /* At the last looks of unlimited_processes.c: bytes, nanoseconds charged, and per cent of the GPU by the driver. */
  uint64_t overhead[AR_LOOKS], unheld[AR_LOOKS];
  uint64_t timed[AR_LOOKS];
  unsigned used[AR_LOOKS];
  bool beyond_memory, beyond_time;
  uint64_t done_waited, done_launches; /* of processes that have left */
  uint64_t busy_shown; /* the most busy time that was ever reported */
  /* What was last written to disk of its processes: a digest of it, its busy time, and when. */
  uint64_t kept, kept_busy, kept_at;
  void (*closed)(struct ar_seat *); /* called before the seat is freed */
  struct ar_seat *next;
};

#endif
