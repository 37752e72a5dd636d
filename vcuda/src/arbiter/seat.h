/* SPDX-License-Identifier: Apache-2.0 */
/* A seat: one container's (or one program's) slice of one GPU, and the processes that sit in it. */
#ifndef AR_SEAT_H
#define AR_SEAT_H

#include "scheduler.h"

#include <sys/types.h>

#define AR_NAME 64
#define AR_PATH 512

struct ar_gpu;
struct ar_loop;

struct ar_config {
  char name[AR_NAME];
  int gpu;
  uint32_t core, limit; /* per cent */
  uint64_t memory;
  uint32_t vclass;
  pid_t root;       /* its first process, as `arbiter run` knows it; 0 otherwise */
  char cgroup[256]; /* part of its processes' cgroup path; empty: unknown */
};

/* One process in a seat. */
struct ar_client {
  struct ar_seat *seat;
  int slot, fd, pidfd;
  pid_t pid;
  uint64_t orphan_at; /* its socket is gone but it lives: freed then, unless it comes back */
};

struct ar_seat {
  struct ar_config config;
  struct ar_member member;
  struct ar_gpu *gpu;
  struct vc_policy *policy;
  struct vc_usage *usage;
  int policy_fd, usage_fd, door;
  struct ar_client *client[VC_SLOTS];
  uint64_t since, overhead[3];
  uint64_t done_busy, done_waited, done_launches; /* of processes that have left */
  int root_pidfd;
  struct ar_seat *next;
};

/* Everything under one folder: control.sock, seats/NAME/seat.sock, state/NAME.json, NAME.usage. */
const char *ar_folder(void);
bool ar_folder_open(const char *path, const char **why);
bool ar_path(char out[AR_PATH], const char *format, ...);

struct ar_seat *ar_seat_find(const char *name);
struct ar_seat *ar_seat_first(void);
struct ar_seat *ar_seat_set(const struct ar_config *config, const char **why);
void ar_seat_drop(struct ar_seat *seat);
/* Seats kept from before a restart. */
void ar_seat_restore(void);
/* A process takes a slot; `wanted` is the one it had, or -1. NULL when all are taken. */
struct ar_client *ar_seat_sit(struct ar_seat *seat, pid_t pid, int wanted);
void ar_seat_leave(struct ar_client *client);
bool ar_seat_empty(const struct ar_seat *seat);

struct ar_totals {
  uint64_t busy, waited, launches, memory, peak;
  int processes;
};
/* Summed over the processes, with care: the page is the tenant's word. */
struct ar_totals ar_seat_totals(const struct ar_seat *seat);
void ar_seat_look(struct ar_seat *seat, uint64_t now);

#endif
