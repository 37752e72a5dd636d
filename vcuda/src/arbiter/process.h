/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a seat: the programs that it was taken for, and those that sit in it, each in a slot of its page. */
#ifndef AR_PROCESS_H
#define AR_PROCESS_H

#include "seat.h"

/* The seat was taken for this program, too; for none in particular (0), it stays until it is dropped. */
void ar_process_add_root(struct ar_seat *seat, pid_t pid, uint64_t start);
bool ar_process_roots_live(const struct ar_seat *seat);

/* Give a process a slot; `wanted` is the one it had, or -1. NULL if it gets none. The descriptors of this process are
 * shared out among so many seats. */
struct ar_client *ar_process_sit(struct ar_seat *seat, pid_t pid, int wanted, int seats);
/* A process, watched for its end, that the caller puts into the slot; NULL without memory. */
struct ar_client *ar_process_new(struct ar_seat *seat, pid_t pid, int slot);
/* Show in the page below which number slots are taken. */
void ar_process_show_high(struct ar_seat *seat);
/* Free its slot: it is gone. */
void ar_process_leave(struct ar_client *client);
/* Its socket is closed: look after a while whether it is gone. */
void ar_process_orphan(struct ar_client *client);
/* Look whether it is, if that is due. */
void ar_process_look(struct ar_client *client, uint64_t now);

#endif
