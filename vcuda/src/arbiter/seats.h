/* SPDX-License-Identifier: Apache-2.0 */
/* All seats of this machine: making, changing, finding and dropping them. */
#ifndef AR_SEATS_H
#define AR_SEATS_H

#include "seat.h"

/* Return the seat of this name, or NULL. */
struct ar_seat *ar_seat_find(const char *name);
/* The first of the list, or NULL. */
struct ar_seat *ar_seat_first(void);
int ar_seat_count(void);
/* Return the seat in which a process sits, or NULL. */
struct ar_seat *ar_seat_of(pid_t pid);
/* Make a seat, or change the one of this name; `made` says which. NULL, with a reason, if that is refused. */
struct ar_seat *ar_seat_set(const struct ar_config *config, bool *made, const char **why);
/* End a seat: its processes can launch no more. */
void ar_seat_drop(struct ar_seat *seat);
/* Make the seats from before a restart again, and call `open` for each; if that returns false, the seat is dropped. */
void ar_seat_restore(bool (*open)(struct ar_seat *, const char **why));
/* Make what the folder has for each seat again. */
void ar_seat_put_back(void);
/* Do what is due: free the slots of processes that are gone, drop seats that are over. */
void ar_seat_tick(uint64_t now);
/* Write down what the next arbiter must know of all seats. */
void ar_seat_keep_all(void);

#endif
