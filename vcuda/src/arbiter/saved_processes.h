/* SPDX-License-Identifier: Apache-2.0 */
/* What a restarted arbiter must know of a seat's processes, and of what they used; kept on disk. */
#ifndef AR_SAVED_PROCESSES_H
#define AR_SAVED_PROCESSES_H

#include "seat.h"

/* Write it down, if it changed. */
void ar_saved_write(struct ar_seat *seat, uint64_t now);
/* Read it, into a seat that was just made. */
void ar_saved_adopt(struct ar_seat *seat);
/* Let the seat's processes have memory once all are back, or the time for that is over. */
void ar_saved_settle(struct ar_seat *seat, uint64_t now);

#endif
