/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a seat: the programs for which it was made, and those that sit in it, each in a slot of its page. */
#ifndef AR_SEAT_PROCESSES_H
#define AR_SEAT_PROCESSES_H

#include "seat.h"

/* The seat is for this program too; if it is for none in particular (0), it stays until it is dropped. */
void ar_process_add_root(struct ar_seat *seat, pid_t pid, uint64_t start);
/* Whether one of the programs still lives. */
bool ar_process_roots_live(const struct ar_seat *seat);

/* Give a process a slot; `wanted` is the one it had, or -1. NULL if it gets none. The arbiter's descriptors are shared
 * out among so many seats. */
struct ar_client *ar_process_sit(struct ar_seat *seat, pid_t pid, int wanted, int seats);
/* Make a process that is watched for its end, for the caller to put into the slot; NULL without memory. */
struct ar_client *ar_process_new(struct ar_seat *seat, pid_t pid, int slot);
/* Publish the number below which slots are taken. */
void ar_process_show_high(struct ar_seat *seat);
/* A process of the seat has ended that held so much: until the driver was asked, that counts as held. */
void ar_process_left(struct ar_seat *seat, uint64_t bytes);
/* Free the slot of a process that is gone, and the process. */
void ar_process_leave(struct ar_client *client);
/* Its socket is closed: check in a moment whether it is gone. */
void ar_process_orphan(struct ar_client *client);
/* Check that, if it is due. */
void ar_process_look(struct ar_client *client, uint64_t now);

#endif
